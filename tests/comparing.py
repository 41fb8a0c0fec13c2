"""Any place in a synthetic artifact, and a twin that is compared with its reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import artifacts
import evidence
from artifacts import At
from entries import Entry
from samebits.compare.collect import collect
from samebits.compare.compare import compare
from samebits.compare.results import Comparison
from samebits.compare.verify import expected_blocks, expected_rung
from samebits.fingerprint.paths import Artifact, ArtifactError

WORLD = 3
SOME = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def twin(**changes: Any) -> Artifact:
    return evidence.written(evidence.scratch() / "twin-1", **{"arm": "twin-1", "world": WORLD, **changes})


def against(reference: Artifact, **changes: Any) -> Comparison:
    return compare(reference, twin(**changes))


@st.composite
def places(draw: st.DrawFn) -> tuple[At, Entry, int]:
    """Any record of any block of any rank, and its occurrence."""
    plan = artifacts.make_plan(world=WORLD)
    rank = draw(st.integers(0, WORLD - 1))
    moment, step = draw(st.sampled_from(list(expected_blocks(plan))))
    at = At(rank, moment, step, expected_rung(plan, rank, moment, step))
    entries = list(artifacts.block_entries(at))
    number = draw(st.integers(0, len(entries) - 1))
    return at, entries[number], sum(entry.site == entries[number].site for entry in entries[:number])


def place_of(comparison: Comparison) -> tuple[object, ...]:
    found = comparison.divergence
    assert found is not None
    first = found.ranks[0]
    return found.moment, found.step, first.rank, first.first.item, first.first.occurrence, first.role


def refusal(artifact: Artifact) -> str:
    """Return the message with which collect refuses; it leaves no manifest and no table."""
    with pytest.raises(ArtifactError) as caught:
        collect(artifact.folder)
    assert not artifact.manifest.exists()
    assert not artifact.table.exists()
    return str(caught.value)
