"""Collects the runs of an experiment, and writes all their step times as Parquet: one row a run, rank and step.

What `samebits collect` does and says: seals one arm, or all runs of an experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from samebits.compare.collect import collect
from samebits.compare.export import groups, write
from samebits.fingerprint.clock import ClockPhase
from samebits.fingerprint.manifest import Manifest, read_clocks
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.overhead.analysis import STEP_TIMES, Runs, measure
from samebits.overhead.results import Cost
from samebits.overhead.timing import counted, timing_of
from samebits.spec.overhead import Experiment
from samebits.spec.sections import Recipe

ROWS = pa.schema(
    [
        ("experiment", pa.string()),
        ("run", pa.string()),
        ("setting", pa.string()),
        ("block", pa.int32()),
        ("position", pa.int32()),
        ("rank", pa.int32()),
        ("step", pa.int64()),
        ("warm_up", pa.bool_()),
        ("checkpoint", pa.bool_()),
        *((f"{phase.name.lower()}_ns", pa.int64()) for phase in ClockPhase),
        ("step_ns", pa.int64()),
    ]
)
"""step_ns: what an interval is made of, of the slowest rank: the phases of training, and capture where a run has it.
warm_up: the row counts for nothing; checkpoint: one was written right after the step."""


def run_folders(folder: Path) -> list[Artifact]:
    """Of an experiment, in no order; none where it is no experiment's folder."""
    if (folder / "plan.json").exists():
        return []
    return [Artifact(path.parent) for path in sorted(folder.glob("*/plan.json"))]


def collect_runs(artifacts: Sequence[Artifact], *, deep: bool | None = None) -> list[Manifest]:
    """Of all runs, in the order in which they were made; then writes the step times beside them.

    Raises ArtifactError with every problem of every run, a line each; the step times are not written then.
    """
    found, problems = [], []
    for artifact in artifacts:
        try:
            found.append(collect(artifact.folder, deep=deep))
        except ArtifactError as error:
            problems.append(str(error))
    problems += [
        f"arm {manifest.plan.arm}: measures no time; take it away" for manifest in found if not _timed(manifest)
    ]
    if problems:
        raise ArtifactError("\n".join(problems))
    ordered = sorted(zip(found, artifacts, strict=True), key=lambda entry: _place(entry[0]))
    path = artifacts[0].folder.with_name(STEP_TIMES)
    try:
        write(path, ROWS, groups(_tables(ordered)))
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written ({error}); free space, then collect again") from error
    return [manifest for manifest, _ in ordered]


def measured(recipe: Recipe, experiment: Experiment, results: Path, slowdown_percent: float = 0.0) -> Cost:
    """Of runs that have all been made; they are collected where that was not done yet."""
    found = measure(Runs(recipe, experiment, results, slowdown_percent))
    if not found.problems:
        return found
    runs = Runs(recipe, experiment, results, slowdown_percent)
    collect_runs(run_folders(runs.folder))
    return measure(runs)


def _timed(manifest: Manifest) -> bool:
    return manifest.plan.timing is not None


def _place(manifest: Manifest) -> tuple[int, int]:
    timing = timing_of(manifest.plan)
    return timing.block, timing.position


def _tables(ordered: Sequence[tuple[Manifest, Artifact]]) -> Iterator[Any]:
    for manifest, artifact in ordered:
        for rank, clocks in enumerate(read_clocks(artifact, manifest)):
            yield _table(manifest, rank, clocks)


def _table(manifest: Manifest, rank: int, clocks: Any) -> Any:
    timing, count = timing_of(manifest.plan), len(clocks)
    spent = clocks["spent"]
    columns = [
        *([value] * count for value in (timing.experiment, manifest.plan.arm, timing.setting)),
        *(np.full(count, value, np.int32) for value in (timing.block, timing.position, rank)),
        clocks["step"].astype(np.int64),
        np.arange(count) < timing.warm_up,
        clocks["saved"] != 0,
        *(np.ascontiguousarray(spent[:, phase]) for phase in ClockPhase),
        spent[:, counted(manifest.plan)].sum(axis=1),
    ]
    arrays = [pa.array(column, type=entry.type) for column, entry in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)


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
