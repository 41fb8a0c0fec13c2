"""Shows what an artifact or a single fingerprint file holds, damaged ones included. This proves nothing.

shown = show(Path("results/smoke/arms/reference"))
lines = show_records(Path("results/smoke/arms/reference"), Choice(rank=1, moment="step", step=7))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from samebits.compare.records import record_view
from samebits.compare.results import RecordIdentity, RecordView
from samebits.fingerprint import reader
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import FingerprintFile
from samebits.fingerprint.records import Flag, Moment


@dataclass(frozen=True, kw_only=True)
class ShownBlock:
    """One block. digest, chain: hex. seconds: that it took."""

    moment: str
    step: int
    rung: str
    records: int
    skipped: int
    digest: str
    chain: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """One rank's file.

    fault: why the valid prefix ends; None: whole, sealed and verified. Header entries are empty where it is not
    readable. notes: as JSON-like text.
    """

    path: str
    rank: int | None
    arm: str
    coordinates: str
    host: str
    digest: str
    launch: str
    sealed: bool
    verified: bool
    valid_bytes: int
    bytes: int
    fault: str | None
    records: int
    sites: int
    blocks: tuple[ShownBlock, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An artifact or a single file.

    problem: why the artifact is not finished; None where its manifest is whole, and for a single file.
    """

    path: str
    arm: str
    run_fingerprint: str
    problem: str | None
    files: tuple[ShownFile, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One block of one rank. rank: of a folder; for a single file it is not looked at."""

    rank: int = 0
    moment: str = "step"
    step: int


@dataclass(frozen=True, kw_only=True)
class ShownRecord(RecordIdentity):
    """One record. seq: its place in the block. input: 16 hex digits, None where it is not known."""

    seq: int
    input: str | None
    record: RecordView


def show(path: Path) -> Shown:
    """Read an arm's folder or one `.fp` file, every record included. Raises ArtifactError where there is none."""
    if not path.is_dir():
        file = _show_file(path)
        return Shown(path=str(path), arm=file.arm, run_fingerprint="", problem=None, files=(file,))
    artifact = Artifact(path)
    arm, fingerprint, problem = artifact.folder.name, "", None
    try:
        manifest = read_manifest(artifact)
        arm, fingerprint = manifest.plan.arm, manifest.run_fingerprint
    except ArtifactError as error:
        problem = str(error)
    paths = sorted(artifact.folder.glob("rank-*.fp"))
    if not paths and problem is not None:
        raise ArtifactError(f"{artifact.folder}: holds neither a manifest nor a fingerprint file; give an arm's folder")
    files = tuple(_show_file(path) for path in paths)
    return Shown(path=str(artifact.folder), arm=arm, run_fingerprint=fingerprint, problem=problem, files=files)


def show_records(path: Path, choice: Choice) -> tuple[ShownRecord, ...]:
    """Read one block's records, of a damaged file as far as it is valid. Raises ArtifactError where it is not there."""
    chosen = Artifact(path).fingerprint(choice.rank) if path.is_dir() else path
    file = _read(chosen)
    if (moment := Moment.__members__.get(choice.moment.upper())) is None:
        known = ", ".join(moment.name.lower() for moment in Moment)
        raise ArtifactError(f"moment is {choice.moment!r}, must be one of {known}; `step` is the usual one")
    block = file.block(moment, choice.step)
    if block is None:
        known = ", ".join(str(block) for block in file.blocks[:8]) or "none"
        raise ArtifactError(f"{chosen}: has no {choice.moment} block of step {choice.step}; it has {known}, ...")
    found = []
    for seq, record in enumerate(file.records(block)):
        site = file.sites[record["site"]]
        found.append(
            ShownRecord(
                seq=seq,
                phase=site.phase,
                kind=site.kind,
                name=site.name,
                scope=site.scope,
                occurrence=int(record["occurrence"]),
                input=f"{int(record['input']):016x}" if record["flags"] & Flag.INPUT else None,
                record=record_view(file, record),
            )
        )
    return tuple(found)


def _read(path: Path) -> FingerprintFile:
    try:
        return reader.read(path, deep=True)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); give an arm's folder or a .fp file") from error


def _show_file(path: Path) -> ShownFile:
    file = _read(path)
    header = file.header
    try:
        sites = len(file.sites)
    except (ValueError, TypeError):
        sites = 0
    blocks = [
        ShownBlock(
            moment=block.moment.name.lower(),
            step=block.step,
            rung=block.rung,
            records=block.records,
            skipped=block.skipped,
            digest=block.digest.hex(),
            chain=block.chain.hex(),
            seconds=(block.ended - block.started) / 1e9,
        )
        for block in file.blocks
    ]
    return ShownFile(
        path=str(path),
        rank=header.coordinates.rank if header else None,
        arm=header.plan.arm if header else "",
        coordinates=str(header.coordinates) if header else "",
        host=header.pins.node if header else "",
        digest=header.digest if header else "",
        launch=header.launch if header else "",
        sealed=file.seal is not None,
        verified=file.verified is not None,
        valid_bytes=file.valid_bytes,
        bytes=len(file.data),
        fault=file.fault,
        records=sum(block.records for block in file.blocks),
        sites=sites,
        blocks=tuple(blocks),
        notes=tuple(str(note) for note in file.notes),
    )
