"""Measured numbers as text: no digit that the interval does not support."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import judgement_costs
from samebits.overhead.results import PhaseCost
from samebits.overhead.statistics import Estimate, Interval, estimate
from samebits.report import figures


def found(percent: float, low: float, high: float) -> Estimate:
    half = (high - low) / 2
    return Estimate(
        percent=percent,
        blocks=8,
        interval=Interval(low=low, high=high, half_width=half, spread=half, detectable=half * 1.2),
    )


@pytest.mark.parametrize(
    ("estimated", "text"),
    [
        (found(3.123, 2.801, 3.439), "3.1 % (95 % interval 2.8 to 3.4 %)"),
        (found(3.123, 3.101, 3.149), "3.12 % (95 % interval 3.10 to 3.15 %)"),
        (found(3.36, -87.76, 773.08), "3 % (95 % interval −88 to 773 %)"),
        (found(17.5, -96.4, 3701.7), "18 % (95 % interval −96 to 3,702 %)"),
        (found(-0.001, -0.6, 0.6), "0.0 % (95 % interval −0.6 to 0.6 %)"),
        (estimate(np.array([0.03])), "3.0 % (interval none: one block has none)"),
        (
            estimate(np.array([0.03, 0.03])),
            "3.0 % (interval none: blocks agree more closely than clocks can)",
        ),
    ],
)
def test_an_estimate_has_as_many_digits_as_its_interval_supports(estimated: Estimate, text: str) -> None:
    assert figures.estimate(estimated) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (4.2, 5.04, "4.20 to 5.04 %"),
        (4.2, 4.96, "4.20 to 4.96 %"),
        (4.2, 5.2, "4.2 to 5.2 %"),
        (5.04, 6, "5.04 to 6.00 %"),
    ],
)
def test_rounding_moves_no_end_across_the_limit(low: float, high: float, text: str) -> None:
    assert figures.interval(found((low + high) / 2, low, high), limit=5) == text


@pytest.mark.parametrize(("low", "high"), [(0.04, 0.8), (-0.8, -0.04)])
def test_rounding_moves_no_end_across_zero(low: float, high: float) -> None:
    assert "0.04" in figures.interval(found((low + high) / 2, low, high))


@given(st.floats(-99, 1e6), st.floats(0, 1e6))
def test_never_more_than_two_decimals(low: float, width: float) -> None:
    text = figures.estimate(found(low + width / 2, low, low + width), limit=5) + figures.size(width)
    assert not re.search(r"\.\d{3}", text)
    assert not re.search(r"−0(\.0+)? ", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2513, "251.3 ms"),
        (0.07149983, "71.50 ms"),
        (1.23456, "1.235 s"),
        (0.99999, "1.000 s"),
        (0.0009999999, "1.000 ms"),
        (143.26, "143.3 s"),
        (3e-5, "30.00 µs"),
        (0.0, "0 ms"),
        (None, "–"),
    ],
)
def test_a_step_time_has_four_digits_so_that_two_settings_can_be_told_apart(seconds: float | None, text: str) -> None:
    assert figures.step_time(seconds) == text


@pytest.mark.parametrize(
    ("days", "clock", "text"),
    [
        (1416.2, "cuda events", "about 1,400 GPU-days more"),
        (150_000.0, "cuda events", "about 150,000 GPU-days more"),
        (6.71, "host", "about 6.7 rank-days more"),
        (-6.71, "host", "about 6.7 rank-days fewer"),
        (-0.008, "host", "less than 0.1 rank-days either way"),
        (0.0, "unknown", "less than 0.1 rank-days either way"),
    ],
)
def test_days_read_well_whatever_their_size_and_sign(days: float, clock: str, text: str) -> None:
    cost = dataclasses.replace(judgement_costs.gone(), clock=clock)
    assert figures.days(cost, days) == text


def test_points_follow_the_same_rule() -> None:
    phase = PhaseCost(phase="forward", reference=0.1, candidate=0.1, points=0.123, low=-0.3, high=0.5)
    assert (figures.points(phase), figures.points_interval(phase)) == ("0.1", "−0.3 to 0.5")
    alone = dataclasses.replace(phase, low=None, high=None)
    assert (figures.points(alone), figures.points_interval(alone)) == ("0.1", "none")
