"""The noun that localising ends with: what made two arms part, with its evidence, as it is written and presented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FINDING_FORMAT = 1


Status = Literal["found", "unnamed", "not reproduced", "not traced"]
"""`found`: a cause is named. `unnamed`: the difference came back, and nothing that may be named did it. `not
reproduced`: pairs were run again and agreed. `not traced`: no pair was run, or it parts where nothing can be traced."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What is named: one record of one rank. occurrence: which of its kind in that step, from 0. form: of its output.
    stack: where the code called it, innermost last; of a backward pass, where the forward pass did."""

    phase: str
    kind: str
    name: str
    scope: str
    occurrence: int
    form: str
    stack: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Before:
    """Records of the origin in that step that happened before, all equal."""

    operations: int
    gemms: int
    collectives: int
    others: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The same operation by dtype, shape and layout, in that step of that rank, where its inputs are equal: how many
    gave the same output, and how many did not."""

    dtype: str
    shape: str
    layout: str
    same: int
    differing: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Ranks whose bits part by themselves at one place. why: half a sentence."""

    ranks: str
    count: int
    place: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """reference, candidate: the arms that were found to differ, by name; launches: of their starts. folders: of the
    last pair, empty where none was run. sentence: the line a person reads first. symptom: a `judgement.Symptom`.
    inputs: tensors that the cause read, all equal; None: not known. origins: of most ranks first. receivers: ranks that
    were brought a difference by others. pattern: what the ranks suggest. around: records beside one that has no
    counterpart. refused: what differs first and cannot have done it. suspect: what may have. tries: pairs that were
    run; agreed: how many of them agreed."""

    format: int = FINDING_FORMAT
    reference: str
    candidate: str
    launches: tuple[str, str]
    status: Status
    sentence: str
    moment: str
    step: int
    symptom: str
    cause: Cause | None
    why: str
    refused: str
    suspect: str
    inputs: int | None
    before: Before | None
    origins: tuple[Origin, ...]
    receivers: str
    pattern: str
    cells: tuple[Cell, ...]
    around: tuple[str, ...]
    traced: str
    tries: int
    agreed: int
    folders: tuple[str, ...]
