"""Compares two artifacts: certify, pins, tables of digests, and only where those differ the records.

    comparison = compare(Artifact(Path("a")), Artifact(Path("b")))

`pass` means that every block of the candidate has the bits of the reference's, within the scope that is stated.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samebits.compare import compatibility
from samebits.compare.align import Pairing
from samebits.compare.certify import Arm, load
from samebits.compare.divergence import describe, search
from samebits.compare.records import Item
from samebits.compare.results import Comparison, Divergence, Scope, WaivedItem
from samebits.compare.scope import scope_of
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import block_text
from samebits.spec.pins import Deviation
from samebits.spec.questions import Waiver
from samebits.spec.stressors import pins_varied
from samebits.spec.verdicts import Verdict

NOT_SEEN = "a fault was planted and not seen: nothing that such a run agrees with is proven"


@dataclass(frozen=True)
class Waivers:
    """Differences that a recipe lets stand while they reach nothing else.

    Only another value is waived: an item that one arm lacks, skipped, or has in another form, is not covered.
    """

    entries: Sequence[Waiver]

    def cover(self, item: Item) -> bool:
        name = f"{item.site.kind}:{item.site.name}"
        return item.same_form and any(_matches(waiver, name) for waiver in self.entries)

    def without(self, items: frozenset[str]) -> Waivers:
        """Return the waivers that match none of these items."""
        return Waivers([waiver for waiver in self.entries if not any(_matches(waiver, name) for name in items)])


def _matches(waiver: Waiver, name: str) -> bool:
    """Return whether a waiver names this item, `kind:name`. Only the name may be a pattern."""
    kind, _, pattern = waiver.item.partition(":")
    own_kind, _, own = name.partition(":")
    return kind == own_kind and (own == pattern or fnmatch.fnmatchcase(own, pattern))


@dataclass(frozen=True)
class Excuses:
    """What may differ between two arms.

    waived: may stand while nothing else differs. passed_over: not looked at, because it is judged elsewhere. stressed:
    pins may deviate that the candidate's own plan varies on purpose; only a stress run is judged so.
    """

    waived: Waivers = Waivers(())
    passed_over: Waivers = Waivers(())
    stressed: bool = False


def compare(reference: Artifact, candidate: Artifact, waivers: Sequence[Waiver] = ()) -> Comparison:
    """Compare two artifacts on disk. A damaged or missing one makes the comparison `inconclusive`."""
    return compare_arms(load(reference.folder), load(candidate.folder), Excuses(Waivers(waivers)))


def compare_arms(reference: Arm, candidate: Arm, excuses: Excuses) -> Comparison:
    if reference.certified is None or candidate.certified is None:
        refused = tuple(arm.problem for arm in (reference, candidate) if arm.problem)
        return _comparison(reference, candidate, _Examined(problems=refused))
    pairing = Pairing(reference.certified, candidate.certified)
    own = [*reference.deviations, *candidate.deviations]
    try:
        examined = _examine(pairing, own, excuses)
    except (ArtifactError, OSError) as error:
        examined = _Examined(deviations=tuple(own), problems=(str(error),))
    return _comparison(reference, candidate, examined)


@dataclass(frozen=True, kw_only=True)
class _Examined:
    """What an examination found. problems: too little or doubtful evidence. sick: values that are not finite."""

    deviations: tuple[Deviation, ...] = ()
    problems: tuple[str, ...] = ()
    sick: tuple[str, ...] = ()
    divergence: Divergence | None = None
    waived: tuple[WaivedItem, ...] = ()
    scope: Scope | None = None
    planted: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict. Deviations come first: arms that are not comparable prove nothing, equal or not."""
        if self.deviations:
            return "invalid"
        if self.divergence or self.sick:
            return "fail"
        if self.problems or self.planted or self.scope is None:
            return "inconclusive"
        return "pass"


