"""What the job of one or several arms does on its first node: starts the ranks with srun, watches them, says how each
arm ended. A job that Slurm starts again begins all its arms from nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.launch import ending, environment, failure_messages, job_state, traces, varying
from samebits.launch import rank_command as line
from samebits.launch import srun as step
from samebits.launch.job_state import Outcome
from samebits.launch.patience import Patience
from samebits.launch.slurm_cli import SlurmError, names, view
from samebits.launch.srun import Meeting, Stage
from samebits.launch.supervise import GRACE_SECONDS, PORT_TRIES, free_port
from samebits.spec.plan import Plan, PlanError

_LAG_SECONDS = 20.0
"""In which a shared file system shows what another node has written."""
_STACK_SECONDS = 3.0
"""Left to the ranks to write their stacks."""


def run_arms(starts: Sequence[tuple[str, str]], stage: Stage) -> None:
    """Runs the plans in the artifacts' folders, one after the other; the function of a job.

    starts: (folder, launch id as submitted). An arm whose folder says another launch was given up and is passed over.
    """
    again = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    signals = _Signals()
    launched = [(Artifact(Path(folder)), job_state.resumed_as(launch, again)) for folder, launch in starts]
    if again and all(job_state.finished(artifact) for artifact, _ in launched):
        print("every arm of this job had finished; nothing is run", flush=True)
        return
    if again:
        for artifact, launch in launched:
            _begin_again(artifact, launch, again)
    for artifact, launch in launched:
        with job_state.running(artifact, launch) as refusal:
            if refusal:
                print(f"{artifact.folder}: start {launch}: {refusal}; nothing is run", flush=True)
                continue
            started = time.monotonic()
            # Before and after: the file may be replaced while the arms of a job run one after the other.
            message = _check_image(stage) or _run(artifact, launch, stage, signals) or _check_image(stage)
            if message and _ends():
                # Slurm knows best why, and may start the job again.
                print(f"{artifact.folder}: Slurm ends this job\n{message}", flush=True)
                return
            _say(artifact, launch, message, time.monotonic() - started)
        if message and _stand_or_fall_together(artifact):
            print("its experiment needs all its runs; those behind it are not made", flush=True)
            return


def _stand_or_fall_together(artifact: Artifact) -> bool:
    try:
        return Plan.from_json(artifact.plan.read_text(encoding="utf-8")).timing is not None
    except (OSError, PlanError):
        return False


def _run(artifact: Artifact, launch: str, stage: Stage, signals: _Signals) -> str:
    """What went wrong, or nothing; an arm that cannot be run does not keep the others from running."""
    try:
        return _Arm(artifact, launch, stage, signals).run()
    except (OSError, PlanError) as error:
        return f"arm {artifact.folder.name}: job {_job()}: {error}; mend that, {failure_messages.AGAIN}"


def _say(artifact: Artifact, launch: str, message: str, seconds: float) -> None:
    """Nothing where the folder was given to another start meanwhile: Slurm may take a node for lost that lives on."""
    print(message or f"{artifact.folder}: done", flush=True)
    record = job_state.read_record(artifact)
    if record is None or record.launch != launch:
        print(f"{artifact.folder}: is another start's now; no outcome is written", flush=True)
        return
    Outcome(
        ok=not message,
        message=message,
        launch=launch,
        ended=job_state.now(),
        seconds=round(seconds, 3),
        nodes=_nodes(),
    ).write(artifact)


def _begin_again(artifact: Artifact, launch: str, again: int) -> None:
    """Unless the folder was given to another start meanwhile."""
    with job_state.deciding(artifact):
        if job_state.renew(artifact, launch):
            aside = traces.set_aside(artifact)
            print(f"{artifact.folder}: start {again + 1} of this job; what was there is in {aside}", flush=True)


def _check_image(stage: Stage) -> str:
    """What is wrong with the image file, as each node sees it."""
    if stage.image is None or stage.image.file is None:
        return ""
    done = subprocess.run(
        step.image_check(stage, sys.executable, stage.image), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    said = "\n".join(f"    {line}" for line in done.stderr.splitlines()[-failure_messages.LOG_LINES :])
    return (
        f"job {_job()}: the image {stage.image.name} was refused; no step counts\n{said}\n"
        "Put the file back that the recipe names, or lock the new one (`samebits image lock`), then start again."
    )


class _Signals:
    """SIGTERM: cancelled or preempted. SIGUSR2: Slurm's time limit is near."""

    def __init__(self) -> None:
        self.seen: signal.Signals | None = None
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(signum, self._note)

    def _note(self, signum: int, _frame: object) -> None:
        self.seen = signal.Signals(signum)

    def message(self, arm: str) -> str:
        if self.seen is None:
            return ""
        if self.seen is signal.SIGUSR2:
            return (
                f"arm {arm}: job {_job()}: Slurm's time limit is near (SIGUSR2), ended; raise launch.time_minutes, "
                f"from which the job's limit follows, {failure_messages.AGAIN}"
            )
        return f"arm {arm}: job {_job()}: was cancelled or preempted ({self.seen.name}), {failure_messages.AGAIN}"


