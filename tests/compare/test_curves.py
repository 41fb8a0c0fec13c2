"""Curves: exact values by step, and their distance counted in the metric's own dtype."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import artifacts
import evidence
from samebits.compare.certify import certify
from samebits.compare.compare import compare
from samebits.compare.curves import Point, curves, distance


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_next_float32_is_one_ulp_away_on_either_side(value: float) -> None:
    for towards in (math.inf, -math.inf):
        with np.errstate(over="ignore"):
            following = float(np.nextafter(np.float32(value), np.float32(towards)))
        if math.isfinite(following) and value and following:  # from or to zero, its two signs lie in between
            assert distance(Point(value, "float32"), Point(following, "float32")) == 1


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 1000))
def test_distances_in_float64_add_up(value: float, steps: int) -> None:
    following = _walked(value, steps)
    if math.isfinite(following) and (value > 0) == (following > 0) and value and following:
        assert distance(Point(value, "float64"), Point(following, "float64")) == steps


def _walked(value: float, steps: int) -> float:
    for _ in range(steps):
        value = math.nextafter(value, math.inf)
    return value


@pytest.mark.parametrize(
    ("dtype", "first", "second", "ulps"),
    [
        ("float32", 1.0, 1.0 + 2**-23, 1),
        ("bfloat16", 1.0, 1.0 + 2**-7, 1),
        ("float16", 1.0, 1.0 + 2**-10, 1),
        ("float64", 1.0, 1.0 + 2**-52, 1),
        ("float", 1.0, 1.0 + 2**-52, 1),
        ("int", 5.0, 9.0, 4),
        ("float32", 1.0, 1.0, 0),
        ("float32", 0.0, -0.0, 1),
        ("float32", 2.0**-149, -(2.0**-149), 3),
        ("float32", 1.0, math.nan, None),
        ("float32", math.inf, math.inf, None),
    ],
)
def test_a_distance_is_counted_in_the_dtype(dtype: str, first: float, second: float, ulps: int | None) -> None:
    assert distance(Point(first, dtype), Point(second, dtype)) == ulps
    assert distance(Point(second, dtype), Point(first, dtype)) == ulps


def test_another_dtype_or_a_missing_side_has_no_distance() -> None:
    assert distance(Point(1.0, "float32"), Point(1.0, "float64")) is None
    assert distance(None, Point(1.0, "float32")) is None


def test_curves_hold_exact_values_of_both_arms(tmp_path: Path) -> None:
    moved = float(np.nextafter(np.float32(4.7), np.float32(9)))
    changes = [
        artifacts.valued("lm loss", float(np.float32(4.7)), step=3),
        artifacts.valued("grad-norm", math.nan, step=4),
    ]
    reference, twin = evidence.pair(tmp_path, change=[*changes, artifacts.valued("lm loss", moved, step=3)])
    found = {
        curve.name: curve for curve in curves(certify(reference), certify(twin), compare(reference, twin).divergence)
    }
    assert list(found) == ["lm loss", "grad-norm", "learning-rate"]
    assert found["lm loss"].steps == (1, 2, 3, 4)
    assert found["lm loss"].candidate[2] == moved
    assert found["lm loss"].ulps[:3] == (0, 0, 1)
    assert found["grad-norm"].ulps == (0, 0, 0, None)
    assert math.isnan(found["grad-norm"].candidate[3] or 0.0)


def test_a_resumed_arm_has_no_values_before_its_restart(tmp_path: Path) -> None:
    reference = evidence.written(tmp_path / "reference")
    resumed = evidence.written(tmp_path / "resumed", arm="resumed", restored=2)
    found = curves(certify(reference), certify(resumed), None)[0]
    assert (found.steps, found.candidate[:2], found.ulps) == ((1, 2, 3, 4), (None, None), (None, None, 0, 0))


def test_the_curve_is_of_the_rank_where_the_arms_part(tmp_path: Path) -> None:
    reference, twin = evidence.pair(tmp_path, change=artifacts.valued("lm loss", 9.0, step=2, ranks=(0,)))
    found = curves(certify(reference), certify(twin), compare(reference, twin).divergence)[0]
    assert found.candidate[1] == 9.0
