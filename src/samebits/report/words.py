"""How values are written for a person: one wording for HTML, JUnit and terminal. Decides nothing."""

from __future__ import annotations

import math
import re

from samebits.compare.results import Comparison, GateResult, Scope, WaivedItem
from samebits.gates.judgement import ArmSummary
from samebits.spec.verdicts import Verdict

MEANING: dict[Verdict, str] = {
    "pass": "Every gate passed. This holds for the scope stated here, and no further.",
    "fail": "At least one gate failed. The evidence stands below.",
    "invalid": "The runs are not comparable. This neither proves nor disproves the recipe.",
    "inconclusive": "There is not enough evidence. This neither proves nor disproves the recipe.",
}

# C0 without tab and newline, DEL, C1, line separators and the marks that reorder text on the screen
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
# characters that UTF-8 or XML 1.0 cannot carry
_FOREIGN = re.compile(r"[\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text with characters that cannot be seen, or not be stored, spelled out, such as `⟨U+001B⟩`."""
    return _FOREIGN.sub(_spelled, _UNSEEN.sub(_spelled, text))


def one_line(text: str) -> str:
    """`printable`, and line breaks and tabs as spaces."""
    return " ".join(printable(text).split())


def _spelled(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match[0]):04X}⟩"


def whole(number: int) -> str:
    """`12,345`."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """`1 rank`, `12,345 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: int) -> str:
    """Bytes in decimal units: `1.2 MB`."""
    if number < 1000:
        return f"{number} B"
    power = min(int(math.log10(number) // 3), 5)
    return f"{number / 1000**power:.1f} {'kMGTP'[power - 1]}B"


def duration(seconds: float | None) -> str:
    """`12.3 ms`, `4.56 s`, `12 min 05 s`, `3 h 05 min`; `not known` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "not known"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60):02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def share(scope: Scope) -> str:
    """Percent of the records that were fingerprinted, rounded down: never `100 %` where one was skipped."""
    percent = math.floor(scope.share * 10_000) / 100
    if percent >= 100 and scope.skipped:
        percent = 99.99
    return f"{percent:g} %"


def moment_text(moment: str, step: int) -> str:
    """`state saved at step 6`."""
    known = {
        "step": f"step {step}",
        "restored": f"state right after the restore at step {step}",
        "saved": f"state saved at step {step}",
        "final": f"final state after step {step}",
    }
    return known.get(moment, f"{moment}, step {step}")


def steps_text(scope: Scope) -> str:
    if scope.first_step == scope.last_step:
        return f"step {scope.first_step}"
    return f"steps {scope.first_step} to {scope.last_step}"


def scope_text(scope: Scope | None) -> str:
    """One line; what was not covered is said in numbers."""
    if scope is None:
        return "nothing was compared"
    skipped = f", {whole(scope.skipped)} skipped" if scope.skipped else ", none skipped"
    parts = [
        counted(scope.ranks, "rank"),
        steps_text(scope),
        f"rung {scope.rung} in {whole(scope.full_blocks)} of {whole(scope.blocks)} blocks",
        f"{counted(scope.records, 'record')}{skipped} ({share(scope)} fingerprinted)",
        scope.placement,
        scope.allocation,
    ]
    if scope.restart is not None:
        parts.append(f"candidate started from the checkpoint of step {scope.restart}")
    return ", ".join(parts)


def place_text(arm: ArmSummary) -> str:
    """`n[001-304], job 4711`; nothing for an arm that is no evidence."""
    return ", ".join(part for part in (arm.nodes, arm.job and f"job {arm.job}") if part)


def waiver_text(waived: WaivedItem) -> str:
    if not waived.holds:
        return "does not hold: the difference reached something else, so it counts"
    return "used: the difference was seen and reached nothing else" if waived.seen else "not used: no such difference"


def is_planted(gate: GateResult, comparison: Comparison) -> bool:
    """Whether the candidate carries a fault that was planted on purpose: there a difference is what is hoped for."""
    return gate.gate == "control" and comparison.candidate_arm.startswith("control-")


def is_measured(gate: GateResult) -> bool:
    """Whether it rests on times, not on comparisons."""
    return gate.gate == "overhead"


def outcome(gate: GateResult, comparison: Comparison) -> str:
    """The comparison's verdict; for a planted fault what was seen, for there `fail` would read as bad news."""
    if is_planted(gate, comparison) and comparison.verdict in ("pass", "fail"):
        return "identical" if comparison.verdict == "pass" else "differs, planted"
    return comparison.verdict
