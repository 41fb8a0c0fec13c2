"""The results of comparing and localizing, as they are written to JSON and presented."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.spec.pins import Deviation
from samebits.spec.verdicts import Verdict

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Result = TypeVar("Result")

FINDING_FORMAT = 1
FINDING_FILE = "finding.json"
"""In `RESULTS/NAME/localize/ARM/`, one for each arm whose difference was localized."""

Role = Literal["origin", "receiver"]
Placement = Literal[
    "one node",
    "same nodes",
    "same nodes, ranks placed otherwise",
    "partly other nodes",
    "other nodes",
    "renamed nodes",
    "unknown nodes",
]
"""Of a candidate's ranks, seen from the reference. `one node` and `same nodes`: rank by rank the same. `renamed nodes`:
machines of the reference under other names. `other nodes`: none in common."""
Allocation = Literal["one allocation", "several allocations", "no scheduler", "unknown allocations"]
"""`unknown allocations`: only some ranks recorded a job, or only some share one."""

Status = Literal["found", "unnamed", "not reproduced", "not traced"]
"""`found`: a cause is named. `unnamed`: the difference came back, and nothing that may be named did it. `not
reproduced`: pairs were run again and agreed. `not traced`: no pair was run, or it parts where nothing can be traced."""


class Symptom(StrEnum):
    """The kind of fault that a divergence looks like."""

    DATA = "data"
    RNG = "RNG"
    RESTORED_STATE = "restored state"
    COLLECTIVE = "collective"
    KERNEL = "kernel"
    CONTROL_FLOW = "control flow"
    LOGGING_ONLY = "logging only"
    HARDWARE_SUSPICION = "hardware suspicion"


@dataclass(frozen=True, kw_only=True)
class RecordView:
    """One record as a person reads it. digest: 32 hex digits. value: exact float64 repr where it is a scalar."""

    form: str
    digest: str
    value: str | None
    skipped: bool


@dataclass(frozen=True, kw_only=True)
class RecordIdentity:
    """The identity of a record in its block.

    occurrence: its number among those with the same other fields in its block, from 0.
    """

    phase: str
    kind: str
    name: str
    scope: str
    occurrence: int


@dataclass(frozen=True, kw_only=True)
class Difference(RecordIdentity):
    """One identity that differs between two blocks. A side is None where it has no counterpart (control flow)."""

    reference: RecordView | None
    candidate: RecordView | None

    @property
    def item(self) -> str:
        """`kind:name`, as waivers and planted faults name it."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, kw_only=True)
class RankDivergence:
    """The first differing block of one rank. first: its first differing record in that rank's own order. differing,
    compared: records in that block. role: `origin` or `receiver`."""

    rank: int
    moment: str
    step: int
    first: Difference
    differing: int
    compared: int
    role: Role
    host: str
    """Node, as the scheduler names it where there is one; both, where the arms ran this rank on two."""


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Ranks whose first divergence has the same moment, step, item and role. ranks: such as `0-7, 9`."""

    ranks: str
    count: int
    moment: str
    step: int
    item: str
    role: Role


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The place where two arms first differ.

    ranks: the origins first; at most 64 ranks are spelled out, `groups` covers all. agreeing: ranks without any
    difference. identical_before: records of the differing ranks, compared equal in blocks before each rank's own
    first difference. differing_blocks: of all ranks. explanation: one sentence for a person.
    """

    moment: str
    step: int
    symptom: Symptom
    explanation: str
    ranks: tuple[RankDivergence, ...]
    groups: tuple[RankGroup, ...]
    agreeing: str
    identical_before: int
    differing_blocks: int


@dataclass(frozen=True, kw_only=True)
class WaivedItem:
    item: str
    reason: str
    holds: bool
    """False where the difference reached something else: then it counts."""
    seen: bool
    """Whether there was such a difference, up to the first one of each rank that is not waived."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The extent of a comparison. share: records fingerprinted / records there were (skipped ones lower it), 0..1.
    full_blocks: rank-steps at the recipe's rung, of `blocks`."""

    ranks: int
    first_step: int
    last_step: int
    rung: str
    blocks: int
    full_blocks: int
    records: int
    skipped: int
    share: float
    placement: Placement
    allocation: Allocation
    restart: int | None
    """Step whose checkpoint the candidate started from."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two arms. verdict: `pass` identical, `fail` diverged, `invalid` deviations, `inconclusive` nothing or not
    enough compared. problems: why it is invalid or inconclusive, a message each."""

    reference: str
    candidate: str
    reference_arm: str
    candidate_arm: str
    verdict: Verdict
    reference_fingerprint: str
    candidate_fingerprint: str
    deviations: tuple[Deviation, ...]
    problems: tuple[str, ...]
    divergence: Divergence | None
    waived: tuple[WaivedItem, ...]
    scope: Scope | None


