"""The digest sees every change of bytes and nothing else, and every path to it gives the same bits."""

from __future__ import annotations

import random
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from digest_cases import MISSED_BY, Family, reference, swap_between_chunks, undetected, weight
from samebits.worker.capture import digest as module
from samebits.worker.capture.digest import CHUNK_BYTES, CHUNK_WORDS, DIGEST_ID, digest, digest_bytes, torch_digest

MODIFICATIONS = 2_000  # of each of 13 families at each of 4 widths: 104,000 a run
SMALL, CHUNKS = (128, 2048), (2 * CHUNK_BYTES, 3 * CHUNK_BYTES)
swap_chunks = swap_between_chunks(CHUNK_WORDS)
by_family = pytest.mark.parametrize("family", MISSED_BY, ids=lambda family: family.__name__)


def plain_dtypes() -> list[torch.dtype]:
    """All that this torch has, but for the deprecated quantized ones, whose tensors are more than their bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
        return sorted((dtype for dtype in found if not torch.empty(1, dtype=dtype).is_quantized), key=str)


by_dtype = pytest.mark.parametrize("dtype", plain_dtypes(), ids=str)


def random_bytes(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def tensor_of(data: bytes, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)


def test_the_meaning_of_the_digest_id_never_changes() -> None:
    assert DIGEST_ID == "sb1-128"
    assert digest_bytes(b"") == (0x48FBBE6C70E9ACCB, 0x4C91DAB4A04877D2)
    assert digest_bytes(b"\0") == (0x53DDD6DEFCDA35C0, 0x67BFD4088559BBC5)
    assert digest_bytes(bytes(range(256))) == (0xCBF150C266C56C70, 0x6C940DB8C6F4A885)
    assert digest_bytes(bytes(i * i % 251 for i in range(9 * CHUNK_BYTES + 13))) == (
        0x9FD777173F7ED266,
        0x8142D3469CC5727D,
    )
    assert digest(torch.arange(1000, dtype=torch.float32)) == (0x9F1280DA8CC0A681, 0x9879915CABBDBBEC)


@given(st.binary(max_size=200), st.integers(0, 15))
@settings(max_examples=150, deadline=None)
def test_numpy_torch_and_the_reference_agree_at_any_offset(data: bytes, offset: int) -> None:
    tensor = tensor_of(bytes(offset) + data)[offset:]
    assert digest_bytes(data) == digest(tensor) == torch_digest(tensor) == reference(data)


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("extra", [-8, -1, 0, 1, 8])
@pytest.mark.parametrize("chunks", [1, 2, 8, 33])
def test_numpy_torch_and_the_reference_agree_around_chunk_borders(chunks: int, extra: int, offset: int) -> None:
    data = random_bytes(chunks * CHUNK_BYTES + extra)
    tensor = tensor_of(bytes(offset) + data)[offset:]
    expected = digest_bytes(data)
    assert digest(tensor) == torch_digest(tensor) == expected
    if (chunks, extra) in {(1, -1), (2, 8), (8, 1)}:
        assert expected == reference(data)


@given(st.binary(max_size=48), st.binary(max_size=48))
@settings(max_examples=200, deadline=None)
def test_digests_are_equal_exactly_when_the_bytes_are(one: bytes, other: bytes) -> None:
    assert (digest_bytes(one) == digest_bytes(other)) == (one == other)


@by_family
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_modification_is_seen(family: Family, width: int) -> None:
    assert not undetected(digest_bytes, family, width, MODIFICATIONS, SMALL)


@pytest.mark.parametrize("half", [0, 1], ids=["lo", "hi"])
@by_family
def test_each_half_of_the_digest_sees_every_modification(family: Family, half: int) -> None:
    assert not undetected(lambda x: digest_bytes(x)[half], family, 8, 200, SMALL)


@pytest.mark.parametrize("family", [*MISSED_BY, swap_chunks], ids=lambda family: family.__name__)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_modification_across_chunks_is_seen(family: Family, width: int) -> None:
    assert not undetected(digest_bytes, family, width, 40, CHUNKS)


@by_family
def test_every_family_catches_a_digest_known_to_be_weak(family: Family) -> None:
    assert any(undetected(MISSED_BY[family], family, width, 200, SMALL) for width in (1, 2, 4, 8))


def test_swaps_between_chunks_catch_a_digest_without_chunk_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_chunk_weights", lambda _block: np.ones((2, 4096), np.uint64))
    assert undetected(digest_bytes, swap_chunks, 4, 40, CHUNKS)


def test_every_single_bit_is_seen() -> None:
    data = random_bytes(301)
    flipped = (np.frombuffer(data, np.uint8) ^ row for row in np.packbits(np.eye(8 * 301, dtype=bool), axis=1))
    assert len({digest_bytes(data), *map(digest_bytes, flipped)}) == 8 * 301 + 1


@by_dtype
def test_every_modification_is_seen_in_every_dtype(dtype: torch.dtype) -> None:
    width = min(dtype.itemsize, 8)

    def hash_of(x: np.ndarray) -> tuple[int, int]:
        return digest(tensor_of(x.tobytes().ljust(-(-x.nbytes // 16) * 16, b"\1"), dtype))

    for family in MISSED_BY:
        assert not undetected(hash_of, family, width, 30, (128, 512)), family


@by_dtype
def test_digest_of_a_dtype_is_that_of_its_bytes_and_nothing_more(dtype: torch.dtype) -> None:
    data = random_bytes(60 * dtype.itemsize)
    tensor = tensor_of(data, dtype)
    assert digest(tensor) == torch_digest(tensor) == digest_bytes(data)
    assert digest(tensor.view(3, 1, 20)) == digest(tensor.view(torch.uint8)) == digest_bytes(data)
    assert digest(tensor[7]) == torch_digest(tensor[7]) == digest_bytes(data[7 * dtype.itemsize : 8 * dtype.itemsize])
    for empty in (tensor[:0], tensor.view(3, 20)[:, :0], tensor.view(3, 20)[:0].t()):
        assert digest(empty) == torch_digest(empty) == digest_bytes(b"")


@by_dtype
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_digest_of_a_view_is_that_of_its_contiguous_bytes(dtype: torch.dtype, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    steps = tuple(slice(data.draw(st.integers(0, 1)), None, data.draw(st.integers(1, 3))) for _ in shape)
    size, count = dtype.itemsize, int(np.prod(shape))
    raw = random_bytes(size * (count + 3), seed=count)
    view = tensor_of(raw, dtype)[3:].view(shape).permute(order)[steps].unsqueeze(0)
    view = view.expand(data.draw(st.integers(1, 3)), *view.shape[1:])
    bits = np.frombuffer(raw, f"V{size}")[3:].reshape(shape).transpose(order)[steps][np.newaxis]
    expected = digest_bytes(np.broadcast_to(bits, view.shape).tobytes())
    assert digest(view) == torch_digest(view) == expected


LARGE_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda t: t.view(700, 1500).t(),
    "strided": lambda t: t.view(700, 1500)[:, 1::2],
    "expanded": lambda t: t[:1500].expand(700, 1500),
    "scalar expanded": lambda t: t[0].expand(1, 3, 50_001),
    "long rows": lambda t: t.view(2, 525_000)[:, :-1],
    "misaligned": lambda t: t.view(torch.uint8)[t.element_size() : -1],
}


@pytest.mark.parametrize("name", LARGE_VIEWS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128], ids=str)
def test_views_larger_than_a_piece_are_digested_in_order(name: str, dtype: torch.dtype) -> None:
    view = LARGE_VIEWS[name](tensor_of(random_bytes(1_050_000 * dtype.itemsize), dtype))
    assert digest(view) == torch_digest(view) == digest_bytes(view.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_lazy_conjugates_and_negations_are_resolved(dtype: torch.dtype) -> None:
    tensor = tensor_of(random_bytes(999 * dtype.itemsize), dtype)
    for view in (tensor.conj(), tensor.conj()[1::2], tensor.conj().imag, tensor.conj().imag[:1]):
        assert digest(view) == torch_digest(view) == digest(view.resolve_conj().resolve_neg().contiguous())
    assert digest(tensor.conj()) != digest(tensor)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces, groups and blocks of weights so small that a test crosses all their borders."""
    for name, value in (("_GROUP", 2), ("_PIECE", 4 * CHUNK_BYTES), ("_BLOCK", 8)):
        monkeypatch.setattr(module, name, value)
    module._chunk_weights.cache_clear()
    yield
    module._chunk_weights.cache_clear()


