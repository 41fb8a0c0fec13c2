"""Finds deviations that keep two arms from being comparable: recipe, layout, pins, settings not in force."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np

from samebits.compare.align import Pairing
from samebits.compare.nodes import names_text
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.records import RUNGS
from samebits.plan.flat import entries
from samebits.recipe import determinism
from samebits.spec import pins
from samebits.spec.overhead import Timing
from samebits.spec.pins import ABSENT, Deviation, Pins
from samebits.spec.plan import Plan
from samebits.spec.sections import MegatronRecipe, Recipe

WITHOUT_EFFECT = (
    *("name", "gates", "controls", "twins", "waivers", "overhead", "pins", "data.path"),
    "command.folder",
    *("launch.time_minutes", "launch.hang_minutes", "cluster.placement"),
    *("cluster.slurm.account", "cluster.slurm.qos", "cluster.slurm.sbatch"),
)
"""Entries of a recipe that change neither what is computed nor what is recorded. `data.sha256` stands for the path;
`pins` and `cluster.placement` are held against what was observed."""


def of_layout(reference: Manifest, candidate: Manifest) -> list[Deviation]:
    """Compare digest algorithm and number of ranks. Where one deviates, records cannot be compared at all."""
    found = []
    if reference.digest != candidate.digest:
        found.append(_everywhere("digest", reference.digest, candidate.digest, candidate))
    if len(reference.ranks) != len(candidate.ranks):
        found.append(_everywhere("world", str(len(reference.ranks)), str(len(candidate.ranks)), candidate))
    return found


def of_recipes(reference: Recipe, candidate: Recipe, ranks: tuple[int, ...]) -> list[Deviation]:
    """Compare two recipes entry by entry, except for entries WITHOUT_EFFECT."""
    ours, theirs = dict(entries(reference, WITHOUT_EFFECT)), dict(entries(candidate, WITHOUT_EFFECT))
    return [
        Deviation(f"recipe.{name}", ours.get(name, ABSENT), theirs.get(name, ABSENT), ranks)
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]


def of_plan(expected: Plan, observed: Plan, ranks: tuple[int, ...]) -> list[Deviation]:
    """Compare an arm with what the recipe in force asks for. The checkpoint's folder may have moved. A fault
    planted where none was asked for is no deviation: the comparison fails on it, or proves nothing."""
    found = of_recipes(expected.recipe, observed.recipe, ranks)
    for name, ours, theirs in zip(_ARM, _arm_entries(expected), _arm_entries(observed), strict=True):
        if ours != theirs and (name != "faults" or expected.faults):
            found.append(Deviation(f"arm.{name}", ours, theirs, ranks))
    for entry in dataclasses.fields(Timing):
        ours, theirs = (_timing(plan, entry.name) for plan in (expected, observed))
        if ours != theirs:
            found.append(Deviation(f"arm.timing.{entry.name}", ours, theirs, ranks))
    return found


def _timing(plan: Plan, entry: str) -> str:
    value = getattr(plan.timing, entry) if plan.timing else ABSENT
    return (", ".join(value) or "none") if isinstance(value, tuple) else str(value)


_ARM = ("name", "first_step", "last_step", "restored", "capture", "faults", "stress")


def _arm_entries(plan: Plan) -> tuple[str, ...]:
    faults = json.dumps([dataclasses.asdict(fault) for fault in plan.faults], sort_keys=True)
    restored = plan.restore is not None
    span = str(plan.first_step), str(plan.last_step)
    return plan.arm, *span, str(restored), str(plan.capture), faults, ", ".join(plan.stress) or "none"


def of_surroundings(reference: Manifest, candidate: Manifest) -> list[Deviation]:
    """Compare the pins of each rank and its place in the layout with the other arm's."""
    ours = {file.rank: file.pins for file in reference.ranks}
    theirs = {file.rank: file.pins for file in candidate.ranks}
    suspects = [rank for rank in ours.keys() & theirs.keys() if not _same_pins(ours[rank], theirs[rank])]
    found = pins.deviations({rank: ours[rank] for rank in suspects}, {rank: theirs[rank] for rank in suspects})
    for first, second in zip(reference.ranks, candidate.ranks, strict=False):
        if first.coordinates != second.coordinates:
            found.append(Deviation("coordinates", str(first.coordinates), str(second.coordinates), (first.rank,)))
    return found