@dataclass(frozen=True, kw_only=True)
class Vote:
    """From three comparable arms on: which one is odd at the first difference, and where. odd: arm name or None where
    no majority exists."""

    arms: tuple[str, ...]
    moment: str
    step: int
    ranks: str
    odd: str | None
    hosts: tuple[str, ...]
    explanation: str


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The outcome of one gate. gate: its name. explanation: one sentence. comparisons: the evidence."""

    gate: str
    verdict: Verdict
    explanation: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric of two arms by step. ulps: distance in units in the last place of the value's own dtype, None where
    one side is missing or not finite."""

    name: str
    steps: tuple[int, ...]
    reference: tuple[float | None, ...]
    candidate: tuple[float | None, ...]
    ulps: tuple[int | None, ...]
    candidate_arm: str


@dataclass(frozen=True, kw_only=True)
class Cause(RecordIdentity):
    """The record that is named as the cause. form: of its output. stack: where the code called it, innermost last; of a
    backward pass, where the forward pass did."""

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
class Located:
    """Where a traced pair of runs first differs, and what is blamed.

    why: half a sentence. refused: what differs first and cannot have done it. suspect: what may have, where no cause is
    named. inputs: tensors that the cause read, all equal; None: not known. origins: of most ranks first. receivers:
    ranks that were brought a difference by others. pattern: what the set of origin ranks suggests. around: records
    beside one that has no counterpart.
    """

    moment: str
    step: int
    symptom: Symptom
    cause: Cause | None = None
    why: str
    refused: str = ""
    suspect: str = ""
    inputs: int | None = None
    before: Before | None = None
    origins: tuple[Origin, ...] = ()
    receivers: str = ""
    pattern: str = ""
    cells: tuple[Cell, ...] = ()
    around: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding(Located):
    """What `localize` ends with.

    reference, candidate: names of the arms that were found to differ. launches: ids of their starts, by which a finding
    of earlier runs is recognized. sentence: the line a person reads first. traced: ranks of the last pair that was run.
    tries: pairs that were run. agreed: how many of them agreed. folders: of the last pair, empty where none was run.
    """

    format: int = FINDING_FORMAT
    reference: str
    candidate: str
    launches: tuple[str, str]
    status: Status
    sentence: str
    traced: str
    tries: int
    agreed: int
    folders: tuple[str, ...]


def to_json(result: DataclassInstance) -> str:
    """Encode a result as strict, indented ASCII JSON that ends with a newline."""
    return json.dumps(plain(result), indent=1, allow_nan=False) + "\n"


def plain(result: Any) -> Any:
    """Return a result as the dicts, lists, strings and finite numbers of which its JSON consists.

    Numbers that JSON lacks become the strings `NaN`, `Infinity` and `-Infinity`. Pydantic's own serializer is not used:
    it refuses text with lone surrogates, which paths may hold.
    """
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {entry.name: plain(getattr(result, entry.name)) for entry in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {str(key): plain(value) for key, value in result.items()}
    if isinstance(result, tuple | list):
        return [plain(value) for value in result]
    if isinstance(result, float) and not math.isfinite(result):
        return "NaN" if math.isnan(result) else "Infinity" if result > 0 else "-Infinity"
    return result


def from_plain(kind: type[Result], body: Any) -> Result:
    """Rebuild a result from what `plain` made of it.

    Pydantic reads leniently here, because only then are strings such as `NaN` accepted for numbers. So that no value is
    silently converted (`"3"` to 3), the result must encode to exactly what was read.

    Raises ValueError where the value is not such a result.
    """
    try:
        (found,) = _adapter(kind).validate_python((body,))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, (kind.__name__, *first["loc"][1:])))
        raise ValueError(f"{where}: is {first['input']!r}: {first['msg']}") from error
    if plain(found) != body:
        raise ValueError(f"{kind.__name__}: an entry is missing or has another type than it must have")
    return found  # type: ignore[no-any-return]


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # A dataclass takes its configuration from what stands around it, hence the tuple of one.
    return TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid"))  # type: ignore[valid-type]


def read_finding(path: Path) -> Finding | None:
    """Return the finding in a file, or None where there is none in the format of this samebits."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return from_plain(Finding, body) if body["format"] == FINDING_FORMAT else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def current_findings(results: Path) -> list[Finding]:
    """Return the findings whose two arms are still the runs that they were made of, by the candidate's name.

    results: folder of one recipe's results.
    """
    found = []
    for path in sorted(results.glob(f"localize/*/{FINDING_FILE}")):
        if (finding := read_finding(path)) is None:
            continue
        arms = [Artifact(results / "arms" / arm) for arm in (finding.reference, finding.candidate)]
        try:
            launches = tuple(read_manifest(arm).launch for arm in arms)
        except ArtifactError:
            continue
        if launches == finding.launches:
            found.append(finding)
    return found


def finding_status(finding: Finding) -> int:
    """Return the exit status of `localize`: 1 where the difference is there, 3 where it did not come back or cannot be
    traced."""
    return 1 if finding.status in ("found", "unnamed") else 3
