"""Collects an artifact: verifies every rank's file against the plan and seals the whole with a manifest.

    manifest = collect(Path("results/smoke/arms/reference"))

The manifest is written last. Without it an artifact is not finished, and no comparison reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from samebits.compare.problems import Problems
from samebits.compare.verify import RankProblemError, RankSummary, summarize
from samebits.fingerprint.manifest import BlockName, Manifest, Table, run_fingerprint, write_clocks, write_table
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.ranks import ranks_text
from samebits.spec.plan import Plan, PlanError

DEEP_BYTES = 1 << 30
"""Up to this size of all files together, records are re-read unless asked otherwise."""


def collect(folder: Path, *, deep: bool | None = None) -> Manifest:
    """Writes `table.npy` and `manifest.json`, in place of older ones.

    deep: whether records are re-read; None: where all files together are small enough. Otherwise what each rank found
    when it re-read its own file, as its last frame says, must do.

    Raises ArtifactError with every problem of the artifact, a line each; then not even an old manifest is left.
    """
    artifact = Artifact(folder)
    if not artifact.folder.is_dir():
        raise ArtifactError(f"{artifact.folder}: no such folder; give the folder of an arm")
    if not (artifact.plan.exists() or any(artifact.folder.glob("rank-*.fp"))):
        _read_plan(artifact)
    with _alone(artifact):
        _forget(artifact)
        return _collected(artifact, deep)


@contextlib.contextmanager
def _alone(artifact: Artifact) -> Iterator[None]:
    """Another pipeline's job may collect the same artifact: one after the other."""
    path = artifact.folder / ".collecting"
    try:
        stream = path.open("a")
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written ({error.strerror}); its folder must be writable") from error
    with stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
        yield


def _collected(artifact: Artifact, deep: bool | None) -> Manifest:
    plan = _read_plan(artifact)
    problems = Problems(artifact)
    launch = check_outcome(artifact, problems)
    present = check_files(artifact, plan.world, problems)
    if deep is None:
        deep = total_bytes(artifact, present) <= DEEP_BYTES
    ranks = _summaries(artifact, plan, present, deep, problems)
    _check_mixed(ranks, launch, problems)
    problems.refuse()
    return _seal(artifact, plan, ranks)


def _forget(artifact: Artifact) -> None:
    try:
        artifact.manifest.unlink(missing_ok=True)
        artifact.table.unlink(missing_ok=True)
        artifact.clocks.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(f"{error.filename}: cannot be replaced ({error.strerror}); take it away") from error


def _read_plan(artifact: Artifact) -> Plan:
    path = artifact.plan
    try:
        return Plan.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be read ({error.strerror}); is {artifact.folder} the folder of an arm?"
        ) from error
    except (PlanError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: {error}; it was changed: run the arm again") from error


def check_outcome(artifact: Artifact, problems: Problems) -> str | None:
    """Id of the start that the launcher speaks of. A bare folder of files has no outcome."""
    path = artifact.outcome
    try:
        body = dict(json.loads(path.read_bytes()))
        ok, message = body["ok"], str(body["message"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        problems.add(f"{path.name}: cannot be read ({type(error).__name__}: {error}); run the arm again")
        return None
    if ok is not True:
        problems.add(f"{path.name}: the launcher says: {message.partition(chr(10))[0] or 'the arm failed'}")
    if body.get("launch") == "":
        problems.add(f"{path.name}: names no launch; run the arm again")
    return str(body["launch"]) if body.get("launch") else None


def check_files(artifact: Artifact, world: int, problems: Problems) -> list[int]:
    """Ranks whose file is there."""
    there = {path.name for path in artifact.folder.glob("*.fp")}
    names = {rank: artifact.fingerprint(rank).name for rank in range(world)}
    if missing := [rank for rank, name in names.items() if name not in there]:
        word = f"ranks {ranks_text(missing)}" if len(missing) > 1 else f"rank {missing[0]}"
        problems.add(f"{word}: no fingerprint file ({names[missing[0]]}); restore it or run the arm again")
    for name in sorted(there - set(names.values())):
        problems.add(f"{name}: belongs to none of the {world} ranks of the plan; take it away or run the arm again")
    return [rank for rank, name in names.items() if name in there]


def total_bytes(artifact: Artifact, ranks: Iterable[int]) -> int:
    try:
        return sum(artifact.fingerprint(rank).stat().st_size for rank in ranks)
    except OSError as error:
        raise ArtifactError(
            f"{error.filename}: cannot be read ({error.strerror}); restore it or run the arm again"
        ) from error


def _summaries(artifact: Artifact, plan: Plan, ranks: list[int], deep: bool, problems: Problems) -> list[RankSummary]:
    found = []
    for rank in ranks:
        try:
            found.append(summarize(artifact.fingerprint(rank), plan, rank, deep=deep))
        except RankProblemError as error:
            problems.of_rank(rank, str(error))
    return found


def _check_mixed(ranks: Sequence[RankSummary], launch: str | None, problems: Problems) -> None:
    """launch: what all are to be of, where it is known."""
    digests = _grouped(ranks, lambda rank: rank.header.digest)
    if len(digests) > 1:
        problems.add(f"digests of different kinds: {_told(digests)}; run the arm again with one samebits")
    starts = _grouped(ranks, lambda rank: rank.header.launch)
    if len(starts) > 1:
        problems.add(f"files of different starts of the arm: {_told(starts)}; run the arm again in an empty folder")
    elif launch is not None and starts and launch not in starts:
        problems.add(f"outcome.json is of start {launch}, the files are of start {min(starts)}; run the arm again")


def _grouped(ranks: Sequence[RankSummary], key: Callable[[RankSummary], str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(key(rank), []).append(rank.file.rank)
    return groups


def _told(groups: dict[str, list[int]]) -> str:
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}: {key}" for key, ranks in groups.items()
    )


def _seal(artifact: Artifact, plan: Plan, ranks: Sequence[RankSummary]) -> Manifest:
    try:
        manifest = Manifest(
            digest=ranks[0].header.digest,
            launch=ranks[0].header.launch,
            plan=plan,
            blocks=tuple(_block_names(ranks)),
            ranks=tuple(rank.file for rank in ranks),
            planted=tuple(note for rank in ranks for note in rank.planted),
            unhealthy=tuple(note for rank in ranks for note in rank.unhealthy),
            table=write_table(artifact, _table(ranks)),
            clocks=write_clocks(artifact, np.stack([rank.clocks for rank in ranks])) if plan.timing else "",
            run_fingerprint=run_fingerprint(ranks[0].header.digest, [rank.blocks[-1].chain for rank in ranks]),
        )
        manifest.write(artifact)
    except OSError as error:
        raise ArtifactError(
            f"{artifact.folder}: no manifest can be written ({error.strerror}); free space, then collect again"
        ) from error
    return manifest


def _table(ranks: Sequence[RankSummary]) -> Table:
    rows = b"".join(block.digest + block.chain for rank in ranks for block in rank.blocks)
    return np.frombuffer(rows, dtype=np.uint8).reshape(len(ranks), -1, 32)


def _block_names(ranks: Sequence[RankSummary]) -> Iterable[BlockName]:
    for index, block in enumerate(ranks[0].blocks):
        rungs: list[tuple[str, int]] = []
        for rank in ranks:
            rung = rank.blocks[index].rung
            if rungs and rungs[-1][0] == rung:
                rungs[-1] = rung, rungs[-1][1] + 1
            else:
                rungs.append((rung, 1))
        yield BlockName(moment=block.moment.name.lower(), step=block.step, rungs=tuple(rungs))
