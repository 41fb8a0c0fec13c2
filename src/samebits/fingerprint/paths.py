"""One object owns all paths of an artifact; files that others wait for appear whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class ArtifactError(ValueError):
    """An artifact that cannot be used: which file, what is wrong, the way out."""


@dataclass(frozen=True)
class Artifact:
    """The folder of one arm."""

    folder: Path

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def table(self) -> Path:
        return self.folder / "table.npy"

    @property
    def clocks(self) -> Path:
        """The step times of a run that measures time."""
        return self.folder / "clocks.npy"

    @property
    def launch(self) -> Path:
        """The folder of submitit: its scripts, pickles and the job's own log."""
        return self.folder / "launch"

    @property
    def outcome(self) -> Path:
        """The launcher's report, written when every rank has ended."""
        return self.folder / "outcome.json"

    @property
    def progress(self) -> Path:
        return self.folder / "progress"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    @property
    def own_checkpoints(self) -> Path:
        """The folder that a user's own launch command saves checkpoints to, in whatever layout it has."""
        return self.checkpoints / "own"

    @property
    def own_logs(self) -> Path:
        """The folder for all other output of a user's own launch command."""
        return self.folder / "logs" / "own"

    def fingerprint(self, rank: int) -> Path:
        return self.folder / f"rank-{rank:05d}.fp"

    def log(self, rank: int) -> Path:
        return self.folder / "logs" / f"rank-{rank:05d}.log"


def write_whole(path: Path, data: bytes) -> None:
    """Temporary name in the same folder, fsync, rename, fsync of the folder. Leaves nothing behind where it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
