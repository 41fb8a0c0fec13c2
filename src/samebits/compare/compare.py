"""Compares two artifacts: certify, pins, tables, and only where those differ the records.

    comparison = compare(Artifact(Path("a")), Artifact(Path("b")))

`pass` means that every block of the candidate has the bits of the reference's, within the scope that is stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samebits.compare import compatibility
from samebits.compare.align import Pairing
from samebits.compare.arm import Arm, load
from samebits.compare.divergence import Search, describe, search
from samebits.compare.results import Comparison, Divergence, Scope, WaivedItem
from samebits.compare.scope import scope_of
from samebits.compare.waivers import NONE, Waivers
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.ranks import ranks_text
from samebits.fingerprint.reader import block_text
from samebits.spec.pins import Deviation
from samebits.spec.questions import Waiver
from samebits.spec.stressors import pins_varied
from samebits.spec.verdicts import Verdict

NOT_SEEN = "a fault was planted and not seen: nothing that such a run agrees with is proven"


@dataclass(frozen=True)
class Excuses:
    """waived: may stand while nothing else differs. passed_over: not looked at, for what is judged elsewhere. stressed:
    pins may deviate that the candidate's own plan varies on purpose; only a stress run is judged so."""

    waived: Waivers = NONE
    passed_over: Waivers = NONE
    stressed: bool = False


def compare(reference: Artifact, candidate: Artifact, waivers: Sequence[Waiver] = ()) -> Comparison:
    """Never raises for a damaged or missing artifact: that is `inconclusive`."""
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
    """problems: too little or doubtful evidence. sick: values that are not finite."""

    deviations: tuple[Deviation, ...] = ()
    problems: tuple[str, ...] = ()
    sick: tuple[str, ...] = ()
    divergence: Divergence | None = None
    waived: tuple[WaivedItem, ...] = ()
    scope: Scope | None = None
    planted: bool = False

    @property
    def verdict(self) -> Verdict:
        """Deviations first: arms that are not comparable prove nothing, equal or not."""
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
    found = search(pairing, lambda item: excuses.waived.cover(item) or excuses.passed_over.cover(item))
    scope = scope_of(pairing)
    return _Examined(
        deviations=tuple(dict.fromkeys([*own, *_deviations(pairing, excuses)])),
        problems=tuple(_doubts(pairing, scope)),
        sick=tuple(dict.fromkeys([*unhealthy(ours), *unhealthy(theirs)])),
        divergence=_divergence(found, excuses),
        waived=excuses.waived.items(found.ignored, hold=not found.findings),
        scope=scope,
        planted=any(manifest.planted or manifest.plan.faults for manifest in (ours, theirs)),
    )


def _divergence(found: Search, excuses: Excuses) -> Divergence | None:
    """Where something else differs, waivers are void and the first difference is looked for without them."""
    if found.findings and excuses.waived.entries:
        found = search(found.pairing, excuses.passed_over.cover)
    return describe(found)


def _deviations(pairing: Pairing, excuses: Excuses) -> Iterator[Deviation]:
    ours, theirs = pairing.reference.manifest, pairing.candidate.manifest
    varied = pins_varied(theirs.plan.stress) if excuses.stressed else frozenset()
    yield from compatibility.of_recipes(ours.plan.recipe, theirs.plan.recipe, compatibility.all_ranks(theirs))
    yield from (found for found in compatibility.of_surroundings(ours, theirs) if found.pin not in varied)
    for manifest in (ours, theirs):
        yield from compatibility.of_promises(manifest, manifest.plan.recipe.pins)
    yield from compatibility.of_capture(pairing)


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
    """One line for each value that is not finite, at its first step."""
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
