"""Whether a report still speaks of the artifacts that lie beside it."""

from __future__ import annotations

from pathlib import Path

from samebits.fingerprint.manifest import read_clocks, read_manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.gates.judgement import ArmSummary, Judgement
from samebits.overhead.results import Cost
from samebits.overhead.timing import start_of


def check_standing(judgement: Judgement, folder: Path) -> None:
    """folder: of the recipe's results, with its arms below `arms/`.

    Raises ArtifactError where the report is another recipe's, or an arm is gone or is another run than the one judged.
    """
    again = f"`samebits report` for recipe {judgement.recipe} again"
    if judgement.recipe != folder.resolve().name:
        raise ArtifactError(f"{folder}: its report is of recipe {judgement.recipe!r}, not of this folder's; {again}")
    for arm in judgement.arms:
        if arm.run_fingerprint is not None:
            _check_arm(arm, Artifact(folder / "arms" / arm.arm), again)
    for cost in judgement.costs:
        _check_runs(cost, folder / cost.experiment, again)


def _check_runs(cost: Cost, folder: Path, again: str) -> None:
    for run in (run for run in cost.runs if run.seal):
        artifact = Artifact(folder / run.arm)
        try:
            manifest = read_manifest(artifact)
            read_clocks(artifact, manifest)
        except ArtifactError as error:
            raise ArtifactError(f"the report is stale: {error}; then {again}") from error
        if manifest.plan.arm != run.arm or manifest.clocks != run.seal:
            raise ArtifactError(
                f"{artifact.folder}: is {manifest.plan.arm} of start {start_of(manifest)}, the report was made of "
                f"another run, of start {cost.start}; {again}"
            )


def _check_arm(arm: ArmSummary, artifact: Artifact, again: str) -> None:
    try:
        found = read_manifest(artifact).run_fingerprint
    except ArtifactError as error:
        raise ArtifactError(f"the report is stale: {error}; then {again}") from error
    if found != arm.run_fingerprint:
        raise ArtifactError(
            f"{artifact.folder}: run fingerprint is {found}, the report was made of {arm.run_fingerprint}; {again}"
        )
