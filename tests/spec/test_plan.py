from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import builders
from samebits.spec.plan import Plan, PlanError, decode
from samebits.spec.questions import Fault, FaultKind
from samebits.spec.sections import Moe, Recipe

_KINDS: tuple[FaultKind, ...] = FaultKind.__args__  # type: ignore[attr-defined]
_FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(_KINDS),
    rank=st.none() | st.integers(0, 9999),
    step=st.none() | st.integers(1, 10**9),
    target=st.none() | st.text(),
)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    changes: dict[str, Any] = {
        "name": draw(st.text()),
        "seed": draw(st.integers(0, 2**70)),
        "optimizer": {"lr": draw(_FLOATS), "eps": draw(_FLOATS)},
        "capture": {
            "windows": draw(st.none() | st.lists(st.lists(st.integers(), min_size=2, max_size=2), max_size=3)),
            "ranks": draw(st.none() | st.lists(st.integers(), max_size=3)),
        },
        "determinism": {"environment": draw(st.dictionaries(st.text(), st.text(), max_size=3))},
        "pins": draw(st.dictionaries(st.text(), st.text(), max_size=3)),
        "model": {"moe": draw(st.none() | st.just(builders.moe())), "mtp": None},
    }
    if draw(st.booleans()):
        changes["data"] = builders.tokens(draw(st.text()))
    return dataclasses.replace(
        builders.plan(arm=draw(st.text()), **changes),
        restore=draw(st.none() | st.text()),
        faults=tuple(draw(st.lists(_FAULTS, max_size=3))),
    )


@settings(deadline=None, max_examples=60)
@given(plan=_plans())
def test_a_plan_survives_the_way_through_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(plan.to_json()).digest() == plan.digest()


@settings(deadline=None, max_examples=30)
@given(plan=_plans(), seed=st.integers(0, 2**32))
def test_a_plan_that_says_something_else_has_another_digest(plan: Plan, seed: int) -> None:
    other = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, seed=seed))

    assert (plan.digest() == other.digest()) == (plan.recipe.seed == seed)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("arm",), 3, "Plan.arm: is 3"),
        (("first_step",), True, "Plan.first_step: is True"),
        (("faults",), "x", "Plan.faults: is str, must be a list"),
        (("recipe",), 3, "Plan.recipe: is int, must be an object"),
        (("recipe", "precision"), "fp8", "Plan.recipe.precision: is 'fp8'"),
        (("recipe", "optimizer", "lr"), "1", "Plan.recipe.optimizer.lr: is '1'"),
        (("recipe", "pins"), [1], "Plan.recipe.pins: is list, must be an object"),
        (("recipe", "capture", "windows"), [[1, 2, 3]], "has 3 entries, must have 2"),
        (("recipe", "data"), None, "Plan.recipe.data: is NoneType, must be an object"),
        (("recipe", "extra"), 1, "Plan.recipe: unknown key 'extra'"),
        (("format",), 99, "plan: format is 99, must be 1; make it again with `samebits plan`"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_place(path: tuple[str, ...], value: object, text: str) -> None:
    body = json.loads(builders.plan().to_json())
    section = body
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value

    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(body))

    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_what_is_not_a_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="make it again with `samebits plan`"):
        Plan.from_json(text)


def test_a_missing_key_is_refused() -> None:
    body = builders.document(steps=...)

    with pytest.raises(PlanError, match="steps"):
        decode(Recipe, body)


def test_whole_numbers_stand_for_numbers() -> None:
    moe = decode(Moe, builders.moe(load_balancing_coefficient=1))

    assert moe.load_balancing_coefficient == 1.0
    assert isinstance(moe.load_balancing_coefficient, float)


def test_the_rung_falls_to_metrics_outside_the_capture_limits() -> None:
    plan = builders.plan(capture={"every": 3, "windows": [[1, 6], [9, 12]], "ranks": [1]})

    assert {step for step in range(1, 13) if plan.rung_at(1, step) == "state"} == {3, 6, 9, 12}
    assert all(plan.rung_at(0, step) == "metrics" for step in range(1, 13))


def test_the_last_step_is_captured_whatever_the_period() -> None:
    plan = builders.plan(capture={"every": 5})

    assert [step for step in range(1, 13) if plan.rung_at(0, step) == "state"] == [5, 10, 12]


def test_a_checkpoint_is_saved_at_multiples_of_every() -> None:
    plan = builders.plan(checkpoint={"every": 4, "resume_from": 4})

    assert [step for step in range(1, 13) if plan.saves_at(step)] == [4, 8, 12]
