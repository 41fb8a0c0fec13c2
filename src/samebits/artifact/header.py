"""The header of a fingerprint file: whose it is, and in what surroundings it was made."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from samebits.pins import Pins
from samebits.plan import Plan, decode


@dataclass(frozen=True)
class Coordinates:
    """Where a rank stands in the parallel layout; all numbers start at 0."""

    rank: int
    world: int
    tensor: int
    pipeline: int
    data: int
    expert: int
    context: int

    def __str__(self) -> str:
        return f"TP {self.tensor}, PP {self.pipeline}, DP {self.data}, EP {self.expert}, CP {self.context}"


@dataclass(frozen=True, kw_only=True)
class Header:
    """digest: id of the digest algorithm. launch: one id per start of the arm, the same on its ranks."""

    digest: str
    launch: str
    coordinates: Coordinates
    plan: Plan
    pins: Pins

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Header:
        """Raises PlanError or ValueError where the bytes are not a header."""
        return decode(Header, json.loads(data))
