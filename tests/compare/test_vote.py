"""The vote: from three comparable arms on, which one is odd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import artifacts
import evidence
from samebits.compare.certify import certify
from samebits.compare.vote import Voter, vote
from samebits.fingerprint.paths import Artifact


def voters(folder: Path, **changes: dict[str, Any]) -> list[Voter]:
    """changes: by arm."""
    found = []
    for arm, change in changes.items():
        artifact = evidence.written(folder / arm, **{"arm": arm, "world": 3, **change})
        found.append(Voter(arm, certify(Artifact(artifact.folder))))
    return found


@pytest.mark.parametrize("odd", ["reference", "twin-1", "twin-2"])
def test_the_odd_one_of_three_is_named_with_ranks_and_hosts(tmp_path: Path, odd: str) -> None:
    change = {
        "change": artifacts.altered("parameter:w0", rank=2, step=3),
        "pins": evidence.on_rank(2, placement={"host": "node-9"}),
    }
    names = {name: change if name == odd else {} for name in ("reference", "twin-1", "twin-2")}
    found = vote(voters(tmp_path, **names))
    assert found is not None
    assert (found.odd, found.moment, found.step, found.ranks, found.hosts) == (odd, "step", 3, "2", ("node-9",))
    assert found.arms == ("reference", "twin-1", "twin-2")
    assert f"{odd} is odd" in found.explanation


def test_arms_that_agree_hold_no_vote(tmp_path: Path) -> None:
    assert vote(voters(tmp_path, **{"reference": {}, "twin-1": {}, "twin-2": {}})) is None


def test_two_arms_hold_no_vote(tmp_path: Path) -> None:
    change = {"change": artifacts.altered("parameter:w0", rank=2, step=3)}
    assert vote(voters(tmp_path, **{"reference": {}, "twin-1": change})) is None


def test_three_that_all_differ_have_no_odd_one(tmp_path: Path) -> None:
    changes = {
        f"twin-{bit}": {"change": artifacts.altered("parameter:w0", rank=2, step=3, bit=bit)} for bit in range(3)
    }
    found = vote(voters(tmp_path, **changes))
    assert found is not None
    assert (found.odd, found.hosts) == (None, ())
    assert "no majority" in found.explanation


def test_two_against_two_have_no_odd_one(tmp_path: Path) -> None:
    change = {"change": artifacts.altered("parameter:w0", rank=2, step=3)}
    found = vote(voters(tmp_path, **{"reference": {}, "twin-1": change, "twin-2": {}, "twin-3": change}))
    assert found is not None
    assert found.odd is None


def test_a_resumed_arm_votes_on_the_steps_that_it_has(tmp_path: Path) -> None:
    late = {"change": artifacts.altered("parameter:w0", rank=0, step=4)}
    found = vote(voters(tmp_path / "late", **{"reference": late, "twin-1": {}, "resumed": {"restored": 2}}))
    assert found is not None
    assert (found.odd, found.step, len(found.arms)) == ("reference", 4, 3)
    early = {"change": artifacts.altered("parameter:w0", rank=0, step=1)}
    found = vote(voters(tmp_path / "early", **{"reference": early, "twin-1": {}, "resumed": {"restored": 2}}))
    assert found is not None
    assert (found.odd, found.step, found.arms) == (None, 1, ("reference", "twin-1"))
    assert "no third arm" in found.explanation
