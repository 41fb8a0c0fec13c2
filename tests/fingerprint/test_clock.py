from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from samebits.fingerprint import clock as records
from samebits.fingerprint import reader
from samebits.fingerprint.clock import CLOCK, ClockPhase
from samebits.worker import clock as clocks
from samebits.worker.clock import Clock


class Stepping(Clock):
    """Its time is what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0

    def _now(self) -> int:
        return self.time

    def spend(self, nanoseconds: int) -> None:
        self.time += nanoseconds


def spent(clock: Clock, row: int = -1) -> dict[str, int]:
    return {
        phase.name: int(value) for phase, value in zip(ClockPhase, clock.rows()["spent"][row], strict=True) if value
    }


def test_each_nanosecond_of_a_step_belongs_to_one_phase() -> None:
    clock = Stepping()
    clock.begin(7)
    clock.spend(1)
    with clock.during(ClockPhase.BACKWARD):
        clock.spend(10)
        with clock.during(ClockPhase.FORWARD):
            clock.spend(100)
            with clock.during(ClockPhase.COMMUNICATION):
                clock.spend(1000)
            clock.spend(200)
        clock.spend(20)
    clock.spend(2)
    clock.end()

    assert spent(clock) == {"FORWARD": 300, "BACKWARD": 30, "COMMUNICATION": 1000, "OTHER": 3}
    assert clock.rows()["step"].tolist() == [7]


def test_a_phase_that_raises_is_left() -> None:
    clock = Stepping()
    clock.begin(1)
    with contextlib.suppress(KeyError), clock.during(ClockPhase.FORWARD):
        clock.spend(5)
        raise KeyError
    clock.spend(3)
    clock.end()
    assert spent(clock) == {"FORWARD": 5, "OTHER": 3}


def test_outside_a_step_nothing_is_timed() -> None:
    clock = Stepping()
    with clock.during(ClockPhase.COMMUNICATION):
        clock.spend(50)
    clock.begin(1)
    clock.spend(1)
    clock.end()
    with clock.during(ClockPhase.COMMUNICATION):
        clock.spend(50)
    clock.begin(2)
    clock.spend(2)
    clock.end()
    assert [spent(clock, row) for row in (0, 1)] == [{"OTHER": 1}, {"OTHER": 2}]


def test_a_checkpoint_is_noted_at_the_step_before_it() -> None:
    clock = Stepping()
    for step in (1, 2):
        clock.begin(step)
        clock.end()
        if step == 1:
            clock.saved()
    assert clock.rows()["saved"].tolist() == [1, 0]


@pytest.mark.parametrize("percent", [2.0, 50.0])
def test_a_stretched_step_takes_so_much_longer(percent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def look() -> int:
        """A look at the clock takes a microsecond, and nothing else does."""
        nonlocal now
        now += 1_000
        return now

    monkeypatch.setattr(time, "perf_counter_ns", look)
    clock = Clock()
    clock.begin(1)
    with clock.during(ClockPhase.DATA):
        now += 30_000_000
    with clock.during(ClockPhase.FORWARD):
        now += 100_000_000
    with clock.during(ClockPhase.OPTIMIZER):
        clock.stretch(percent)
    clock.end()
    found = spent(clock)
    # What it is stretched by; data loading is no part of a step.
    assert found["OPTIMIZER"] / found["FORWARD"] * 100 == pytest.approx(percent, rel=0.01)


def test_collectives_count_as_communication_where_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Stepping()
    monkeypatch.setattr(clocks, "_RUNNING", [clock])
    timed = clocks.communicating(lambda: clock.spend(9))
    clock.begin(1)
    with clock.during(ClockPhase.OPTIMIZER):
        timed()
    clock.end()
    assert spent(clock) == {"COMMUNICATION": 9}


def test_a_function_that_is_timed_gives_what_it_gave() -> None:
    def function(value: int, *, more: int) -> int:
        """Adds."""
        return value + more

    timed = clocks.communicating(function)
    assert (timed(1, more=2), timed.__name__, timed.__doc__) == (3, "function", "Adds.")


def test_every_collective_that_is_named_is_torchs() -> None:
    """A name that torch gives up would silently count as something else."""
    assert [name for name in clocks._COLLECTIVES if not hasattr(torch.distributed, name)] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "whole number"),
        (lambda data: data + data, "order"),
        (lambda data: data[: CLOCK.itemsize] + data[: CLOCK.itemsize], "order"),
    ],
)
def test_clock_records_that_no_clock_wrote_are_refused(change: object, said: str) -> None:
    rows = np.zeros(2, CLOCK)
    rows["step"] = [1, 2]
    with pytest.raises(ValueError, match=said):
        records.checked(memoryview(change(rows.tobytes())))  # type: ignore[operator]


@pytest.mark.parametrize(("field", "value"), [("spent", -1), ("saved", 2)])
def test_a_clock_record_out_of_range_is_refused(field: str, value: int) -> None:
    rows = np.zeros(2, CLOCK)
    rows["step"] = [1, 2]
    rows[field][1] = value
    with pytest.raises(ValueError, match="out of range"):
        records.checked(memoryview(rows.tobytes()))


def test_clock_records_are_read_as_they_were_written_and_leave_every_digest_alone(tmp_path: Path) -> None:
    import artifacts

    rows = np.zeros(4, CLOCK)
    rows["step"] = np.arange(1, 5)
    rows["spent"] = 5
    timed = artifacts.write_artifact(tmp_path / "a", clocks=lambda _: rows)
    plain = artifacts.write_artifact(tmp_path / "b")
    with_clocks, without = (reader.read(artifact.fingerprint(0), deep=True) for artifact in (timed, plain))

    assert with_clocks.fault is None
    assert np.array_equal(with_clocks.clocks, rows)
    assert len(without.clocks) == 0
    assert [block.chain for block in with_clocks.blocks] == [block.chain for block in without.blocks]


def test_a_flipped_bit_in_a_clock_record_is_seen(tmp_path: Path) -> None:
    import artifacts

    rows = np.zeros(4, CLOCK)
    rows["step"] = np.arange(1, 5)
    rows["spent"] = 0x1234567
    path = artifacts.write_artifact(tmp_path / "a", clocks=lambda _: rows).fingerprint(0)
    data = bytearray(path.read_bytes())
    data[data.index((0x1234567).to_bytes(8, "little"))] ^= 1
    path.write_bytes(data)
    assert "checksum differs" in str(reader.read(path, deep=False).fault)
