"""The gate `overhead`: whether determinism costs at most what the recipe allows, in one sentence with its interval."""

from __future__ import annotations

from samebits.artifact.ranks import ranks_text
from samebits.judge import overhead
from samebits.judge.cost import Cost
from samebits.judge.digits import estimate
from samebits.judge.judgement import GateResult
from samebits.judge.overhead import BLOCKS_NEEDED, Estimate
from samebits.judge.verdicts import Verdict
from samebits.overhead import Overhead


def judge_overhead(cost: Cost, wanted: Overhead) -> GateResult:
    verdict, explanation = _judged(cost, wanted)
    return GateResult(gate="overhead", verdict=verdict, explanation=explanation, comparisons=())


def _judged(cost: Cost, wanted: Overhead) -> tuple[Verdict, str]:
    if cost.failures:
        return "fail", cost.failures[0]
    if cost.deviations:
        row = cost.deviations[0]
        rest = f" (and {len(cost.deviations) - 1} more)" if len(cost.deviations) > 1 else ""
        where = f"ranks {ranks_text(row.ranks)}"
        return (
            "invalid",
            f"the runs are not comparable: {row.pin} is {row.reference} and {row.candidate}, {where}{rest}",
        )
    if cost.findings is None:
        rest = f" (and {len(cost.problems) - 1} more runs)" if len(cost.problems) > 1 else ""
        return "inconclusive", f"{cost.problems[0].strip()}{rest}" if cost.problems else "no run was made"
    found = cost.findings.effects[0].median
    verdict = overhead.decide(found, wanted.limit_percent)
    return verdict, _SAID[verdict](found, wanted)


def _said(found: Estimate, wanted: Overhead) -> str:
    return f"determinism costs {estimate(found, wanted.limit_percent)} of a step"


def _pass(found: Estimate, wanted: Overhead) -> str:
    return f"{_said(found, wanted)}, at most the allowed {wanted.limit_percent:g} %"


def _fail(found: Estimate, wanted: Overhead) -> str:
    return f"{_said(found, wanted)}, more than the allowed {wanted.limit_percent:g} %"


def _inconclusive(found: Estimate, wanted: Overhead) -> str:
    said = _said(found, wanted)
    if found.blocks < BLOCKS_NEEDED or found.interval is None:
        return (
            f"{said}; {found.blocks} block{'s' * (found.blocks > 1)} decide nothing, at least {BLOCKS_NEEDED} are "
            f"needed: {_more(found, wanted)}"
        )
    return f"{said}, on both sides of the allowed {wanted.limit_percent:g} %: {_more(found, wanted)}"


def _more(found: Estimate, wanted: Overhead) -> str:
    """How many blocks would decide."""
    if found.interval is None:
        return f"set overhead.blocks to {BLOCKS_NEEDED} or more, and run the experiment anew"
    blocks = overhead.blocks_to_decide(found, wanted.limit_percent)
    if blocks is None:
        return f"the cost lies too near the limit, more than {overhead.MOST_BLOCKS} blocks would be needed"
    more = blocks - found.blocks
    return (
        f"about {more} more block{'s' * (more != 1)} would decide, if cost and scatter stay as they are; set "
        f"overhead.blocks to {blocks} or more, and run the experiment anew"
    )


_SAID = {"pass": _pass, "fail": _fail, "inconclusive": _inconclusive}
