"""Metrics of two arms by step, with their distance in units in the last place of the metric's own dtype."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from samebits.compare.certify import Certified
from samebits.compare.records import opened
from samebits.compare.results import Curve, Divergence
from samebits.fingerprint.paths import ArtifactError
from samebits.fingerprint.reader import FingerprintFile
from samebits.fingerprint.records import Flag, Kind, Moment

_FIRST = ("lm loss", "grad-norm")
"""Shown before all others."""


@dataclass(frozen=True)
class Point:
    """A metric at one step. value: exact. dtype: of the metric."""

    value: float
    dtype: str


Points = dict[int, Point]


def curves(reference: Certified, candidate: Certified, divergence: Divergence | None) -> tuple[Curve, ...]:
    """Return the metrics of the rank at which the arms first differ, and of the last rank, which logs in Megatron.

    Metrics that neither arm has are left out. A file that cannot be read gives no curves.
    """
    ranks = dict.fromkeys([*(rank.rank for rank in divergence.ranks[:1])] if divergence else [])
    ranks.setdefault(len(candidate.manifest.ranks) - 1)
    ours: dict[str, Points] = {}
    theirs: dict[str, Points] = {}
    try:
        for rank in ranks:
            first, second = _metrics(opened(reference, rank)), _metrics(opened(candidate, rank))
            for name in (first.keys() | second.keys()) - (ours.keys() | theirs.keys()):
                ours[name], theirs[name] = first.get(name, {}), second.get(name, {})
    except (ArtifactError, OSError):
        return ()
    arm = candidate.manifest.plan.arm
    places = {name: place for place, name in enumerate(_FIRST)}
    names = sorted(ours, key=lambda name: (places.get(name, len(places)), name))
    return tuple(_curve(name, ours[name], theirs[name], arm) for name in names)


def _curve(name: str, ours: Points, theirs: Points, arm: str) -> Curve:
    steps = sorted(ours.keys() | theirs.keys())
    pairs = [(ours.get(step), theirs.get(step)) for step in steps]
    return Curve(
        name=name,
        steps=tuple(steps),
        reference=tuple(None if first is None else first.value for first, _ in pairs),
        candidate=tuple(None if second is None else second.value for _, second in pairs),
        ulps=tuple(distance(first, second) for first, second in pairs),
        candidate_arm=arm,
    )


def _metrics(file: FingerprintFile) -> dict[str, Points]:
    """Return each metric's values by step; of several in one step, the first."""
    found: dict[str, Points] = {}
    wanted = [site.kind is Kind.METRIC for site in file.sites]
    for block in (block for block in file.blocks if block.moment is Moment.STEP):
        for record in file.records(block):
            if wanted[record["site"]] and record["flags"] & Flag.VALUE:
                value = struct.unpack("<d", struct.pack("<Q", int(record["output"][0])))[0]
                point = Point(value, file.forms[record["form"]].dtype)
                found.setdefault(file.sites[record["site"]].name, {}).setdefault(block.step, point)
    return found


def distance(reference: Point | None, candidate: Point | None) -> int | None:
    """Count the steps between two values along the representable values of their dtype; −0.0 and 0.0 are one apart.

    Returns None where a side is missing or not finite, or where the dtypes differ.
    """
    if reference is None or candidate is None or reference.dtype != candidate.dtype:
        return None
    if not (math.isfinite(reference.value) and math.isfinite(candidate.value)):
        return None
    return abs(_ordinal(reference) - _ordinal(candidate))


def _ordinal(point: Point) -> int:
    """Return a value's number in the order of all values of its dtype; a whole number stands for itself.

    The bit patterns of floating-point numbers of one sign are already in order; those of negative ones are mirrored.
    """
    pack, shift = _PATTERNS.get(point.dtype, ("", 0))
    if not pack:
        return int(point.value)
    bits = int.from_bytes(struct.pack(pack, point.value), "little") >> shift
    sign = 1 << (8 * struct.calcsize(pack) - shift - 1)
    return bits if bits < sign else sign - 1 - bits


_PATTERNS = {
    "float": ("<d", 0),
    "float64": ("<d", 0),
    "float32": ("<f", 0),
    "float16": ("<e", 0),
    "bfloat16": ("<f", 16),
}
