"""Synthetic pairs at rung `op`: what each of several ranks recorded in one step, and where the candidate differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import artifacts
import evidence
from artifacts import At
from entries import Entry, words
from samebits.compare.align import Pairing
from samebits.compare.certify import certify
from samebits.fingerprint.records import INPUTS_SHIFT, Flag, Form, Kind, Moment, Phase, Site
from samebits.localize.locate import LocatedPair, Untraced, locate

STEP = 3
FORM = Form("float32", (4, 8))
Steps = Callable[[int], list[Entry]]
"""Records of one rank in step 3, in order of time."""


def op(
    name: str,
    scope: str = "layer",
    *,
    key: object = 0,
    source: object = 0,
    inputs: int = 1,
    form: Form = FORM,
    phase: Phase = Phase.FORWARD,
    kind: Kind = Kind.OP,
) -> Entry:
    """key: what its output depends on. source: what its inputs are; None: not known."""
    flags = Flag.NONE if source is None else Flag.INPUT | inputs << INPUTS_SHIFT
    digest = 0 if source is None else words("source", source)[0]
    return Entry(Site(phase, kind, name, scope), form, words("output", key), Flag(flags), digest)


def collective(ranks: str, *, key: object = 0, source: object = 0, name: str = "all_reduce") -> Entry:
    return op(name, f"ranks {ranks}", key=key, source=source, kind=Kind.COLLECTIVE, phase=Phase.BACKWARD)


def sent(to: int, key: object = 0, number: int = 1) -> Entry:
    return op("send", f"to {to}", key=key, source=("message", number), inputs=0, kind=Kind.SEND)


def received(source: int, key: object = 0, number: int = 1) -> Entry:
    return op("recv", f"from {source}", key=key, source=("message", number), inputs=0, kind=Kind.RECEIVE)


def call(name: str, scope: str, *, key: object = 0, source: object = 0) -> Entry:
    return op(name, scope, key=key, source=source, kind=Kind.CALL)


def given(name: str, scope: str = "layer", key: object = 0) -> Entry:
    return op(name, scope, key=key, source=None, kind=Kind.GIVEN)


def located(reference: Steps, candidate: Steps, **limits: Any) -> LocatedPair | Untraced | None:
    """What is located where the arms recorded this. limits: see `pairing`."""
    return locate(pairing(reference, candidate, **limits))


def pairing(
    reference: Steps,
    candidate: Steps,
    *,
    world: int = 2,
    traced: Iterable[int] | None = None,
    also: Iterable[artifacts.Change] = (),
) -> Pairing:
    """traced: ranks at rung `op`; None: all. also: further changes of the candidate."""
    ranks = None if traced is None else tuple(traced)
    found = []
    for arm, steps, changes in (("reference", reference, ()), ("twin-1", candidate, tuple(also))):
        plan = evidence.limited(arm=arm, world=world, rung="op", windows=((STEP, STEP),), ranks=ranks)
        artifact = evidence.written(evidence.scratch() / arm, plan=plan, change=[recorded(steps, STEP), *changes])
        found.append(certify(artifact))
    return Pairing(*found)


def recorded(steps: Steps, step: int) -> artifacts.Change:
    """These records in front of all others of that step, on ranks that trace it."""

    def change(at: At, entries: list[Entry]) -> list[Entry]:
        if at.moment is not Moment.STEP or at.step != step or at.rung != "op":
            return entries
        return [*steps(at.rank), *entries]

    return change


def on(rank: int, changed: list[Entry], usual: list[Entry]) -> Steps:
    """One rank records something else."""
    return lambda own: changed if own == rank else usual


def other(entry: Entry) -> Entry:
    """With another output."""
    return dataclasses.replace(entry, output=words("another", entry.output))
