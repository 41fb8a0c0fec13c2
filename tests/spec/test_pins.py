"""Pins: what counts as a deviation, and on which ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts import make_pins
from samebits.spec.pins import ABSENT, Deviation, Pins, deviations, undeclared

GROUPS = ["software", "libraries", "hardware", "runtime", "environment", "code", "data"]
TEXTS = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)
PINS = st.builds(Pins, **dict.fromkeys([*GROUPS, "placement"], TEXTS))


@given(pins=st.dictionaries(st.integers(0, 5), PINS, max_size=4))
def test_equal_pins_do_not_deviate(pins: dict[int, Pins]) -> None:
    assert deviations(pins, pins) == []


@pytest.mark.parametrize("group", GROUPS)
def test_a_difference_in_any_group_is_a_deviation(group: str) -> None:
    reference, candidate = make_pins(0, **{group: {"x": "1"}}), make_pins(0, **{group: {"x": "2"}})
    assert deviations({0: reference}, {0: candidate}) == [Deviation(f"{group}.x", "1", "2", (0,))]


def test_another_place_is_no_deviation() -> None:
    assert deviations({0: make_pins(0)}, {0: make_pins(8, placement={"host": "far away"})}) == []


def test_a_pin_that_one_side_lacks_is_a_deviation() -> None:
    some, none = make_pins(0, environment={"NCCL_ALGO": "Ring"}), make_pins(0)
    assert deviations({0: some}, {0: none}) == [Deviation("environment.NCCL_ALGO", "Ring", ABSENT, (0,))]
    assert deviations({0: none}, {0: some}) == [Deviation("environment.NCCL_ALGO", ABSENT, "Ring", (0,))]


def test_equal_deviations_of_several_ranks_are_one() -> None:
    reference = {rank: make_pins(rank) for rank in range(4)}
    versions = ["2.13.0", "2.14.0", "2.14.0", "2.12.0"]
    candidate = {rank: make_pins(rank, software={"torch": version}) for rank, version in enumerate(versions)}
    assert deviations(reference, candidate) == [
        Deviation("software.torch", "2.13.0", "2.12.0", (3,)),
        Deviation("software.torch", "2.13.0", "2.14.0", (1, 2)),
    ]


def test_declared_software_must_be_observed_on_every_rank() -> None:
    observed = {0: make_pins(0), 1: make_pins(1, software={"torch": "2.14.0"}), 2: Pins()}
    assert undeclared({"torch": "2.13.0"}, observed) == [
        Deviation("software.torch", "2.13.0", ABSENT, (2,)),
        Deviation("software.torch", "2.13.0", "2.14.0", (1,)),
    ]
    assert undeclared({}, observed) == []


def test_a_node_has_the_schedulers_name_before_the_hosts() -> None:
    assert make_pins(0, placement={"host": "container", "node": "n7"}).node == "n7"
    assert make_pins(0, placement={"host": "n7"}).node == "n7"
    assert (Pins().node, Pins().job, Pins().machine) == ("", "", frozenset())
