"""What timed runs must have in common: everything but the settings whose cost is measured, and, where they are
deterministic, the state in which they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from samebits.compare import compatibility
from samebits.compare.certify import Arm
from samebits.compare.compare import Excuses, Waivers, compare_arms
from samebits.fingerprint.manifest import Manifest
from samebits.overhead.timing import start_of, timing_of
from samebits.recipe import determinism
from samebits.spec.pins import ABSENT, Deviation
from samebits.spec.plan import Plan
from samebits.spec.sections import Recipe


class Made(Protocol):
    """A run that lies on disk."""

    @property
    def plan(self) -> Plan: ...

    @property
    def arm(self) -> Arm: ...

    @property
    def manifest(self) -> Manifest | None: ...


def setting_deviations(recipe: Recipe, runs: Sequence[Made]) -> list[Deviation]:
    """Of each run from its plan and from what it asks for; between the runs in all that is not being measured. runs:
    those with a manifest, in their order."""
    found: dict[tuple[str, str, str], set[int]] = {}
    first_of: dict[str, Made] = {}
    for run in runs:
        own = [(f"{run.plan.arm}: {row.pin}", row) for row in _of_run(recipe, run)]
        alike = first_of.setdefault(timing_of(run.plan).setting, run)
        rows = [*_between(runs[0], run, strict=False), *_between(alike, run, strict=True)]
        for pin, row in (*own, *((row.pin, row) for row in rows)):
            found.setdefault((pin, row.reference, row.candidate), set()).update(row.ranks)
    return [Deviation(*key, ranks=tuple(sorted(ranks))) for key, ranks in found.items()]


def of_arm(reference: Manifest, timed: Manifest) -> list[Deviation]:
    """Of a timed run from an arm whose bits were compared: what was measured on another machine, or with other
    software, is not what it costs there."""
    return [row for row in compatibility.of_surroundings(reference, timed) if not _is_loaded(row)]


def _of_run(recipe: Recipe, run: Made) -> list[Deviation]:
    manifest = run.manifest
    if manifest is None:
        return []
    apart = compatibility.of_plan(run.plan, manifest.plan, compatibility.all_ranks(manifest))
    # A run of another plan does not have in force what this one asks for.
    return apart or compatibility.of_promises(manifest, recipe.pins)


def _between(first: Made, other: Made, *, strict: bool) -> Iterator[Deviation]:
    """strict: of one setting, where nothing may differ."""
    ours, theirs = first.manifest, other.manifest
    if ours is None or theirs is None or ours is theirs:
        return
    if apart := compatibility.of_layout(ours, theirs):
        yield from apart
        return
    measured = set() if strict else _measured(first.plan, other.plan)
    for row in compatibility.of_surroundings(ours, theirs):
        # A library that a fusion or an algorithm loads is part of what is measured.
        if row.pin not in measured and (strict or not _is_loaded(row)):
            yield row
    yield from _elsewhere(ours, theirs)
    if (there := start_of(ours)) != (here := start_of(theirs)):
        yield Deviation(f"{other.plan.arm}: launch", there, here, compatibility.all_ranks(theirs))


def _is_loaded(row: Deviation) -> bool:
    return row.pin.startswith("libraries.") and ABSENT in (row.reference, row.candidate)


def _elsewhere(ours: Manifest, theirs: Manifest) -> Iterator[Deviation]:
    """Time is compared on the same machines and within one allocation."""
    for name, pin in (("node", "placement.node"), ("job", "placement.job"), ("machine", "placement.machine")):
        moved: dict[tuple[str, str], list[int]] = {}
        for first, second in zip(ours.ranks, theirs.ranks, strict=True):
            if (there := _place(first.pins, name)) != (here := _place(second.pins, name)):
                moved.setdefault((there or ABSENT, here or ABSENT), []).append(first.rank)
        for places, ranks in moved.items():
            yield Deviation(pin, *places, ranks=tuple(ranks))


def _place(pins: object, name: str) -> str:
    found = getattr(pins, name)
    return found if isinstance(found, str) else ", ".join(f"{mark} {value}" for mark, value in sorted(found))


def _measured(first: Plan, other: Plan) -> set[str]:
    """Pins in which the two runs are to differ."""
    names = set(first.relaxed) ^ set(other.relaxed)
    fusions = {determinism.UNFUSED[name] for name in names if name in determinism.UNFUSED}
    return {f"{group}.{name}" for group in ("runtime", "environment") for name in names | fusions}


def unhealthy(runs: Sequence[Made]) -> Iterator[str]:
    for run in runs:
        if run.manifest and run.manifest.unhealthy:
            note = run.manifest.unhealthy[0]
            yield f"{run.plan.arm}: {note.name} is {note.value} on rank {note.rank} at step {note.step}"


def apart(recipe: Recipe, runs: Sequence[Made]) -> Iterator[str]:
    """Runs that leave no setting off end in one state, apart from what the recipe waives, or they are not deterministic
    and what they cost is beside the point. runs: of one experiment or of several."""
    settled = [run for run in runs if run.manifest and not run.plan.relaxed]
    for other in settled[1:]:
        if _final(other) == _final(settled[0]):
            continue
        comparison = compare_arms(settled[0].arm, other.arm, Excuses(waived=Waivers(recipe.waivers)))
        if recipe.waivers and comparison.verdict == "pass":
            continue
        where = f" ({comparison.divergence.explanation})" if comparison.divergence else ""
        yield (
            f"{_name(other)} did not end in the state that {_name(settled[0])} ended in{where}: the recipe's settings "
            "do not give the same bits here, so what they cost says nothing; see to the gate repeatability first"
        )
        return


def _final(run: Made) -> bytes:
    """Digests of the final state, of all ranks."""
    return run.arm.certified.table[:, -1, :16].tobytes() if run.arm.certified else b""


def _name(run: Made) -> str:
    timing = timing_of(run.plan)
    return run.plan.arm if timing.experiment == "overhead" else f"{run.plan.arm} of the experiment {timing.experiment}"
