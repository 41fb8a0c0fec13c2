"""The order of samples: the same for a seed, whole for an epoch, and independent of where it was interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.spec.sections import Data, StreamData, TokenData
from samebits.worker.trainer.data import DataError, Sampler, Shape, SyntheticSamples, TokenFile, file_digest

SHAPE = Shape(sequence_length=5, vocabulary=50)
CORPUS = Path(__file__).parents[3] / "data" / "tiny-corpus.txt"
STREAM = StreamData(source="stream", stream_seed=3, micro_batch=2, global_batch=8)


def token_data(path: Path, **changes: Any) -> TokenData:
    values = {"dtype": "uint16", "sha256": "", "shuffle_seed": 5, "micro_batch": 2, "global_batch": 8}
    return TokenData(source="tokens", path=str(path), **(values | changes))


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """21 samples of 6 tokens and a rest; the first token of a sample is its number."""
    path = tmp_path_factory.mktemp("data") / "tokens"
    windows = np.zeros((21, 6), dtype="<u2")
    windows[:, 0] = np.arange(21)
    path.write_bytes(windows.tobytes() + b"\x01\x00" * 3)
    return path


def sampler(data: Data, rank: int = 0, ranks: int = 1) -> Sampler:
    return Sampler(data, SHAPE, rank, ranks, torch.device("cpu"))


def drawn(of: Sampler, count: int) -> list[list[int]]:
    return [of.next_micro_batch()["tokens"].flatten().tolist() for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(before=st.integers(0, 30), after=st.integers(1, 30), ranks=st.sampled_from([1, 2, 4]), stream=st.booleans())
def test_a_restored_position_goes_on_as_if_never_interrupted(
    numbered: Path, before: int, after: int, ranks: int, stream: bool
) -> None:
    data = STREAM if stream else token_data(numbered)
    whole = sampler(data, ranks - 1, ranks)
    expected = drawn(whole, before + after)[before:]
    first = sampler(data, ranks - 1, ranks)
    drawn(first, before)
    second = sampler(data, ranks - 1, ranks)
    second.restore(first.state())
    assert drawn(second, after) == expected
    assert second.state() == whole.state()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_each_global_batch_without_overlap_in_the_documented_order(ranks: int) -> None:
    samplers = [sampler(STREAM, rank, ranks) for rank in range(ranks)]
    for batch in range(3):
        seen: list[int] = []
        for each in samplers:
            for _ in range(each.micro_batches):
                seen += each.numbers()
                each.next_micro_batch()
        assert seen == list(range(batch * 8, batch * 8 + 8))


def test_an_epoch_is_a_permutation_and_the_next_one_another(numbered: Path) -> None:
    source = TokenFile(token_data(numbered), SHAPE)
    epochs = [[int(source.sample(epoch * 21 + place)[0]) for place in range(21)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_shuffle_seed_changes_the_order(numbered: Path) -> None:
    orders = [TokenFile(token_data(numbered, shuffle_seed=seed), SHAPE).order(0).tolist() for seed in (1, 2)]
    assert orders[0] != orders[1]


def test_the_position_counts_samples_over_all_ranks(numbered: Path) -> None:
    one = sampler(token_data(numbered), 1, 2)
    drawn(one, one.micro_batches * 3)
    assert one.state() == {"position": 24, "micro_batch": 0, "epoch": 1, "epoch_samples": 21}


def test_a_skipped_sample_shifts_everything_after_it() -> None:
    skipped, usual = sampler(STREAM), sampler(STREAM)
    skipped.position += 1
    assert list(skipped.numbers()) == [number + 1 for number in usual.numbers()]


def test_labels_are_tokens_shifted_by_one_and_positions_count_up(numbered: Path) -> None:
    batch = sampler(token_data(numbered)).next_micro_batch()
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()} == {
        "tokens": (torch.int64, (2, 5)),
        "labels": (torch.int64, (2, 5)),
        "loss_mask": (torch.float32, (2, 5)),
        "position_ids": (torch.int64, (2, 5)),
    }


def test_the_stream_is_the_same_on_every_machine() -> None:
    assert SyntheticSamples(7, Shape(7, 1000)).sample(12).tolist() == [378, 946, 234, 336, 135, 999, 585, 288]


@given(number=st.integers(0, 2**40), vocabulary=st.integers(1, 2**31))
def test_stream_tokens_stay_inside_the_vocabulary(number: int, vocabulary: int) -> None:
    ids = SyntheticSamples(1, Shape(16, vocabulary)).sample(number)
    assert ids.min() >= 0
    assert ids.max() < vocabulary


def test_bytes_of_the_shipped_corpus_are_its_tokens() -> None:
    data = token_data(CORPUS, dtype="uint8")
    source = TokenFile(data, Shape(5, 256))
    text = CORPUS.read_bytes()
    start = int(source.order(0)[4]) * 6
    assert bytes(source.sample(4).astype(np.uint8)) == text[start : start + 6]


def test_the_file_digest_is_that_of_sha256sum() -> None:
    assert file_digest(CORPUS) == hashlib.sha256(CORPUS.read_bytes()).hexdigest()


def test_an_id_outside_the_vocabulary_is_refused_with_its_place(numbered: Path) -> None:
    source = TokenFile(token_data(numbered), dataclasses.replace(SHAPE, vocabulary=20))
    with pytest.raises(DataError, match=r"tokens 120 to 125 hold id 20 .* must be below model.vocabulary \(20\)"):
        [source.sample(number) for number in range(21)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x00" * 7, "7 bytes, must be a multiple of 2"),
        (b"\x00" * 10, "holds 5 tokens, must hold at least 6"),
    ],
)
def test_a_file_that_cannot_hold_a_sample_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        sampler(token_data(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such file"):
        sampler(token_data(tmp_path / "nowhere"))


def test_a_position_over_other_data_is_refused(numbered: Path) -> None:
    state = sampler(token_data(numbered)).state()
    with pytest.raises(DataError, match="21 samples an epoch, the data here has 0"):
        sampler(STREAM).restore(state)


def test_a_batch_that_does_not_split_evenly_is_refused() -> None:
    with pytest.raises(DataError, match=r"global_batch is 8, must be divisible by .*\(2 x 3\)"):
        sampler(STREAM, 0, 3)