def _examine(pairing: Pairing, own: list[Deviation], excuses: Excuses) -> _Examined:
    ours, theirs = pairing.reference.manifest, pairing.candidate.manifest
    if apart := compatibility.of_layout(ours, theirs):
        return _Examined(deviations=tuple(own + apart))
    waivers = excuses.waived.entries
    found = search(pairing, lambda item: excuses.waived.cover(item) or excuses.passed_over.cover(item))
    waived = []
    for waiver in waivers:
        seen = any(_matches(waiver, name) for name in found.ignored)
        holds = not found.findings or not seen
        waived.append(WaivedItem(item=waiver.item, reason=waiver.reason, holds=holds, seen=seen))
    if found.findings and waivers:
        # Something else differs, so waivers are void and the first difference is looked for without them.
        found = search(pairing, excuses.passed_over.cover)
    varied = pins_varied(theirs.plan.stress) if excuses.stressed else frozenset()
    deviations = [
        *own,
        *compatibility.of_recipes(ours.plan.recipe, theirs.plan.recipe, compatibility.all_ranks(theirs)),
        *(deviation for deviation in compatibility.of_surroundings(ours, theirs) if deviation.pin not in varied),
        *compatibility.of_promises(ours, ours.plan.recipe.pins),
        *compatibility.of_promises(theirs, theirs.plan.recipe.pins),
        *compatibility.of_capture(pairing),
    ]
    scope = scope_of(pairing)
    return _Examined(
        deviations=tuple(dict.fromkeys(deviations)),
        problems=tuple(_doubts(pairing, scope)),
        sick=tuple(dict.fromkeys([*unhealthy(ours), *unhealthy(theirs)])),
        divergence=describe(found),
        waived=tuple(waived),
        scope=scope,
        planted=any(manifest.planted or manifest.plan.faults for manifest in (ours, theirs)),
    )


def _doubts(pairing: Pairing, scope: Scope | None) -> Iterator[str]:
    ours, theirs = pairing.reference.manifest, pairing.candidate.manifest
    if ours.launch == theirs.launch:
        yield (
            f"{theirs.plan.arm}: is the very run that it is compared with (launch {ours.launch}); "
            "compare two runs that were started apart"
        )
    if pairing.unmatched:
        first = block_text(*pairing.unmatched[0])
        yield (
            f"{theirs.plan.arm}: {len(pairing.unmatched)} of its {len(theirs.blocks)} blocks, first {first}, have no "
            f"counterpart in {ours.plan.arm}; run {ours.plan.arm} over the same steps"
        )
    if scope is None or scope.records == scope.skipped:
        yield f"{theirs.plan.arm}: shares no fingerprint with {ours.plan.arm}: nothing was compared"


def unhealthy(manifest: Manifest) -> Iterator[str]:
    """Yield one line for each value that is not finite, at its first step."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for note in manifest.unhealthy:
        found.setdefault((note.name, note.value), []).append((note.step, note.rank))
    for (name, value), places in found.items():
        step = min(places)[0]
        ranks = ranks_text(rank for at, rank in places if at == step)
        yield f"{manifest.plan.arm}: {name} is {value} from step {step} on (ranks {ranks}): unhealthy, identical or not"


def _comparison(reference: Arm, candidate: Arm, examined: _Examined) -> Comparison:
    problems = examined.problems + examined.sick
    if examined.planted and examined.divergence is None:
        problems += (NOT_SEEN,)
    return Comparison(
        reference=str(reference.folder),
        candidate=str(candidate.folder),
        reference_arm=reference.name,
        candidate_arm=candidate.name,
        verdict=examined.verdict,
        reference_fingerprint=reference.fingerprint,
        candidate_fingerprint=candidate.fingerprint,
        deviations=examined.deviations,
        problems=problems,
        divergence=examined.divergence,
        waived=examined.waived,
        scope=examined.scope,
    )


def explain(comparison: Comparison) -> str:
    """Return one sentence on why a comparison has its verdict."""
    scope = comparison.scope
    if comparison.verdict == "pass" and scope is not None:
        steps = f"steps {scope.first_step} to {scope.last_step}" if scope.first_step < scope.last_step else "the end"
        if scope.restart is not None:
            steps = f"the restored state of step {scope.restart} and all steps to {scope.last_step}"
        waived = ", ".join(item.item for item in comparison.waived if item.seen)
        apart = f", apart from what is waived ({waived})" if waived else ""
        ranks = f"{scope.ranks} rank{'s' * (scope.ranks > 1)}"
        arms = f"{comparison.candidate_arm} and {comparison.reference_arm}"
        return f"{arms} are bit-identical on {ranks}, {steps}{apart}"
    if comparison.verdict == "invalid":
        return not_comparable(comparison)
    if comparison.verdict == "fail" and comparison.divergence is not None:
        return comparison.divergence.explanation
    return comparison.problems[0] if comparison.problems else f"{comparison.candidate_arm}: nothing was compared"


def not_comparable(comparison: Comparison) -> str:
    """Return one sentence on the first deviation that keeps two arms from being comparable."""
    first, more = comparison.deviations[0], len(comparison.deviations) - 1
    rest = f" (and {more} more)" if more else ""
    return (
        f"{comparison.candidate_arm} is not comparable with {comparison.reference_arm}: {first.pin} is "
        f"{first.reference} there and {first.candidate} here, ranks {ranks_text(first.ranks)}{rest}"
    )
