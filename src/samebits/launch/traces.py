"""What one start of an arm leaves in its artifact, beside its plan and the `launch` folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from samebits.fingerprint.paths import Artifact


def missing(artifact: Artifact, world: int) -> list[int]:
    """Ranks without a fingerprint file; one look into the folder, however many ranks."""
    try:
        names = {entry.name for entry in artifact.folder.iterdir()}
    except OSError:
        names = set()
    return [rank for rank in range(world) if artifact.fingerprint(rank).name not in names]


def clear(artifact: Artifact) -> None:
    """Leaves nothing of a start that computed nothing yet, but its logs."""
    for path in (*artifact.folder.glob("rank-*.fp"), artifact.progress):
        path.unlink(missing_ok=True)
    shutil.rmtree(artifact.checkpoints, ignore_errors=True)


def set_aside(artifact: Artifact) -> Path | None:
    """Moves what a start left to `superseded/ARM`, beside `arms`, where the latest one of each arm is kept. The plan
    and the `launch` folder stay. None where there was nothing."""
    if not (left := _left(artifact)):
        return None
    aside = superseded(artifact)
    aside.mkdir(parents=True)
    for path in left:
        path.rename(aside / path.name)
    shutil.copyfile(artifact.plan, aside / artifact.plan.name)
    return aside


def superseded(artifact: Artifact) -> Path:
    """Where an artifact that must make way goes; nothing is there."""
    home, name = artifact.folder.parent, artifact.folder.name
    aside = home.parent / "superseded" / (name if home.name == "arms" else f"{home.name}-{name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    return aside


def _left(artifact: Artifact) -> list[Path]:
    return [path for path in artifact.folder.iterdir() if path not in (artifact.plan, artifact.launch)]
