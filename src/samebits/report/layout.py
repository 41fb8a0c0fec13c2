"""How a judgement is arranged on a page: what belongs together, what comes first, what starts open."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.compare.results import Comparison, Curve, Divergence, GateResult, WaivedItem
from samebits.gates.judgement import ArmSummary, Judgement, PinRow
from samebits.report.words import is_planted, place_text
from samebits.spec.pins import Deviation

_OPEN_FINDINGS = 3
_SHORT_PIN_GROUP = 6
"""Lines."""

Pair = tuple[str, str]
"""Arms of a comparison."""


@dataclass(frozen=True, kw_only=True)
class FindingCard:
    """One divergence. gates: those that rest on it. planted: its candidate is a control arm. counted: one of the gates
    did not pass, so it speaks against the recipe or against the proof."""

    comparison: Comparison
    divergence: Divergence
    gates: tuple[GateResult, ...]
    planted: bool
    counted: bool
    open: bool

    @property
    def uncovered(self) -> int:
        """Ranks in the groups that are not spelled out one by one."""
        return max(0, sum(group.count for group in self.divergence.groups) - len(self.divergence.ranks))


@dataclass(frozen=True, kw_only=True)
class DeviationTable:
    """Deviations that these pairs of arms share."""

    pairs: tuple[Pair, ...]
    rows: tuple[Deviation, ...]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A message, and the pairs of arms or the arm that it is about."""

    about: tuple[str, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class WaiverNote:
    """arms: candidates that it was applied to."""

    item: WaivedItem
    arms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CurveGroup:
    """Curves of one candidate against the reference. curves: each with a key that is unique on the page."""

    arm: str
    curves: tuple[tuple[str, Curve], ...]
    open: bool


@dataclass(frozen=True, kw_only=True)
class PinGroup:
    name: str
    rows: tuple[PinRow, ...]
    mixed: int
    """Pins that ranks observed differently."""
    open: bool


def pair(comparison: Comparison) -> Pair:
    return comparison.reference_arm, comparison.candidate_arm


def findings(judgement: Judgement) -> list[FindingCard]:
    """Each divergence once. Those that count come first, the first few open."""
    resting: dict[Comparison, list[GateResult]] = {}
    for gate in judgement.gates:
        for comparison in gate.comparisons:
            if comparison.divergence:
                resting.setdefault(comparison, []).append(gate)
    entries = sorted(resting.items(), key=lambda entry: all(gate.verdict == "pass" for gate in entry[1]))
    return [_finding(comparison, gates, index) for index, (comparison, gates) in enumerate(entries)]


def _finding(comparison: Comparison, gates: list[GateResult], index: int) -> FindingCard:
    if comparison.divergence is None:
        raise ValueError(f"{comparison.candidate_arm}: no divergence, must have one to be a finding")
    counted = any(gate.verdict != "pass" for gate in gates)
    return FindingCard(
        comparison=comparison,
        divergence=comparison.divergence,
        gates=tuple(gates),
        planted=all(is_planted(gate, comparison) for gate in gates),
        counted=counted,
        open=counted and index < _OPEN_FINDINGS,
    )


def deviation_tables(judgement: Judgement) -> list[DeviationTable]:
    """Pairs with the same deviations share a table."""
    tables: dict[tuple[Deviation, ...], list[Pair]] = {}
    for comparison in _comparisons(judgement):
        if comparison.deviations:
            tables.setdefault(comparison.deviations, []).append(pair(comparison))
    return [DeviationTable(pairs=tuple(dict.fromkeys(pairs)), rows=rows) for rows, pairs in tables.items()]


def troubles(judgement: Judgement) -> list[Trouble]:
    """Problems of comparisons and arms, each message once."""
    found: dict[str, list[str]] = {}
    for comparison in _comparisons(judgement):
        for message in comparison.problems:
            found.setdefault(message, []).append(" and ".join(pair(comparison)))
    for arm in judgement.arms:
        if arm.problem:
            found.setdefault(arm.problem, []).append(arm.arm)
    return [Trouble(about=tuple(dict.fromkeys(about)), message=message) for message, about in found.items()]


def waivers(judgement: Judgement) -> list[WaiverNote]:
    """Each waiver and state of it once, those that do not hold first, unused ones last."""
    found: dict[WaivedItem, list[str]] = {}
    for comparison in _comparisons(judgement):
        for item in comparison.waived:
            found.setdefault(item, []).append(comparison.candidate_arm)
    entries = sorted(found.items(), key=lambda entry: (entry[0].holds, not entry[0].seen))
    return [WaiverNote(item=item, arms=tuple(dict.fromkeys(arms))) for item, arms in entries]


def curve_groups(judgement: Judgement) -> list[CurveGroup]:
    """By candidate, in the judgement's order. Open: the first, and those with a difference that nobody planted."""
    groups: dict[str, list[tuple[str, Curve]]] = {}
    for index, curve in enumerate(judgement.curves):
        groups.setdefault(curve.candidate_arm, []).append((f"curve-{index}", curve))
    return [
        CurveGroup(arm=arm, curves=tuple(curves), open=index == 0 or _worth_a_look(arm, curves))
        for index, (arm, curves) in enumerate(groups.items())
    ]


def _worth_a_look(arm: str, curves: list[tuple[str, Curve]]) -> bool:
    return not arm.startswith("control-") and any(ulps != 0 for _, curve in curves for ulps in curve.ulps)


def pin_groups(judgement: Judgement) -> list[PinGroup]:
    groups: dict[str, list[PinRow]] = {}
    for row in judgement.pins:
        groups.setdefault(row.pin.partition(".")[0], []).append(row)
    return [_pin_group(name, rows) for name, rows in groups.items()]


def _pin_group(name: str, rows: list[PinRow]) -> PinGroup:
    mixed = sum(len(row.values) > 1 for row in rows)
    return PinGroup(
        name=name, rows=tuple(rows), mixed=mixed, open=sum(len(row.values) for row in rows) <= _SHORT_PIN_GROUP
    )


def places(judgement: Judgement) -> list[tuple[str, tuple[str, ...]]]:
    """(nodes and job, arms that ran there), in the order of the arms; without those of which it is not known."""
    found: dict[str, list[str]] = {}
    for arm in judgement.arms:
        if place := place_text(arm):
            found.setdefault(place, []).append(arm.arm)
    return [(place, tuple(arms)) for place, arms in found.items()]


def example(judgement: Judgement) -> tuple[ArmSummary, ArmSummary] | None:
    """Two arms to compare by hand: the reference and the first other one."""
    if len(judgement.arms) < 2:
        return None
    reference = next((arm for arm in judgement.arms if arm.arm == "reference"), judgement.arms[0])
    return reference, next(arm for arm in judgement.arms if arm is not reference)


def _comparisons(judgement: Judgement) -> list[Comparison]:
    """Each once."""
    return list(dict.fromkeys(comparison for gate in judgement.gates for comparison in gate.comparisons))