class _Arm:
    """One start of one arm; `run` returns what went wrong, or nothing."""

    def __init__(self, artifact: Artifact, launch: str, stage: Stage, signals: _Signals) -> None:
        self._artifact = artifact
        self._launch = launch
        self._stage = stage
        self._signals = signals
        self._plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
        self._restored = line.listing(self._plan)
        self._said = artifact.launch / "srun.log"

    def run(self) -> str:
        if self._plan.restore and not Path(self._plan.restore).is_dir():
            return f"arm {self._plan.arm}: starts from {self._plan.restore}, which the arm before it did not write"
        message = ""
        for _ in range(PORT_TRIES):
            message = self._signals.message(self._plan.arm) or self._once()
            if not message or not failure_messages.lost_the_port(self._artifact.log(0)):
                break
            traces.clear(self._artifact)
        return message or self._missing() or line.settle(self._artifact, self._plan, self._restored)

    def _once(self) -> str:
        self._artifact.log(0).parent.mkdir(exist_ok=True)
        meeting = Meeting(address=self._first_node(), port=free_port(""), launch=self._launch)
        command = step.ranks(self._stage, self._artifact, self._plan, meeting)
        print(" ".join(command), flush=True)
        with self._said.open("wb") as stream:
            # Leads no group of its own: what Slurm sends to the job must reach it.
            srun = subprocess.Popen(
                command,
                env=environment.of_srun(os.environ, {**self._stage.outside, **self._nodes_backwards()}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        try:
            return self._watch(srun)
        finally:
            _end(srun)

    def _first_node(self) -> str:
        """Where rank 0 runs."""
        return _nodes()[-1] if varying.nodes_reversed(self._plan, self._stage.nodes) else _here()

    def _nodes_backwards(self) -> dict[str, str]:
        if not varying.nodes_reversed(self._plan, self._stage.nodes):
            return {}
        path = self._artifact.launch / "nodes"
        path.write_text(varying.host_file(_nodes(), self._stage.ranks_per_node), encoding="utf-8")
        return {varying.HOST_FILE: str(path)}

    def _watch(self, srun: subprocess.Popen[bytes]) -> str:
        patience = Patience(self._plan.recipe, self._artifact.progress)
        launch, world = self._plan.recipe.launch, self._plan.world
        while srun.poll() is None:
            if message := self._signals.message(self._plan.arm):
                return message
            if ending.ended(self._lines()):
                # The other ranks say in their logs what they saw of it.
                _wait(srun, GRACE_SECONDS)
                return self._failed(srun)
            match patience.exceeded():
                case "time":
                    return failure_messages.of_time(self._artifact, world, launch.time_minutes)
                case "hang":
                    srun.send_signal(signal.SIGUSR1)
                    _wait(srun, _STACK_SECONDS)
                    return failure_messages.of_hang(self._artifact, world, launch.hang_minutes)
            time.sleep(0.2)
        return self._failed(srun) if srun.returncode else ""

    def _failed(self, srun: subprocess.Popen[bytes]) -> str:
        if message := self._signals.message(self._plan.arm):
            return message
        if ending.ended(said := self._lines()):
            return ending.of_rank(self._artifact, said, _job())
        return ending.of_step(self._artifact, said, srun.returncode, _job())

    def _missing(self) -> str:
        deadline = time.monotonic() + _LAG_SECONDS
        while (ranks := traces.missing(self._artifact, self._plan.world)) and time.monotonic() < deadline:
            time.sleep(1)
        why = line.why_missing(self._plan)
        return failure_messages.of_missing_file(self._artifact, ranks[0], f"job {_job()}", why) if ranks else ""

    def _lines(self) -> list[str]:
        return self._said.read_text(encoding="utf-8", errors="replace").splitlines()


def _end(srun: subprocess.Popen[bytes]) -> None:
    """Ends the step: its ranks get SIGTERM, then SIGKILL."""
    if srun.poll() is not None:
        return
    srun.send_signal(signal.SIGTERM)
    if not _wait(srun, 2):
        # Steps alone: without --batch this process and its shell are left alone.
        subprocess.run(["scancel", "--signal=KILL", _job()], capture_output=True, check=False)
    if not _wait(srun, 10):
        srun.kill()
        srun.wait()


def _wait(srun: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        srun.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ends() -> bool:
    """Whether Slurm is about to end this job: its limit, a cancellation, a preemption, a lost node."""
    try:
        return view(_job()).state not in ("RUNNING", "SUSPENDED")
    except SlurmError:
        return False


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", "?")


def _here() -> str:
    """The first node: a job's batch step runs there."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _nodes() -> tuple[str, ...]:
    try:
        return names(os.environ.get("SLURM_JOB_NODELIST", ""))
    except SlurmError:
        return ()
