"""What disturbs a rank from within: it is there, on the rank it is meant for, and changes nothing."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import builders
from samebits.fingerprint import conditions
from samebits.spec.plan import Plan
from samebits.spec.sections import StreamData, TokenData
from samebits.spec.stressors import NAMES, Stressor
from samebits.worker import jitter
from samebits.worker.trainer.data import Ahead, Ids, Sampler, SampleSource, Shape, SyntheticSamples, TokenFile

SHAPE = Shape(sequence_length=4, vocabulary=256)


def plan(*stress: Stressor) -> Plan:
    return dataclasses.replace(builders.plan("varied"), stress=stress)


def training(of: Plan, **more: Any) -> Any:
    return types.SimpleNamespace(plan=of, step=1, device=torch.device("cpu"), **more)


def test_without_variations_nothing_watches(tmp_path: Path) -> None:
    assert jitter.watchers(plan(), 0, tmp_path) == []
    outside = tuple(name for name in NAMES if name not in ("addresses", "loader-threads", "delayed-rank"))
    assert jitter.watchers(plan(*outside), 0, tmp_path) == []


def test_one_rank_is_delayed_and_always_the_same(tmp_path: Path) -> None:
    wanted = plan("delayed-rank")
    watched = [bool(jitter.watchers(wanted, rank, tmp_path)) for rank in range(2)]
    assert sorted(watched) == [False, True]
    assert watched.index(True) == jitter.delayed_rank(wanted)


def pauses(wanted: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    (delay,) = jitter.watchers(wanted, jitter.delayed_rank(wanted), folder)
    own = training(wanted)
    for own.step in range(1, 13):
        delay.on_step_begin(own)
        delay.on_batch(own, 0, {})
        assert delay.on_loss(own, 0, torch.tensor(1.5)) == 1.5
        delay.on_gradients(own)
        delay.on_step_end(own, {})
    delay.on_final(own)
    return slept


def test_it_sleeps_at_random_points_the_same_in_every_run_and_says_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = pauses(plan("delayed-rank"), tmp_path / "a", monkeypatch)
    assert 5 < len(first) < 40
    assert all(0.002 <= pause <= 0.040 for pause in first)
    assert pauses(plan("delayed-rank"), tmp_path / "b", monkeypatch) == first
    (note,) = conditions.read(tmp_path / "a")
    assert note.how == f"slept {len(first)} times, {sum(first):.2f} s in all"


def test_no_random_stream_of_the_training_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def streams() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]

    before = streams()
    pauses(plan("delayed-rank"), tmp_path, monkeypatch)
    for watcher in jitter.watchers(plan("addresses"), 0, tmp_path):
        watcher.on_start(training(plan()))
    assert streams() == before


def test_odd_allocations_are_kept_while_the_rank_lives_and_differ_by_rank(tmp_path: Path) -> None:
    (own,) = jitter.watchers(plan("addresses"), 0, tmp_path)
    (other,) = jitter.watchers(plan("addresses"), 1, tmp_path)
    assert isinstance(own, jitter.OddAllocations)
    assert isinstance(other, jitter.OddAllocations)
    sizes = [tensor.numel() for tensor in own._tensors]
    assert len(sizes) == len(own._kept) > 3
    assert [tensor.numel() for tensor in other._tensors] == [size + 1 for size in sizes]


def sources(folder: Path) -> dict[str, SampleSource]:
    corpus = folder / "corpus"
    corpus.write_bytes(bytes(range(256)))
    file = TokenData(
        source="tokens", path=str(corpus), dtype="uint8", sha256="", shuffle_seed=3, micro_batch=2, global_batch=8
    )
    return {"stream": SyntheticSamples(7, SHAPE), "tokens": TokenFile(file, SHAPE)}


@pytest.mark.parametrize("kind", ["stream", "tokens"])
def test_data_drawn_ahead_is_the_same_data_drawn_by_other_threads(kind: str, tmp_path: Path) -> None:
    """Over epochs of 51 samples, in the steps of a data-parallel rank."""
    source, drawn_by = sources(tmp_path)[kind], set()

    class Watched:
        epoch_samples = source.epoch_samples

        def sample(self, number: int) -> Ids:
            drawn_by.add(threading.get_ident())
            time.sleep(0.001 * (number % 3))
            return source.sample(number)

    ahead, alone = Ahead(Watched(), 3), sources(tmp_path)[kind]
    for number in [*range(40, 130), *range(130, 300, 7)]:
        assert np.array_equal(ahead.sample(number), alone.sample(number)), number
    assert len(drawn_by) == 3
    assert threading.get_ident() not in drawn_by
    assert len(ahead._drawn) <= 12


def test_a_sampler_draws_ahead_from_where_it_stands(tmp_path: Path) -> None:
    data = StreamData(source="stream", stream_seed=7, micro_batch=2, global_batch=8)
    ahead, alone = (Sampler(data, SHAPE, 1, 2, torch.device("cpu")) for _ in range(2))
    for sampler in (ahead, alone):
        sampler.next_micro_batch()
    (watcher,) = jitter.watchers(plan("loader-threads"), 0, tmp_path)
    watcher.on_start(training(plan(), sampler=ahead))
    assert isinstance(ahead._source, Ahead)
    for _ in range(5):
        ours, theirs = ahead.next_micro_batch(), alone.next_micro_batch()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert ahead.state() == alone.state()
    (note,) = conditions.read(tmp_path)
    assert (note.stressor, note.in_force) == ("loader-threads", True)
