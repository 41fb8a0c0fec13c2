"""Digests that are staged and fetched once a block are those that are taken at once."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_digest import by_dtype, random_bytes, tensor_of
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.fingerprint.records import Flag
from samebits.worker.capture import staging
from samebits.worker.capture.digest import CHUNK_BYTES, digest, only_word, torch_sums
from samebits.worker.capture.reading import Reader
from samebits.worker.capture.staging import Staged, Staging, adding, by_torch, disagreement
from samebits.worker.record import CaptureWatcher
from staged_run import NOT_FINITE, STEPS, contents, record, stage_all

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
WAITING = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero"}


class Operations(TorchDispatchMode):
    """Names of the operations that reach a device, and of what else is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def announce(monkeypatch: pytest.MonkeyPatch, method: str, names: list[str]) -> None:
    """Notes in `names` when the method of Staging begins."""
    original = getattr(Staging, method)

    def announced(self: Staging, *arguments: Any) -> Any:
        names.append(method)
        return original(self, *arguments)

    monkeypatch.setattr(Staging, method, announced)


@pytest.mark.parametrize("limit", [None, 40_000], ids=["all", "large ones skipped"])
def test_a_staged_run_leaves_the_same_records_and_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    expected = contents(record(tmp_path / "at-once", monkeypatch, limit))
    assert len(expected[3]) == 2 * len(NOT_FINITE)
    stage_all(monkeypatch, by_torch)
    assert contents(record(tmp_path / "staged", monkeypatch, limit)) == expected


def test_every_point_leaves_its_records_and_only_numbers_are_exact(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        file = record(tmp_path / "at-once", patch)
    first, step = file.blocks[0], file.blocks[1]
    assert step.records == 2 * 2 + 1 + first.records + 5  # batches, gradient, state, metrics
    rows = file.records(first)
    exact = {file.sites[row["site"]].name for row in rows if row["flags"] == Flag.VALUE}
    assert exact == {"step", "beta", "number", "one", "double", "limit"}


def test_a_step_that_begins_again_forgets_what_was_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    stage_all(monkeypatch, by_torch)
    recording = CaptureWatcher(Path(), "launch", lambda _training: None)
    recording._reader = Reader(None)
    plan = SimpleNamespace(capture=True, rung_at=lambda _rank, _step: "state")
    training: Any = SimpleNamespace(plan=plan, coordinates=SimpleNamespace(rank=0), step=1)
    for _ in range(2):
        recording.on_step_begin(training)
        recording.on_batch(training, 0, {"tokens": torch.arange(8)})
        (reading,) = recording._readings
        assert isinstance(reading.output, Staged)
        assert reading.output.slot == 0


def test_nothing_waits_before_its_block_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage_all(monkeypatch, by_torch)
    with Operations() as operations:
        for name in ("take", "fetch"):
            announce(monkeypatch, name, operations.names)
        record(tmp_path / "staged", monkeypatch)
    points = [name for name in operations.names if name in WAITING | {"take", "fetch"}]
    assert points.count("fetch") == STEPS + 3
    # Of each one-element floating-point tensor, once it is here: 4 of a state in 5 blocks, 3 metrics in 3.
    assert points.count("_local_scalar_dense") == 4 * 5 + 3 * 3
    assert not WAITING & {after for before, after in itertools.pairwise(points) if before == "take"}


@by_dtype
def test_a_staged_tensor_has_the_digest_of_its_bytes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tensor_of(random_bytes(24 * dtype.itemsize), dtype)
    taken = [tensor, tensor[5], tensor[:0], tensor[3:4], tensor.view(4, 6).t()]
    stages = Staging()
    staged = stages.take(taken)
    fetched = stages.fetch()
    assert [fetched.digest(entry) for entry in staged] == [digest(entry) for entry in taken]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@given(data=st.binary(min_size=8, max_size=8))
@settings(max_examples=50, deadline=None)
def test_a_number_arrives_with_all_its_bits(dtype: torch.dtype, data: bytes) -> None:
    tensor = tensor_of(data, dtype)[:1].view(1, 1)
    stages = Staging()
    (staged,) = stages.take([tensor])
    found = stages.fetch().tensor(staged)
    assert (found.dtype, found.shape) == (dtype, (1, 1))
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


@given(st.binary(max_size=8))
def test_the_sum_of_one_word_holds_it(data: bytes) -> None:
    assert only_word(torch_sums(tensor_of(data))[0].item()) == int.from_bytes(data, "little")


def test_slots_grow_keep_their_order_and_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SLOTS", 2)
    stages = Staging()
    groups = [[torch.full((3,), float(10 * group + number)) for number in range(group)] for group in (1, 0, 2, 9, 4)]
    for _ in range(2):
        staged = [stages.take(group) for group in groups]
        fetched = stages.fetch()
        for group, entries in zip(groups, staged, strict=True):
            assert [fetched.digest(entry) for entry in entries] == [digest(tensor) for tensor in group]
    stages.take(groups[3])
    stages.drop()
    (again,) = stages.take([torch.ones(5)])
    assert again.slot == 0
    assert stages.fetch().digest(again) == digest(torch.ones(5))
    assert stages.fetch().sums == {CPU: []}


def test_a_tensor_may_change_once_it_is_taken() -> None:
    tensor, stages = torch.arange(9.0), Staging()
    expected, (staged,) = digest(tensor), stages.take([tensor])
    tensor.zero_()
    assert stages.fetch().digest(staged) == expected


def test_tensors_of_several_devices_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[torch.device, int]] = []

    def adding_to(device: torch.device) -> staging.Adding:
        def add(tensors: Sequence[torch.Tensor], sums: torch.Tensor) -> None:
            taken.append((device, len(tensors)))

        return add

    monkeypatch.setattr(staging, "adding", adding_to)
    meta = torch.device("meta")
    staged = Staging().take([torch.ones(1), torch.ones(2, device=meta), torch.ones(3), torch.ones(4, device=meta)])
    assert [(entry.device, entry.slot, entry.shape) for entry in staged] == [
        *((CPU, 0, (1,)), (meta, 0, (2,)), (CPU, 1, (3,)), (meta, 1, (4,)))
    ]
    assert taken == [(CPU, 2), (meta, 2)]


