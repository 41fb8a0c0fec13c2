"""Single records for tests, with words that stand for digests."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

from samebits.fingerprint.records import Flag, Form, Kind, Phase, Site


@dataclass(frozen=True)
class Entry:
    """One record, before it has an occurrence."""

    site: Site
    form: Form
    output: tuple[int, int]
    flags: Flag = Flag.NONE
    source: int = 0

    @property
    def item(self) -> str:
        return f"{self.site.kind}:{self.site.name}"


def tensor(
    phase: Phase, kind: Kind, name: str, shape: tuple[int, ...], *key: int, dtype: str = "float32", scope: str = ""
) -> Entry:
    """key: whatever the bytes depend on."""
    return Entry(Site(phase, kind, name, scope), Form(dtype, shape), words(kind, name, *key))


def metric(name: str, value: float, phase: Phase = Phase.FORWARD) -> Entry:
    bits = float_bits(value)
    return Entry(Site(phase, Kind.METRIC, name), Form("float32", ()), (bits, words("value", bits)[0]), Flag.VALUE)


def scalar(kind: Kind, name: str, value: int) -> Entry:
    output = float_bits(float(value)), words("scalar", value)[0]
    return Entry(Site(Phase.STATE, kind, name), Form("int", ()), output, Flag.VALUE)


def words(*key: Any) -> tuple[int, int]:
    """128 bits that stand for the digest of some bytes."""
    first, second = struct.unpack("<QQ", hashlib.blake2b(repr(key).encode(), digest_size=16).digest())
    return first, second


def float_bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
