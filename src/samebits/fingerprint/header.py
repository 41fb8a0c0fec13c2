"""The header of a fingerprint file: whose it is, and in what surroundings it was made."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass

from samebits.spec.pins import Pins
from samebits.spec.plan import Plan, decode


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
        """Raises PlanError, ValueError or TypeError where the bytes are not a header."""
        body = dict(json.loads(data))
        plan = _plan(json.dumps(body.pop("plan", None)))
        return decode(_Unplanned, body).with_plan(plan)


@dataclass(frozen=True, kw_only=True)
class _Unplanned:
    digest: str
    launch: str
    coordinates: Coordinates
    pins: Pins

    def with_plan(self, plan: Plan) -> Header:
        return Header(digest=self.digest, launch=self.launch, coordinates=self.coordinates, plan=plan, pins=self.pins)


@functools.lru_cache(maxsize=8)
def _plan(text: str) -> Plan:
    """Thousands of ranks carry the same one."""
    return decode(Plan, json.loads(text))
