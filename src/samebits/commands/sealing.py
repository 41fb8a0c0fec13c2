"""What `samebits collect` does and says: seals one arm, or all runs of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.compare.collect import collect
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.paths import ArtifactError
from samebits.overhead.step_times import collect_runs, run_folders


@dataclass(frozen=True)
class Sealed:
    """text: for a person. as_json: for a machine. refused: nothing was sealed, and the stamp says why."""

    text: str
    as_json: dict[str, Any]
    refused: bool = False


def seal(folder: Path, *, deep: bool | None, stamp: Path | None) -> Sealed:
    """stamp: gets the outcome, a refusal too. Raises ArtifactError where there is none and the arm is refused."""
    runs = run_folders(folder)
    try:
        found = collect_runs(runs, deep=deep) if runs else [collect(folder, deep=deep)]
    except ArtifactError as error:
        if stamp is None:
            raise
        stamp.write_text(f"refused\n{error}\n", encoding="utf-8")
        return Sealed(f"{folder}: refused\n{error}", {"refused": str(error)}, refused=True)
    if stamp is not None:
        stamp.write_text("".join(map(_stamped, found)), encoding="utf-8")
    return _of_runs(folder, found) if runs else _of_arm(folder, found[0])


def _stamped(manifest: Manifest) -> str:
    return f"sealed\n{manifest.run_fingerprint}\nlaunch {manifest.launch}\n"


def _of_arm(folder: Path, manifest: Manifest) -> Sealed:
    ranks, records = len(manifest.ranks), sum(rank.records for rank in manifest.ranks)
    return Sealed(
        f"{folder}: {manifest.run_fingerprint}, {ranks} ranks, {records} records",
        {"run_fingerprint": manifest.run_fingerprint, "ranks": ranks, "records": records},
    )


def _of_runs(folder: Path, manifests: Sequence[Manifest]) -> Sealed:
    ranks = len(manifests[0].ranks)
    each = f"{ranks} rank{'s' * (ranks > 1)} each"
    return Sealed(f"{folder}: {len(manifests)} runs, {each}", {"runs": len(manifests), "ranks": ranks})
