"""Collects an artifact: verifies every rank's file against the plan and seals the whole with a manifest.

    manifest = collect(Path("results/smoke/arms/reference"))

The manifest is written last. Without it an artifact is not finished, and no comparison reads it.
"""

from __future__ import annotations

import fcntl
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from samebits.compare.verify import RankProblemError, RankSummary, summarize
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.manifest import BlockName, Manifest, run_fingerprint, write_clocks, write_table
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.spec.plan import Plan, PlanError

DEEP_BYTES = 1 << 30
"""Up to this size of all files together, records are re-read unless asked otherwise."""
LINES = 20
"""Problems that a message lists; thousands of ranks may have as many different ones."""


class Problems:
    """All that is wrong with one artifact, to be reported together; a problem that several ranks share is one line."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._whole: list[str] = []
        self._ranks: dict[str, list[int]] = {}

    def add(self, problem: str) -> None:
        """Note a problem of the artifact as a whole; its text names the file or ranks itself."""
        self._whole.append(problem)

    def of_rank(self, rank: int, problem: str) -> None:
        self._ranks.setdefault(problem, []).append(rank)

    def refuse(self) -> None:
        """Raise ArtifactError with all problems, if there are any."""
        lines = list(self._whole)
        for problem, ranks in sorted(self._ranks.items(), key=lambda item: item[1]):
            name = self._artifact.fingerprint(ranks[0]).name
            one = len(ranks) == 1
            subject = f"rank {ranks[0]}, {name}" if one else f"ranks {ranks_text(ranks)} ({name} and so on)"
            lines.append(f"{subject}: {problem}")
        if len(lines) == 1:
            raise ArtifactError(f"{self._artifact.folder}: {lines[0]}")
        if lines:
            more = [f"and {len(lines) - LINES} more"] if len(lines) > LINES else []
            text = "\n".join(f"- {line}" for line in lines[:LINES] + more)
            raise ArtifactError(f"{self._artifact.folder}: {len(lines)} problems\n{text}")


def collect(folder: Path, *, deep: bool | None = None) -> Manifest:
    """Write `table.npy` and `manifest.json`, in place of older ones.

    deep: whether records are re-read; None: where all files together are small enough. Otherwise the last frame of each
    file counts, which says what the rank found when it re-read its own file.

    Raises ArtifactError with every problem of the artifact, a line each; then not even an old manifest is left.
    """
    artifact = Artifact(folder)
    if not artifact.folder.is_dir():
        raise ArtifactError(f"{artifact.folder}: no such folder; give the folder of an arm")
    if not (artifact.plan.exists() or any(artifact.folder.glob("rank-*.fp"))):
        _read_plan(artifact)
    # Another pipeline's job may collect the same artifact: one after the other.
    lock = artifact.folder / ".collecting"
    try:
        stream = lock.open("a")
    except OSError as error:
        raise ArtifactError(f"{lock}: cannot be written ({error.strerror}); its folder must be writable") from error
    with stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
        try:
            for old in (artifact.manifest, artifact.table, artifact.clocks):
                old.unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"{error.filename}: cannot be replaced ({error.strerror}); take it away") from error
        return _collected(artifact, deep)


def _collected(artifact: Artifact, deep: bool | None) -> Manifest:
    plan = _read_plan(artifact)
    problems = Problems(artifact)
    launch = check_outcome(artifact, problems)
    present = check_files(artifact, plan.world, problems)
    if deep is None:
        deep = total_bytes(artifact, present) <= DEEP_BYTES
    ranks = []
    for rank in present:
        try:
            ranks.append(summarize(artifact.fingerprint(rank), plan, rank, deep=deep))
        except RankProblemError as error:
            problems.of_rank(rank, str(error))
    digests = _grouped(ranks, lambda rank: rank.header.digest)
    if len(digests) > 1:
        problems.add(f"digests of different kinds: {_listed(digests)}; run the arm again with one samebits")
    starts = _grouped(ranks, lambda rank: rank.header.launch)
    if len(starts) > 1:
        problems.add(f"files of different starts of the arm: {_listed(starts)}; run the arm again in an empty folder")
    elif launch is not None and starts and launch not in starts:
        problems.add(f"outcome.json is of start {launch}, the files are of start {min(starts)}; run the arm again")
    problems.refuse()
    return _seal(artifact, plan, ranks)


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
    """Check what the launcher wrote at the end, and return the id of the start that it speaks of.

    A bare folder of files has no outcome: None.
    """
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
    """Note missing and foreign files, and return the ranks whose file is there."""
    there = {path.name for path in artifact.folder.glob("*.fp")}
    names = {rank: artifact.fingerprint(rank).name for rank in range(world)}
    if missing := [rank for rank, name in names.items() if name not in there]:
        word = f"ranks {ranks_text(missing)}" if len(missing) > 1 else f"rank {missing[0]}"
        problems.add(f"{word}: no fingerprint file ({names[missing[0]]}); restore it or run the arm again")
    for name in sorted(there - set(names.values())):
        problems.add(f"{name}: belongs to none of the {world} ranks of the plan; take it away or run the arm again")
    return [rank for rank, name in names.items() if name in there]


def total_bytes(artifact: Artifact, ranks: Sequence[int]) -> int:
    try:
        return sum(artifact.fingerprint(rank).stat().st_size for rank in ranks)
    except OSError as error:
        raise ArtifactError(
            f"{error.filename}: cannot be read ({error.strerror}); restore it or run the arm again"
        ) from error


def _grouped(ranks: Sequence[RankSummary], key: Callable[[RankSummary], str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(key(rank), []).append(rank.file.rank)
    return groups


def _listed(groups: dict[str, list[int]]) -> str:
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}: {key}" for key, ranks in groups.items()
    )


def _seal(artifact: Artifact, plan: Plan, ranks: Sequence[RankSummary]) -> Manifest:
    """Write the table of all block digests, then the manifest."""
    rows = b"".join(block.digest + block.chain for rank in ranks for block in rank.blocks)
    table = np.frombuffer(rows, dtype=np.uint8).reshape(len(ranks), -1, 32)
    names = []
    for index, block in enumerate(ranks[0].blocks):
        # Rungs are stored run-length encoded: thousands of ranks usually share one.
        runs = itertools.groupby(rank.blocks[index].rung for rank in ranks)
        rungs = tuple((rung, len(list(run))) for rung, run in runs)
        names.append(BlockName(moment=block.moment.name.lower(), step=block.step, rungs=rungs))
    header = ranks[0].header
    try:
        manifest = Manifest(
            digest=header.digest,
            launch=header.launch,
            plan=plan,
            blocks=tuple(names),
            ranks=tuple(rank.file for rank in ranks),
            planted=tuple(note for rank in ranks for note in rank.planted),
            unhealthy=tuple(note for rank in ranks for note in rank.unhealthy),
            table=write_table(artifact, table),
            clocks=write_clocks(artifact, np.stack([rank.clocks for rank in ranks])) if plan.timing else "",
            run_fingerprint=run_fingerprint(header.digest, [rank.blocks[-1].chain for rank in ranks]),
        )
        manifest.write(artifact)
    except OSError as error:
        raise ArtifactError(
            f"{artifact.folder}: no manifest can be written ({error.strerror}); free space, then collect again"
        ) from error
    return manifest
