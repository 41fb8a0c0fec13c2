"""What the report of one recipe is made from: its gates' results, and the arms and pins that they rest on."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.compare.results import Curve, Finding, GateResult, Vote
from samebits.overhead.results import Cost
from samebits.spec.verdicts import Verdict


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """One arm as the report lists it. nodes: such as `n[001-304]`. job: of the scheduler, empty without one. seconds:
    wall time from first to last block, slowest rank. step_seconds: median step of the slowest rank. Of many ranks, 64
    are looked at."""

    arm: str
    folder: str
    run_fingerprint: str | None
    ranks: int
    nodes: str
    job: str
    steps: str
    records: int
    bytes: int
    seconds: float | None
    step_seconds: float | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class PinRow:
    """One pin of the reference. values: value -> ranks that observed it."""

    pin: str
    values: dict[str, str]
    declared: str | None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything a report says about one recipe."""

    format: int
    samebits: str
    recipe: str
    verdict: Verdict
    headline: str
    """One sentence: what is proven, or what failed first."""
    scope: str
    """One paragraph in words: ranks, steps, rung, share, placement, restart, waivers; what was not tested."""
    gates: tuple[GateResult, ...]
    findings: tuple[Finding, ...]
    """What was found where a gate failed, of the runs judged here."""
    costs: tuple[Cost, ...]
    vote: Vote | None
    curves: tuple[Curve, ...]
    arms: tuple[ArmSummary, ...]
    pins: tuple[PinRow, ...]
    recipe_text: str
    """The recipe in force, canonical YAML or JSON, defaults filled in."""
