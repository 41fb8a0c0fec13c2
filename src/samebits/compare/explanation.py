"""One sentence on a comparison: why it has its verdict."""

from __future__ import annotations

from samebits.compare.results import Comparison, Scope
from samebits.fingerprint.ranks import ranks_text


def explain(comparison: Comparison) -> str:
    if comparison.verdict == "pass" and comparison.scope is not None:
        return _identical(comparison, comparison.scope)
    if comparison.verdict == "invalid":
        return not_comparable(comparison)
    if comparison.verdict == "fail" and comparison.divergence is not None:
        return comparison.divergence.explanation
    return comparison.problems[0] if comparison.problems else f"{comparison.candidate_arm}: nothing was compared"


def _identical(comparison: Comparison, scope: Scope) -> str:
    steps = f"steps {scope.first_step} to {scope.last_step}" if scope.first_step < scope.last_step else "the end"
    waived = ", ".join(item.item for item in comparison.waived if item.seen)
    apart = f", apart from what is waived ({waived})" if waived else ""
    if scope.restart is not None:
        steps = f"the restored state of step {scope.restart} and all steps to {scope.last_step}"
    return (
        f"{comparison.candidate_arm} and {comparison.reference_arm} are bit-identical on "
        f"{scope.ranks} rank{'s' * (scope.ranks > 1)}, {steps}{apart}"
    )


def not_comparable(comparison: Comparison) -> str:
    first, more = comparison.deviations[0], len(comparison.deviations) - 1
    rest = f" (and {more} more)" if more else ""
    return (
        f"{comparison.candidate_arm} is not comparable with {comparison.reference_arm}: {first.pin} is "
        f"{first.reference} there and {first.candidate} here, ranks {ranks_text(first.ranks)}{rest}"
    )
