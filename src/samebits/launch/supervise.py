"""What the job of an arm does where all ranks run on its own machine: starts them, watches them, says how it ended."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.launch import environment, failure_messages, job_state, rank_command, traces, varying
from samebits.launch.job_state import Outcome
from samebits.launch.patience import Patience
from samebits.launch.ranks import Ranks
from samebits.spec.plan import Plan

RANK_COMMAND = (sys.executable, *rank_command.RANK)
"""One rank of the built-in trainer; the artifact's folder is appended."""

PORT_TRIES = 3
GRACE_SECONDS = 3.0
"""Left to the other ranks once one has failed, so that their logs say what they saw of it."""


def run_arms(
    starts: Sequence[tuple[str, str]], inherited: Mapping[str, str], command: Sequence[str] | None = None
) -> None:
    """Runs the plans in the artifacts' folders, one after the other; the function of a job. Ends where one fails.

    starts: (folder, id of this start); where the folder says another, nothing is done. inherited: what the ranks take
    over from the surroundings of whoever started the arms. command: starts one process; None: the workload's own.
    """
    for folder, launch in starts:
        if not _run_ranks(folder, launch, inherited, command):
            break


def _run_ranks(folder: str, launch: str, inherited: Mapping[str, str], command: Sequence[str] | None) -> bool:
    """Whether the arm ended well."""
    artifact = Artifact(Path(folder))
    with job_state.running(artifact, launch) as refusal:
        if refusal:
            print(f"{folder}: start {launch}: {refusal}; nothing is run", flush=True)
            return False
        started = time.monotonic()
        message = _LocalArm(artifact, launch, inherited, command).run()
        ended = time.monotonic() - started
        Outcome(ok=not message, message=message, launch=launch, ended=job_state.now(), seconds=round(ended, 3)).write(
            artifact
        )
        return not message


class _LocalArm:
    """One start of an arm; `run` returns what went wrong, or nothing."""

    def __init__(
        self, artifact: Artifact, launch: str, inherited: Mapping[str, str], command: Sequence[str] | None
    ) -> None:
        self._artifact = artifact
        self._launch = launch
        self._plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
        entered = varying.entered(self._plan, artifact.folder, sys.executable)
        own = (sys.executable, *rank_command.entry(self._plan.recipe))
        self._command = [*entered, *(command or own), str(artifact.folder)]
        self._environment = {**inherited, **environment.of_plan(self._plan)}
        self._processes = 1 if rank_command.by_node(self._plan.recipe) else self._plan.world
        self._restored = rank_command.listing(self._plan)
        self._stopped_by: int | None = None
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._stop)

    def run(self) -> str:
        message = ""
        for _ in range(PORT_TRIES):
            ranks = Ranks()
            try:
                self._start(ranks)
                self._patience = Patience(self._plan.recipe, self._artifact.progress)
                message = self._watch(ranks)
                ranks.end(grace=GRACE_SECONDS if self._stopped_by is None else 0)
            finally:
                ranks.end(grace=0)
            if not message or not failure_messages.lost_the_port(self._artifact.log(0)):
                break
            traces.clear(self._artifact)
        return message or self._missing() or rank_command.settle(self._artifact, self._plan, self._restored)

    def _start(self, ranks: Ranks) -> None:
        port = free_port()
        self._artifact.log(0).parent.mkdir(exist_ok=True)
        for rank in [rank for rank in varying.starting_order(self._plan) if rank < self._processes]:
            own = environment.of_local_rank(rank, self._plan.world, port, self._launch)
            ranks.start(rank, self._command, {**self._environment, **own}, self._artifact.log(rank))

    def _watch(self, ranks: Ranks) -> str:
        """Returns when all ranks ended well, with nothing to say, or at the first thing that went wrong."""
        arm, launch = self._plan.arm, self._plan.recipe.launch
        while len(statuses := ranks.ended()) < self._processes or any(statuses.values()):
            if self._stopped_by is not None:
                return f"arm {arm}: was cancelled ({signal.Signals(self._stopped_by).name}), {failure_messages.AGAIN}"
            if failed := [rank for rank, status in statuses.items() if status != 0]:
                rank = _culprit(failed, statuses)
                return failure_messages.of_rank(self._artifact, rank, statuses[rank], socket.gethostname())
            match self._patience.exceeded():
                case "time":
                    return failure_messages.of_time(self._artifact, self._plan.world, launch.time_minutes)
                case "hang":
                    ranks.signal(signal.SIGUSR1)
                    time.sleep(GRACE_SECONDS)
                    return failure_messages.of_hang(self._artifact, self._plan.world, launch.hang_minutes)
            time.sleep(0.02)
        return ""

    def _missing(self) -> str:
        ranks = traces.missing(self._artifact, self._plan.world)
        why = rank_command.why_missing(self._plan)
        return failure_messages.of_missing_file(self._artifact, ranks[0], socket.gethostname(), why) if ranks else ""

    def _stop(self, signum: int, _frame: object) -> None:
        self._stopped_by = signum


def _culprit(failed: Sequence[int], statuses: Mapping[int, int]) -> int:
    """Of ranks seen to have failed at once: a killed one first, since its peers fail for want of it."""
    return next((rank for rank in failed if statuses[rank] < 0), failed[0])


def free_port(address: str = "127.0.0.1") -> int:
    """Free there at this moment; somebody else may take it before rank 0 does. address: empty for all of this host."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
