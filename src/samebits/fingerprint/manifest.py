"""The manifest of an artifact: written last by `samebits collect`, and what every comparison starts from.

The file is canonical JSON followed by a line with its own digest, so that a changed byte anywhere in it is seen.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samebits.fingerprint.clock import CLOCK, Clocks
from samebits.fingerprint.format import Coordinates
from samebits.fingerprint.paths import Artifact, ArtifactError, write_whole
from samebits.spec.pins import Pins
from samebits.spec.plan import Plan, PlanError, decode

__all__ = [
    "MANIFEST_FORMAT",
    "ArtifactError",
    "BlockName",
    "Manifest",
    "Planted",
    "RankFile",
    "Table",
    "Unhealthy",
    "read_clocks",
    "read_manifest",
    "read_table",
    "run_fingerprint",
    "write_clocks",
    "write_table",
]

MANIFEST_FORMAT = 2
"""2: clock records."""


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """check: hex of the last frame's check, which binds the whole file. deep: the records were re-read by collect."""

    rank: int
    bytes: int
    check: str
    records: int
    skipped: int
    deep: bool
    coordinates: Coordinates
    pins: Pins


@dataclass(frozen=True, kw_only=True)
class BlockName:
    """moment: lower-case name. rungs: of each rank, in rank order, run-length encoded as (rung, number of ranks)."""

    moment: str
    step: int
    rungs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Where a planted fault struck, as the rank itself noted it. site: kind:name, as in a finding."""

    fault: str
    rank: int
    moment: str
    step: int
    kind: str
    name: str
    scope: str


@dataclass(frozen=True, kw_only=True)
class Unhealthy:
    """A loss or gradient norm that is not finite, as the rank itself noted it. value: `nan`, `inf` or `-inf`."""

    rank: int
    step: int
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """blocks: what every rank recorded, in order. table, clocks: sha256 of table.npy and of clocks.npy; the
    latter empty where no time was measured. run_fingerprint: see the function.

    In the file, pins that several ranks share stand once: at 2,432 ranks the difference is 20 MB.
    """

    format: int = MANIFEST_FORMAT
    digest: str
    launch: str
    plan: Plan
    blocks: tuple[BlockName, ...]
    ranks: tuple[RankFile, ...]
    planted: tuple[Planted, ...]
    unhealthy: tuple[Unhealthy, ...]
    table: str
    clocks: str
    run_fingerprint: str

    def write(self, artifact: Artifact) -> None:
        shared: dict[str, int] = {}
        content = dataclasses.asdict(dataclasses.replace(self, ranks=()))
        content["ranks"] = [_packed(rank, shared) for rank in self.ranks]
        content["pins"] = [json.loads(text) for text in shared]
        body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        write_whole(artifact.manifest, body + b"\n" + _own_digest(body) + b"\n")


def _packed(rank: RankFile, shared: dict[str, int]) -> dict[str, Any]:
    """shared: JSON of pins without their placement -> number, in order of first use."""
    groups = {group.name: getattr(rank.pins, group.name) for group in dataclasses.fields(rank.pins)}
    placement = groups.pop("placement")
    number = shared.setdefault(json.dumps(groups, sort_keys=True), len(shared))
    entry = {name: getattr(rank, name) for name in _PLAIN}
    return {**entry, "coordinates": dataclasses.asdict(rank.coordinates), "placement": placement, "pins": number}


_PLAIN = [entry.name for entry in dataclasses.fields(RankFile) if entry.name not in ("coordinates", "pins")]


def _unpacked(entry: dict[str, Any], shared: list[Pins]) -> RankFile:
    surroundings, placement = shared[entry.pop("pins")], decode(Pins, {"placement": entry.pop("placement")}).placement
    rank = decode(RankFile, {**entry, "pins": {}})
    return dataclasses.replace(rank, pins=dataclasses.replace(surroundings, placement=placement))


def _own_digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def read_manifest(artifact: Artifact) -> Manifest:
    """Raises ArtifactError where it is missing, damaged or of another format."""
    path, again = artifact.manifest, f"`samebits collect {artifact.folder}`"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be read ({error.strerror}); the arm is not finished: run it, then {again}"
        ) from error
    body, _, rest = data.partition(b"\n")
    if rest != _own_digest(body) + b"\n":
        raise ArtifactError(f"{path}: does not match its own digest, it was changed or cut; {again} again")
    content = json.loads(body)
    if content.get("format") != MANIFEST_FORMAT:
        raise ArtifactError(f"{path}: format is {content.get('format')!r}, must be {MANIFEST_FORMAT}; {again} again")
    try:
        return _decoded(content)
    except (PlanError, LookupError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path}: {error}; {again} again") from error


def _decoded(content: dict[str, Any]) -> Manifest:
    shared = [decode(Pins, pins) for pins in content.pop("pins")]
    ranks = tuple(_unpacked(entry, shared) for entry in content.pop("ranks"))
    return dataclasses.replace(decode(Manifest, {**content, "ranks": []}), ranks=ranks)


Table = NDArray[np.uint8]
"""uint8, shape (ranks, blocks, 32): block digest (16 bytes) and chain (16 bytes)."""


def write_table(artifact: Artifact, table: Table) -> str:
    """Returns the file's sha256."""
    return _saved(artifact.table, table)


def write_clocks(artifact: Artifact, clocks: Clocks) -> str:
    """clocks: CLOCK, shape (ranks, steps). Returns the file's sha256."""
    return _saved(artifact.clocks, clocks)


def _saved(path: Path, array: NDArray[Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_whole(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def read_table(artifact: Artifact, manifest: Manifest) -> Table:
    """Raises ArtifactError where the table is missing or is not the one that the manifest seals."""
    table: Table = _loaded(artifact, artifact.table, manifest.table)
    if table.dtype != np.uint8 or table.shape != (len(manifest.ranks), len(manifest.blocks), 32):
        raise ArtifactError(
            f"{artifact.table}: has shape {table.shape}, not (ranks, blocks, 32) of the manifest; {_again(artifact)}"
        )
    return table


def read_clocks(artifact: Artifact, manifest: Manifest) -> Clocks:
    """CLOCK, shape (ranks, steps), of a run that measures time. Raises ArtifactError where they are missing or are not
    those that the manifest seals."""
    clocks: Clocks = _loaded(artifact, artifact.clocks, manifest.clocks)
    if clocks.dtype != CLOCK or clocks.ndim != 2 or len(clocks) != len(manifest.ranks):
        raise ArtifactError(
            f"{artifact.clocks}: is no table (ranks, steps) of the manifest's ranks; {_again(artifact)}"
        )
    return clocks


def _loaded(artifact: Artifact, path: Path, sealed: str) -> NDArray[Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); {_again(artifact)}") from error
    if hashlib.sha256(data).hexdigest() != sealed:
        raise ArtifactError(f"{path}: is not the {path.stem} that the manifest seals; {_again(artifact)}")
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _again(artifact: Artifact) -> str:
    return f"`samebits collect {artifact.folder}` again"


def run_fingerprint(digest: str, chains: Sequence[bytes]) -> str:
    """`sb1-` and 26 base32 characters of blake2b-128 over the digest id, the world size and each rank's last chain.

    A chain covers every block's moment, step, rung and records, so equal run fingerprints mean equal bits at equal
    rungs on every rank. Time, place, arm name and pins are not in it.
    """
    state = hashlib.blake2b(f"samebits-run-1 {digest} {len(chains)}\n".encode(), digest_size=16)
    for chain in chains:
        state.update(chain)
    return "sb1-" + base64.b32encode(state.digest()).decode().rstrip("=").lower()