BORDERS = random_bytes(21 * CHUNK_BYTES + 77)
BORDERS_DIGEST = digest_bytes(BORDERS)


def test_pieces_groups_and_blocks_do_not_change_the_digest(small_pieces: None) -> None:
    tensor = tensor_of(BORDERS)
    strided = torch.stack((tensor, tensor), dim=1)[:, 0]
    assert digest(tensor) == digest(strided) == torch_digest(tensor) == torch_digest(strided) == BORDERS_DIGEST


def test_weights_of_later_blocks_follow_the_definition() -> None:
    assert reference(BORDERS) == BORDERS_DIGEST
    assert module._chunk_weights(1)[:, 5].tolist() == [weight(seed, 4096 + 5) for seed in module.R_SEEDS]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_thread_count_does_not_change_the_digest(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert digest(tensor_of(BORDERS)) == torch_digest(tensor_of(BORDERS)) == BORDERS_DIGEST
    finally:
        torch.set_num_threads(before)


def test_concurrent_calls_do_not_disturb_each_other() -> None:
    flat = [tensor_of(random_bytes(size, seed=size)) for size in (8, 1024, 5 * CHUNK_BYTES, 2_500_001)]
    tensors = [*flat, *(tensor[1::2] for tensor in flat)] * 6
    expected = [digest(tensor) for tensor in tensors]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(digest, tensors)) == expected
        assert list(pool.map(torch_digest, tensors)) == expected


