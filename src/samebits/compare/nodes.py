"""Lists of node names as text, and the pins in which nodes differ from each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from samebits.fingerprint.manifest import Manifest
from samebits.spec.pins import Pins

UNKNOWN = "unknown"
MOST_RUNS = 12
"""Ranges that a text of names holds; what is left is counted."""
MOST_PINS = 4
MOST_VALUES = 4

_NAME = re.compile(r"(?P<prefix>[^.]*?)(?P<number>[0-9]+)(?P<suffix>[^0-9.]*(?:\..*)?)", re.DOTALL)
"""Parted at the last number before the first dot."""


@dataclass
class _Run:
    """A range of names that only count up: prefix, a number from low to high, suffix. Without a number low is empty."""

    prefix: str
    suffix: str
    low: str
    high: str
    count: int = 1

    def takes(self, after: _Run) -> bool:
        """Return whether `after` is the next name, with the number of digits that counting up gives."""
        return bool(
            (self.prefix, self.suffix) == (after.prefix, after.suffix)
            and self.high
            and after.low
            and after.low == str(int(self.high) + 1).zfill(len(self.high))
        )

    @property
    def numbers(self) -> str:
        return self.low if self.count == 1 else f"{self.low}-{self.high}"


def names_text(names: Iterable[str]) -> str:
    """Fold names into ranges, as Slurm writes lists of nodes: `login, n[001-304,310]`. At most 12 ranges; an empty
    name is `unknown`."""
    runs = _runs(set(names))
    shown: dict[tuple[str, str], list[_Run]] = {}
    for run in runs[:MOST_RUNS]:
        shown.setdefault((run.prefix, run.suffix), []).append(run)
    left = sum(run.count for run in runs[MOST_RUNS:])
    return ", ".join([*map(_folded, shown.values()), *([f"and {left:,} more"] if left else [])])


def _folded(runs: list[_Run]) -> str:
    first = runs[0]
    numbers = ",".join(run.numbers for run in runs)
    alone = len(runs) == 1 and first.count == 1
    return f"{first.prefix}{numbers if alone else f'[{numbers}]'}{first.suffix}"


def _runs(names: set[str]) -> list[_Run]:
    single = []
    for name in names:
        if parts := _NAME.fullmatch(name):
            single.append(_Run(parts["prefix"], parts["suffix"], parts["number"], parts["number"]))
        else:
            single.append(_Run(name or UNKNOWN, "", "", ""))
    found: list[_Run] = []
    for run in sorted(single, key=lambda one: (one.prefix, one.suffix, int(one.low or -1), one.low)):
        if found and found[-1].takes(run):
            found[-1].high = run.high
            found[-1].count += 1
        else:
            found.append(run)
    return found


def nodes(manifest: Manifest) -> set[str]:
    """Return the names of an arm's nodes; an empty one where a rank recorded none."""
    return {file.pins.node for file in manifest.ranks}


def nodes_text(manifest: Manifest) -> str:
    return names_text(nodes(manifest))


def jobs_text(manifest: Manifest) -> str:
    """Return the ids of an arm's jobs as text; empty where no scheduler was recorded."""
    jobs = {file.pins.job for file in manifest.ranks}
    return names_text(jobs) if jobs != {""} else ""


def differences(manifests: Iterable[Manifest]) -> list[str]:
    """Return a sentence for each pin in which the nodes of these arms differ, of the first few pins."""
    told = list(_differences(manifests))
    left = len(told) - MOST_PINS
    return told[:MOST_PINS] + ([f"Nodes differ in {left} more pin{'s' * (left > 1)}."] if left > 0 else [])


def _differences(manifests: Iterable[Manifest]) -> Iterator[str]:
    """Yield a sentence for each pin. Where ranks of one node already differ, their values together stand for it."""
    for pin, observed in sorted(_observed(manifests).items()):
        groups: dict[str, list[str]] = {}
        for node, values in observed.items():
            groups.setdefault(" / ".join(sorted(values)), []).append(node)
        if len(groups) > 1:
            yield _told(pin, groups)


def _observed(manifests: Iterable[Manifest]) -> dict[str, dict[str, set[str]]]:
    """Return pin -> node -> values, of ranks whose node is known."""
    found: dict[str, dict[str, set[str]]] = {}
    for file in (file for manifest in manifests for file in manifest.ranks if file.pins.node):
        for pin, value in _machine_pins(file.pins).items():
            found.setdefault(pin, {}).setdefault(file.pins.node, set()).add(value)
    return found


def _machine_pins(pins: Pins) -> dict[str, str]:
    """Return the pins that belong to the machine, not to the image that runs on it."""
    found = dict(pins.hardware)
    if "driver" in pins.software:
        found["driver"] = pins.software["driver"]
    if "kernel" in pins.placement:
        found["kernel"] = pins.placement["kernel"]
    return found


def _told(pin: str, groups: dict[str, list[str]]) -> str:
    """Return the sentence on one pin, values of most nodes first."""
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    parts = [f"{value} on {names_text(names)}" for value, names in ordered[:MOST_VALUES]]
    if left := ordered[MOST_VALUES:]:
        parts.append(f"{len(left)} more on {sum(len(names) for _, names in left)} nodes")
    return f"Nodes differ: {pin} is {', '.join(parts[:-1])} and {parts[-1]}."