def of_promises(manifest: Manifest, declared: dict[str, str]) -> list[Deviation]:
    """Check one arm against its own plan: software declared and not observed, settings asked for and not in force,
    another image or other numbers of nodes and ranks than asked for."""
    observed = {file.rank: file.pins for file in manifest.ranks}
    found: dict[tuple[str, str, str], list[int]] = {}
    asked = _asked(manifest.plan)
    for rank, own in observed.items():
        for group, name, value in asked:
            seen = getattr(own, group).get(name, ABSENT)
            if seen != value:
                found.setdefault((f"{group}.{name}", f"{value} (asked for)", f"{seen} (in force)"), []).append(rank)
    not_in_force = [Deviation(*key, ranks=tuple(ranks)) for key, ranks in sorted(found.items())]
    return [*pins.undeclared(declared, observed), *not_in_force, *_of_cluster(manifest)]


def _of_cluster(manifest: Manifest) -> list[Deviation]:
    """Compare the numbers of nodes and ranks per node with the plan. A rank that recorded no node deviates."""
    if (cluster := manifest.plan.recipe.cluster) is None:
        return []
    placed: dict[str, list[int]] = {}
    for file in manifest.ranks:
        placed.setdefault(file.pins.node, []).append(file.rank)
    found = []
    known = placed.keys() - {""}
    if len(known) != cluster.nodes:
        seen = f"{len(known)}: {names_text(placed)} (in force)"
        found.append(_everywhere("cluster.nodes", f"{cluster.nodes} (asked for)", seen, manifest))
    return [*found, *_crowded(placed, cluster.ranks_per_node)]


def _crowded(placed: dict[str, list[int]], asked: int) -> Iterator[Deviation]:
    """Yield nodes with too few or too many ranks, those with equally many together. placed: node -> ranks."""
    wrong: dict[int, list[str]] = {}
    for node, ranks in placed.items():
        if len(ranks) != asked or not node:
            wrong.setdefault(len(ranks), []).append(node)
    for number, names in sorted(wrong.items()):
        where = tuple(sorted(rank for name in names for rank in placed[name]))
        seen = f"{number} on {names_text(names)} (in force)"
        yield Deviation("cluster.ranks_per_node", f"{asked} (asked for)", seen, where)


def of_capture(pairing: Pairing) -> list[Deviation]:
    """Return the blocks that one arm recorded at another rung than the other, by pair of rungs."""
    ours, theirs = pairing.rungs
    cells = np.argwhere(~pairing.same_rung)
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for rank, at in cells:
        found.setdefault((RUNGS[ours[rank, at]], RUNGS[theirs[rank, at]]), []).append((int(rank), int(at)))
    return [_capture(pairing, *rungs, places) for rungs, places in sorted(found.items())]


def _capture(pairing: Pairing, ours: str, theirs: str, places: list[tuple[int, int]]) -> Deviation:
    steps = sorted({pairing.pairs[at].step for _, at in places})
    where = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    return Deviation(
        "capture", f"rung {ours} at {where}", f"rung {theirs} there", tuple(sorted({rank for rank, _ in places}))
    )


def _everywhere(pin: str, ours: str, theirs: str, manifest: Manifest) -> Deviation:
    return Deviation(pin, ours, theirs, all_ranks(manifest))


def all_ranks(manifest: Manifest) -> tuple[int, ...]:
    return tuple(file.rank for file in manifest.ranks)


def _same_pins(ours: Pins, theirs: Pins) -> bool:
    return dataclasses.replace(ours, placement={}) == dataclasses.replace(theirs, placement={})


def _asked(plan: Plan) -> list[tuple[str, str, str]]:
    """Return (group of pins, name, value) that every rank must have in force.

    Of a fusion that a plan allows nothing is asked where an installation may lack it.
    """
    recipe, relaxed = plan.recipe, plan.relaxed
    wanted = determinism.environment(recipe.determinism, relaxed)
    unset = [name for name in determinism.environment(recipe.determinism) if name not in wanted]
    image = [("software", "image", recipe.container.image.rpartition("@")[2])] if recipe.container else []
    # What the built-in trainer sets by itself.
    own = isinstance(recipe, MegatronRecipe)
    return [
        *image,
        *(
            ("runtime", name, str(getattr(recipe.determinism, name) and name not in relaxed))
            for name in determinism.FLAGS
        ),
        *([("runtime", determinism.DETERMINISTIC_MODE, str(determinism.DETERMINISTIC_MODE not in relaxed))] * own),
        *(("runtime", fusion, "False") for name, fusion in determinism.UNFUSED.items() if own and name not in relaxed),
        *(("runtime", determinism.UNFUSED[name], "True") for name in relaxed if name in determinism.ALWAYS_FUSED),
        ("runtime", "threads", str(recipe.launch.threads)),
        *(("environment", name, value) for name, value in wanted.items()),
        *(("environment", name, ABSENT) for name in unset),
    ]