@pytest.mark.parametrize("take", [digest, torch_digest])
def test_the_tensor_is_neither_changed_nor_kept(take: Callable[[torch.Tensor], tuple[int, int]]) -> None:
    tensor = torch.nn.Parameter(torch.randn(1000))
    copy, version, references = tensor.detach().clone(), tensor._version, sys.getrefcount(tensor)
    assert take(tensor) == take(tensor[::1]) == take(copy)
    assert torch.equal(tensor, copy)
    assert (tensor._version, sys.getrefcount(tensor)) == (version, references)
    gone = weakref.ref(tensor.untyped_storage())
    del tensor
    assert gone() is None


def peak_growth(call: Callable[[], object]) -> int:
    """Bytes by which the resident memory of this process exceeded its start while `call` ran."""

    def status(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def test_the_storage_of_a_digested_tensor_can_still_be_resized() -> None:
    """As training does that frees what it computes again."""
    for tensor in (torch.ones(9), torch.ones(9, dtype=torch.bfloat16)[1:]):
        digest(tensor)
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of resident memory from /proc")
@pytest.mark.parametrize("take", [digest, torch_digest])
def test_scratch_stays_under_8_mib_whatever_the_size(take: Callable[[torch.Tensor], tuple[int, int]]) -> None:
    base = torch.ones(8 << 20, dtype=torch.complex64)
    views = [base, base.conj(), base.view(4096, 2048).t(), base[:1].expand(8 << 20), base.view(torch.uint8)[1:]]
    assert peak_growth(base.clone) > 60 << 20
    for view in views:
        assert peak_growth(lambda view=view: take(view)) < 8 << 20


class Wrapped(torch.Tensor):
    """A subclass may hold its data elsewhere."""


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("take", [digest, torch_digest])
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_plain_bytes_is_refused_with_a_reason(take: Callable[[torch.Tensor], object]) -> None:
    refused = {
        "a Wrapped, only a plain": torch.ones(3).as_subclass(Wrapped),
        "on meta": torch.ones(3, device="meta"),
        "dtype torch.qint8": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "layout torch.sparse_coo": torch.eye(3).to_sparse(),
        "nor nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }
    for reason, tensor in refused.items():
        with pytest.raises(TypeError, match=reason):
            take(tensor)
    with pytest.raises(ValueError, match="storage was freed"):
        take(freed())
