"""The kernel under Triton's interpreter, on tensors of the CPU. `test_kernel.py` runs this in a process of its own:
triton reads TRITON_INTERPRET once, when it is imported."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_digest import LARGE_VIEWS, by_dtype, random_bytes, tensor_of
from triton.runtime.interpreter import InterpreterBuilder

from digest_cases import weight
from samebits.worker.capture import digest as module
from samebits.worker.capture import triton_kernel
from samebits.worker.capture.digest import CHUNK_BYTES, CHUNK_WORDS, K_SEEDS, R_SEEDS, digest, digest_bytes, finish
from samebits.worker.capture.staging import disagreement
from samebits.worker.capture.triton_kernel import Kernel, work_rows
from staged_run import contents, record, stage_all

CPU = torch.device("cpu")
ON_CPU = Kernel(CPU)
NO_ACCESS = 0  # PROT_NONE


def digests(tensors: Sequence[torch.Tensor], by: Kernel = ON_CPU) -> list[tuple[int, int]]:
    sums = torch.zeros(len(tensors), 2, dtype=torch.int64)
    by.add(tensors, sums)
    return [finish(a, b, tensor.nbytes) for tensor, (a, b) in zip(tensors, sums.tolist(), strict=True)]


def assert_same(tensors: Sequence[torch.Tensor]) -> None:
    assert digests(tensors) == [digest(tensor) for tensor in tensors]


def aligned(data: bytes, offset: int) -> torch.Tensor:
    """uint8, the first byte at an address that is `offset` modulo 16."""
    room = torch.empty(len(data) + 32, dtype=torch.uint8)
    first = (offset - room.data_ptr()) % 16
    view = room[first : first + len(data)]
    view.copy_(tensor_of(data))
    return view


@pytest.fixture(autouse=True)
def _alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: a load that is not aligned to its elements, or is promised 16 bytes and is not, is an error. The
    kernel promises them for its loads of whole blocks without a mask."""
    load, masked_load = InterpreterBuilder.create_load, InterpreterBuilder.create_masked_load

    def checked(self: InterpreterBuilder, pointer: Any, *rest: Any) -> Any:
        assert pointer.data.size == 1 or int(pointer.data.min()) % 16 == 0, "not aligned to 16 bytes"
        return load(self, pointer, *rest)

    def masked_checked(self: InterpreterBuilder, pointers: Any, mask: Any, *rest: Any) -> Any:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        assert not (pointers.data[mask.data] % size).any(), "not aligned to its elements"
        return masked_load(self, pointers, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_load", checked)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", masked_checked)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each launch from here on."""
    rows: list[int] = []
    add_sums = triton_kernel.add_sums

    class Counted:
        def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
            rows.append(grid[0])
            return add_sums[grid]

    monkeypatch.setattr(triton_kernel, "add_sums", Counted())
    return rows


@pytest.fixture
def page() -> torch.Tensor:
    """uint8, a page of memory; whoever reads before or behind it is killed."""
    room = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for guard in (start, start + 2 * mmap.PAGESIZE):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, NO_ACCESS) == 0
    return torch.frombuffer(room, dtype=torch.uint8)[mmap.PAGESIZE : 2 * mmap.PAGESIZE]


def test_one_launch_digests_every_length_at_every_alignment(launches: list[int]) -> None:
    counts = [*range(18), 23, 24, 25, 8191, 8193]
    tensors = [aligned(random_bytes(count, seed=count), offset) for offset in range(16) for count in counts]
    assert_same([*tensors, tensors[20], tensors[20]])
    assert launches == [16 * 22 + 2]  # an empty tensor has no row


@by_dtype
def test_every_dtype_and_shape(dtype: torch.dtype) -> None:
    tensor = tensor_of(random_bytes(60 * dtype.itemsize), dtype)
    views = [tensor, tensor.view(3, 1, 20), tensor[7], tensor[:0], tensor.view(3, 20)[:0].t(), tensor.view(3, 20).t()]
    assert_same([*views, tensor[1::3], tensor[:1].expand(5), *(tensor[3 : 3 + count] for count in range(18))])


@by_dtype
@given(st.data())
@settings(max_examples=8, deadline=None)
def test_any_view(dtype: torch.dtype, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    steps = tuple(slice(data.draw(st.integers(0, 1)), None, data.draw(st.integers(1, 3))) for _ in shape)
    raw = random_bytes(dtype.itemsize * (int(np.prod(shape)) + 3))
    view = tensor_of(raw, dtype)[3:].view(shape).permute(order)[steps]
    assert_same([view, view.unsqueeze(0).expand(2, *view.shape), view])


@given(st.lists(st.tuples(st.binary(max_size=100), st.integers(0, 15)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_group(group: list[tuple[bytes, int]]) -> None:
    found = digests([aligned(data, offset) for data, offset in group])
    assert found == [digest_bytes(data) for data, _ in group]


@pytest.mark.parametrize("offset", [0, 1, 8, 12, 15])
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_around_the_borders_of_chunks_and_of_columns(chunks: int, offset: int) -> None:
    borders = [chunks * CHUNK_BYTES, (chunks - 1) * CHUNK_BYTES + 8 * triton_kernel.COLUMNS]
    assert_same(
        [aligned(random_bytes(border + extra), offset) for border in borders for extra in (-9, -8, -1, 0, 1, 8, 9)]
    )


@pytest.mark.parametrize("chunks", [1, 2, 3, 64])
def test_the_cut_into_rows_does_not_change_the_digest(
    chunks: int, monkeypatch: pytest.MonkeyPatch, launches: list[int]
) -> None:
    monkeypatch.setattr(triton_kernel, "LEAST_CHUNKS", chunks)
    monkeypatch.setattr(triton_kernel, "MOST_CHUNKS", chunks)
    tensors = [aligned(random_bytes(count, seed=count), count % 3) for count in (7 * CHUNK_BYTES + 5, 40, CHUNK_BYTES)]
    assert digests(tensors, by=Kernel(CPU)) == [digest(tensor) for tensor in tensors]
    assert launches == [-(-(7 * CHUNK_BYTES + 5) // (chunks * CHUNK_BYTES)) + 2]


@pytest.mark.parametrize("first", [1, 4095, 4096, 2**20 + 3, 2**31 - 1, 2**40 + 7])
@pytest.mark.parametrize("offset", [0, 4])
def test_chunk_numbers_of_tensors_too_large_to_make(first: int, offset: int) -> None:
    """By the definition: A and B of two chunks and three bytes that begin with chunk `first`."""
    data = aligned(random_bytes(2 * CHUNK_BYTES + 3), offset)
    sums = torch.zeros(1, 2, dtype=torch.int64)
    ON_CPU._launch(((data.data_ptr(), data.nbytes),), sums, first)
    words = np.frombuffer(data.numpy().tobytes() + bytes(5), "<u8")
    orders = words.tolist(), words.byteswap().tolist()
    for total, ordered, k_seed, r_seed in zip(sums[0].tolist(), orders, K_SEEDS, R_SEEDS, strict=True):
        places = (divmod(index, CHUNK_WORDS) for index in range(len(words)))
        weights = [weight(r_seed, first + chunk) * weight(k_seed, column) for chunk, column in places]
        assert total % 2**64 == sum(map(int.__mul__, weights, ordered)) % 2**64


@given(
    st.lists(st.integers(0, 400 * CHUNK_BYTES), max_size=8),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([(1, 1), (4, 64), (2, 3)]),
)
def test_rows_cover_every_byte_once_with_its_chunk_number(sizes: list[int], rows: int, chunks: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ROWS": rows, "LEAST_CHUNKS": chunks[0], "MOST_CHUNKS": chunks[1]}.items():
            patch.setattr(triton_kernel, name, value)
        table = work_rows(tuple((10**15 + 10**10 * number, size) for number, size in enumerate(sizes)))
    for number, size in enumerate(sizes):
        at = 0
        for address, nbytes, chunk, _ in table[table[:, 3] == number].tolist():
            assert (address, chunk * CHUNK_BYTES) == (10**15 + 10**10 * number + at, at)
            assert 0 < nbytes <= chunks[1] * CHUNK_BYTES
            at += nbytes
        assert at == size
    assert set(table[:, 3].tolist()) <= set(range(len(sizes)))


def test_a_tensor_of_100_gb_needs_a_table_below_2_mib() -> None:
    table = work_rows(((0, 100 * 10**9), (2**40, 10)))
    assert table.nbytes < 2 << 20
    assert table[-1].tolist() == [2**40, 10, 0, 1]
    assert table[-2][2] * CHUNK_BYTES + table[-2][1] == 100 * 10**9


@pytest.mark.parametrize("name", LARGE_VIEWS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=str)
def test_views_larger_than_a_piece_are_digested_in_order(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE", 8 * CHUNK_BYTES)
    view = LARGE_VIEWS[name](tensor_of(random_bytes(1_050_000 * dtype.itemsize), dtype))
    assert_same([view])


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_lazy_conjugates_and_negations_are_resolved(dtype: torch.dtype) -> None:
    tensor = tensor_of(random_bytes(999 * dtype.itemsize), dtype)
    assert_same([tensor, tensor.conj(), tensor.conj()[1::2], tensor.conj().imag, tensor.conj().imag[:1]])


@pytest.mark.skipif(sys.platform != "linux", reason="guards memory by mprotect")
def test_no_memory_is_read_beyond_the_words_that_hold_the_tensor(page: torch.Tensor) -> None:
    assert_same([page, *(page[first:] for first in range(1, 25)), *(page[:last] for last in range(1, 25))])
    assert_same([page[-count:] for count in range(1, 25)])


def test_sums_are_added_to_what_is_there() -> None:
    tensor, sums = tensor_of(random_bytes(100)), torch.tensor([[5, -7]])
    ON_CPU.add([tensor], sums)
    again = torch.zeros(1, 2, dtype=torch.int64)
    ON_CPU.add([tensor], again)
    assert torch.equal(sums - again, torch.tensor([[5, -7]]))


def test_tensors_that_stay_where_they_are_share_one_table() -> None:
    here, tensors = Kernel(CPU), [torch.arange(10.0), torch.ones(70_000), torch.ones(4, 4).t()]
    before, after = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int64)
    here.add(tensors, before)
    tables = {id(table) for table in here._tables.values()}
    tensors[0][3] += 1
    here.add(tensors, after)
    assert (before != after).any(1).tolist() == [True, False, False]
    assert tables <= {id(table) for table in here._tables.values()}
    assert finish(*after[0].tolist(), 40) == digest(tensors[0])
    here.add([tensors[0][1:], *tensors[1:]], after.zero_())
    assert finish(*after[0].tolist(), 36) == digest(tensors[0][1:])


def test_kept_tables_take_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernel, "TABLES_BYTES", 4 * 512)
    here, tensors = Kernel(CPU), [torch.full((3,), float(number)) for number in range(7)]
    for tensor in [*tensors, tensors[4], tensors[6], tensors[0]]:
        sums = torch.zeros(1, 2, dtype=torch.int64)
        here.add([tensor], sums)
        assert finish(*sums[0].tolist(), 12) == digest(tensor)
        assert here._kept == 512 * len(here._tables) <= 4 * 512
    assert list(here._tables) == [((tensors[number].data_ptr(), 12),) for number in (5, 4, 6, 0)]
    sums = torch.zeros(64, 2, dtype=torch.int64)
    here.add([tensors[0]] * 64, sums)  # as large as all that is allowed
    here.add([tensors[0]] * 65, torch.zeros(65, 2, dtype=torch.int64))  # larger: used, not kept
    assert (len(here._tables), here._kept) == (0, 0)


@pytest.mark.filterwarnings("ignore")
def test_what_has_no_plain_bytes_is_refused_with_a_reason() -> None:
    with pytest.raises(TypeError, match=r"layout torch\.sparse_coo"):
        digests([torch.ones(2), torch.eye(3).to_sparse()])


def test_the_check_at_the_start_passes() -> None:
    assert disagreement(ON_CPU.add, CPU) is None


def test_a_run_staged_by_the_kernel_leaves_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = contents(record(tmp_path / "at-once", monkeypatch))
    stage_all(monkeypatch, ON_CPU.add)
    assert contents(record(tmp_path / "staged", monkeypatch)) == expected
