"""Builder for tests of rung `op`: runs a function as a traced step would, and gives the rows in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.fingerprint.stacks import Stack, read_stacks, stack_of
from samebits.worker.capture.reading import Reader, Row
from samebits.worker.capture.state import modules
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.trace import Trace
from samebits.worker.trace.tracers import Insides


@dataclass
class Seen:
    """rows: of the step, in order. notes: of the step. trace: while it runs."""

    trace: Trace
    rows: list[Row] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [f"{row.site.kind}:{row.site.name}" for row in self.rows]

    def of(self, name: str, kind: Kind = Kind.OP) -> list[Row]:
        return [row for row in self.rows if row.site.name == name and row.site.kind is kind]

    def one(self, name: str, kind: Kind = Kind.OP) -> Row:
        found = self.of(name, kind)
        assert len(found) == 1, f"{name}: {self.names}"
        return found[0]

    def stack(self, site: Site) -> Stack:
        return stack_of(read_stacks(self.notes), site)

    @property
    def skipped(self) -> dict[str, int]:
        return next((note["counts"] for note in self.notes if note["type"] == "skipped"), {})


class Inside:
    """One rank's tracer, step after step."""

    def __init__(self, model: torch.nn.Module | None = None, optimizer: Any = None, limit: int | None = None) -> None:
        training = SimpleNamespace(chunks=[model or torch.nn.Identity()], optimizer=optimizer)
        self._reader = Reader(limit)
        self._scopes = Scopes(modules(cast(Any, training)))
        self._insides = Insides(cast(Any, training), self._scopes)

    @contextlib.contextmanager
    def step(self, stage: Phase = Phase.FORWARD) -> Iterator[Seen]:
        seen = Seen(Trace(self._reader))
        seen.trace.stage = stage
        self._scopes.start()
        self._insides.start(seen.trace)
        try:
            yield seen
        finally:
            self._insides.stop()
            self._scopes.stop()
            seen.rows = self._reader.rows(seen.trace.readings)
            seen.notes = seen.trace.notes


def traced(function: Callable[[], Any], model: torch.nn.Module | None = None, limit: int | None = None) -> Seen:
    with Inside(model, limit=limit).step() as seen:
        function()
    return seen