def test_what_has_no_plain_bytes_is_refused_with_a_reason() -> None:
    with pytest.raises(TypeError, match=r"cannot digest a tensor of layout torch\.sparse_coo"):
        Staging().take([torch.ones(2), torch.eye(3).to_sparse()])


def test_without_triton_torch_takes_its_place_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "samebits.worker.capture.triton_kernel", None)
    with pytest.warns(UserWarning, match="on cuda:0 go by torch operations, not by Triton: ModuleNotFound"):
        assert adding.__wrapped__(CUDA) is by_torch
    assert adding.__wrapped__(torch.device("xpu")) is by_torch


def test_a_kernel_that_gives_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(tensors: Sequence[torch.Tensor], sums: torch.Tensor) -> None:
        by_torch(tensors, sums)
        sums[1, 0] ^= 1

    assert disagreement(by_torch, CPU) is None
    wrong = disagreement(add, CPU)
    assert wrong is not None
    assert wrong.startswith(f"cpu: the digest of {5 * CHUNK_BYTES + 10} known bytes is ")
    monkeypatch.setitem(
        sys.modules, "samebits.worker.capture.triton_kernel", SimpleNamespace(Kernel=lambda _: SimpleNamespace(add=add))
    )
    monkeypatch.setattr(staging, "disagreement", lambda _add, _device: wrong)
    with pytest.raises(RuntimeError, match=r"must be .* use another node or image"):
        adding.__wrapped__(CUDA)


def test_capture_on_the_cpu_never_imports_triton() -> None:
    code = (
        "import sys, torch\n"
        "from samebits.worker.record import CaptureWatcher\n"
        "from samebits.worker.capture.staging import Staging\n"
        "stages = Staging()\n"
        "stages.take([torch.ones(3)])\n"
        "stages.fetch()\n"
        "sys.exit('triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
