"""The kernel on a device: the bits of the CPU, nothing that waits, one transfer a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from test_digest import LARGE_VIEWS, by_dtype, random_bytes, tensor_of

from samebits.worker.capture.digest import CHUNK_BYTES, digest
from samebits.worker.capture.reading import Reader
from samebits.worker.capture.staging import Staging, adding, by_torch
from staged_run import Model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
DEVICE = torch.device("cuda", 0)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """RuntimeError where an operation would synchronise with the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_same(tensors: list[torch.Tensor]) -> None:
    stages = Staging()
    staged = stages.take(tensors)
    fetched = stages.fetch()
    assert [fetched.digest(entry) for entry in staged] == [digest(tensor.cpu()) for tensor in tensors]


def test_triton_is_used_where_it_can_compile() -> None:
    pytest.importorskip("triton")
    assert adding(DEVICE) is not by_torch


@by_dtype
def test_every_dtype_shape_and_alignment(dtype: torch.dtype) -> None:
    tensor = tensor_of(random_bytes(60 * dtype.itemsize), dtype).to(DEVICE)
    views = [tensor, tensor.view(3, 1, 20), tensor[7], tensor[:0], tensor.view(3, 20).t(), tensor[1::3]]
    assert_same([*views, tensor[:1].expand(5), *(tensor[first : first + 20] for first in range(18))])


@pytest.mark.parametrize("offset", range(16))
def test_around_the_borders_of_chunks(offset: int) -> None:
    base = torch.randint(0, 256, (70 * CHUNK_BYTES,), dtype=torch.uint8, device=DEVICE)
    counts = [chunks * CHUNK_BYTES + extra for chunks in (1, 2, 5, 65) for extra in (-9, -8, -1, 0, 1, 8, 9)]
    assert_same([base[offset : offset + count] for count in counts])


@pytest.mark.parametrize("name", LARGE_VIEWS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.complex128], ids=str)
def test_views_larger_than_a_piece(name: str, dtype: torch.dtype) -> None:
    assert_same([LARGE_VIEWS[name](tensor_of(random_bytes(1_050_000 * dtype.itemsize), dtype).to(DEVICE))])


def test_a_tensor_of_more_than_4096_chunks() -> None:
    assert_same([torch.randint(-(2**62), 2**62, (4100 * 4096 + 7,), device=DEVICE)])


def test_a_block_waits_for_nothing_but_its_one_transfer() -> None:
    tensors = [torch.randn(1 + number, 33, device=DEVICE) for number in range(1000)]
    tensors += [torch.randn(300, 300, device=DEVICE).t(), torch.tensor(1.5, device=DEVICE)]
    stages = Staging()
    for _ in range(2):
        stages.take(tensors)
        stages.fetch()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        with nothing_waits():
            staged = stages.take(tensors[:1000])
            staged += stages.take(tensors[1000:])
        fetched = stages.fetch()
    names = [event.key for event in profile.key_averages() for _ in range(event.count)]
    assert sum("DtoH" in name for name in names) == 1
    # The transposed one is copied to where memory is free: a launch, and perhaps a table, of its own.
    assert sum("HtoD" in name for name in names) <= 1
    assert sum("add_sums" in name for name in names) == 3
    assert [fetched.digest(entry) for entry in staged] == [digest(tensor.cpu()) for tensor in tensors]
    assert fetched.tensor(staged[-1]).item() == 1.5


def test_capture_reads_the_state_without_waiting() -> None:
    model, reader = Model(), Reader(None)
    state = model.state(None)
    items = [(site, value.to(DEVICE) if isinstance(value, torch.Tensor) else value) for site, value in state]
    reader.read(items)
    reader.drop()
    with nothing_waits():
        readings = reader.read(items)
    assert len(readings) == len(items)


@pytest.mark.parametrize("stream", ["default", "other"])
def test_a_tensor_may_change_and_go_once_it_is_taken(stream: str) -> None:
    stages = Staging()
    chosen = torch.cuda.Stream(DEVICE) if stream == "other" else torch.cuda.current_stream(DEVICE)
    with torch.cuda.stream(chosen):
        tensor = torch.arange(50_000_000, device=DEVICE)
        expected = digest(tensor.cpu())
        (staged,) = stages.take([tensor])
        tensor.zero_()
        del tensor
        torch.full((50_000_000,), 7, device=DEVICE)
        assert stages.fetch().digest(staged) == expected
