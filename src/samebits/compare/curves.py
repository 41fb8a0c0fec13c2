"""Metrics of two arms by step, with their distance in units in the last place of the metric's own dtype."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
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
    """value: exact. dtype: of the metric."""

    value: float
    dtype: str


Points = dict[int, Point]


def curves(reference: Certified, candidate: Certified, divergence: Divergence | None) -> tuple[Curve, ...]:
    """Of the rank where the arms part, else and besides of the last one, which logs in Megatron. Metrics that neither
    has are left out; a file that cannot be read gives none."""
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
    return tuple(_curve(name, ours[name], theirs[name], arm) for name in sorted(ours, key=_place))


def _place(name: str) -> tuple[int, str]:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST), name


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
    found: dict[str, Points] = {}
    for step, name, point in _points(file):
        found.setdefault(name, {}).setdefault(step, point)
    return found


def _points(file: FingerprintFile) -> Iterator[tuple[int, str, Point]]:
    wanted = [site.kind is Kind.METRIC for site in file.sites]
    for block in (block for block in file.blocks if block.moment is Moment.STEP):
        for record in file.records(block):
            if wanted[record["site"]] and record["flags"] & Flag.VALUE:
                value = struct.unpack("<d", struct.pack("<Q", int(record["output"][0])))[0]
                yield block.step, file.sites[record["site"]].name, Point(value, file.forms[record["form"]].dtype)


def distance(reference: Point | None, candidate: Point | None) -> int | None:
    """Representable values between the two, counted in their own dtype; −0.0 and 0.0 are one apart.

    None where a side is missing or not finite, or where the dtypes differ.
    """
    if reference is None or candidate is None or reference.dtype != candidate.dtype:
        return None
    if not (math.isfinite(reference.value) and math.isfinite(candidate.value)):
        return None
    return abs(_ordinal(reference) - _ordinal(candidate))


def _ordinal(point: Point) -> int:
    """Numbers the values of a dtype in their order. A whole number stands for itself."""
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
