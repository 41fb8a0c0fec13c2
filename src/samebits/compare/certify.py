"""Certifies a collected artifact, so that a comparison reads exactly what collect sealed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from samebits.compare.collect import DEEP_BYTES, Problems, check_files, check_outcome
from samebits.compare.verify import RankProblemError, read_whole
from samebits.fingerprint.format import CHECK_BYTES
from samebits.fingerprint.manifest import Manifest, RankFile, Table, read_manifest, read_table, run_fingerprint
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import FingerprintFile
from samebits.spec.pins import Deviation

_COLLECT = "it changed after it was collected: restore it, or collect the artifact again"


@dataclass(frozen=True)
class Certified:
    """An artifact that was checked.

    table: uint8, shape (ranks, blocks, 32), rows in rank order, blocks in the manifest's order; each row is a block's
    digest followed by the chain over all blocks up to it.
    """

    artifact: Artifact
    manifest: Manifest
    table: Table
    _files: dict[int, FingerprintFile] = field(default_factory=dict, repr=False)

    def file(self, rank: int) -> FingerprintFile:
        """Return a rank's file, opened when first asked for. Its records are checked as they are read.

        Raises ArtifactError where it is not the one that was collected.
        """
        if rank not in self._files:
            try:
                self._files[rank] = _same_file(self.artifact, self.manifest.ranks[rank], self.table, deep=False)
            except RankProblemError as error:
                name = self.artifact.fingerprint(rank).name
                raise ArtifactError(f"{self.artifact.folder}: rank {rank}, {name}: {error}") from error
        return self._files[rank]


@dataclass(frozen=True)
class Arm:
    """One arm of a recipe with its evidence.

    problem: why it is no evidence; None exactly where it is certified. deviations: of this arm from what the recipe in
    force asks for.
    """

    name: str
    folder: Path
    certified: Certified | None
    problem: str | None = None
    deviations: tuple[Deviation, ...] = ()

    @property
    def fingerprint(self) -> str:
        return self.certified.manifest.run_fingerprint if self.certified else ""


def load(folder: Path, name: str | None = None) -> Arm:
    """Certify an arm; a damaged or missing one is returned with its problem, under `name` or its folder's name."""
    try:
        certified = certify(Artifact(folder))
    except (ArtifactError, OSError) as error:
        return Arm(name or folder.name, folder, None, problem=str(error))
    return Arm(certified.manifest.plan.arm, folder, certified)


def certify(artifact: Artifact) -> Certified:
    """Check an artifact against its manifest.

    Re-reads every record where all files together are at most 1 GiB; beyond that, size and last check of each file,
    which bind its contents, must be those of the manifest.

    Raises ArtifactError with every problem, a line each.
    """
    manifest = read_manifest(artifact)
    table = read_table(artifact, manifest)
    problems = Problems(artifact)
    # Manifest and table are sealed; these two checks find some that do not belong together or could judge nothing.
    again = f"`samebits collect {artifact.folder}` again"
    if [rank.rank for rank in manifest.ranks] != list(range(manifest.plan.world)) or not manifest.blocks:
        problems.add(f"manifest.json: does not have all {manifest.plan.world} ranks and a block; {again}")
    elif run_fingerprint(manifest.digest, [bytes(row[-1, 16:]) for row in table]) != manifest.run_fingerprint:
        problems.add(f"manifest.json: its run fingerprint is not that of table.npy; {again}")
    launch = check_outcome(artifact, problems)
    if launch not in (None, manifest.launch):
        problems.add(f"outcome.json: is of launch {launch}, the files of {manifest.launch}; run the arm again")
    present = check_files(artifact, len(manifest.ranks), problems)
    deep = sum(rank.bytes for rank in manifest.ranks) <= DEEP_BYTES
    for rank in present:
        try:
            _check_ends(artifact, manifest.ranks[rank])
            if deep:
                _same_file(artifact, manifest.ranks[rank], table, deep=True)
        except RankProblemError as error:
            problems.of_rank(rank, str(error))
    problems.refuse()
    return Certified(artifact, manifest, table)


def _check_ends(artifact: Artifact, rank: RankFile) -> None:
    """Check a file's size and last bytes, without reading what stands between."""
    try:
        with artifact.fingerprint(rank.rank).open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - CHECK_BYTES))
            last = stream.read(CHECK_BYTES)
    except OSError as error:
        raise RankProblemError(f"cannot be read ({error.strerror}); restore it or run the arm again") from error
    if size != rank.bytes:
        raise RankProblemError(f"has {size} bytes, the manifest says {rank.bytes}; {_COLLECT}")
    if last.hex() != rank.check:
        raise RankProblemError(f"ends with check {last.hex()}, the manifest says {rank.check}; {_COLLECT}")


def _same_file(artifact: Artifact, rank: RankFile, table: Table, *, deep: bool) -> FingerprintFile:
    """Read a rank's file, which must be the one that was collected."""
    file = read_whole(artifact.fingerprint(rank.rank), deep=deep)
    if file.check.hex() != rank.check:
        raise RankProblemError(f"ends with check {file.check.hex()}, the manifest says {rank.check}; {_COLLECT}")
    if b"".join(block.digest + block.chain for block in file.blocks) != table[rank.rank].tobytes():
        raise RankProblemError(f"its block digests are not those of table.npy; {_COLLECT}")
    return file
