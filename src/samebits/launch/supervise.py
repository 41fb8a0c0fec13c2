"""The process of a job: start the ranks of each arm, watch them, and write down how the arm ended.

One supervisor serves two ways to start ranks: as processes of this machine (`LocalRanks`), and by `srun` on the nodes
of a Slurm job (`SrunRanks`). It runs in the job itself, so that it outlives whoever submitted the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from samebits.fingerprint.paths import Artifact
from samebits.launch import failure_messages, job_state, rank_command, srun
from samebits.launch.failure_messages import AGAIN
from samebits.launch.job_state import ArmOutcome
from samebits.launch.slurm_cli import SlurmError, names, view
from samebits.launch.srun import Meeting, Stage
from samebits.spec.plan import Plan, PlanError
from samebits.spec.sections import Recipe

PORT_TRIES = 3
GRACE_SECONDS = 3.0
"""Time left to the other ranks once one has failed, so that their logs say what they saw of it."""
_LAG_SECONDS = 20.0
"""Time in which a shared file system shows what another node has written."""
_STOPPED_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def run_here(
    starts: Sequence[tuple[str, str]], inherited: Mapping[str, str], command: Sequence[str] | None = None
) -> None:
    """Run arms one after the other with all ranks on this machine.

    starts: (artifact's folder, launch id as submitted) of each arm. inherited: the environment that ranks take over
    from whoever submitted the job. command: starts one rank, the artifact's folder is appended; None: the recipe's own.
    """
    _run_job(starts, LocalRanks(inherited, command))


def run_on_cluster(starts: Sequence[tuple[str, str]], stage: Stage) -> None:
    """Run arms one after the other with `srun`, from the batch step of a Slurm job.

    starts: (artifact's folder, launch id as submitted) of each arm.
    """
    _run_job(starts, SrunRanks(stage))


def _run_job(starts: Sequence[tuple[str, str]], ranks: LocalRanks | SrunRanks) -> None:
    """Run every arm whose folder still names this launch; one that was given to another start is passed over.

    A job that Slurm starts again begins all its arms from nothing, unless all had finished.
    """
    signals = _Signals(ranks)
    launched = [(Artifact(Path(folder)), job_state.resumed_as(launch, ranks.restarts)) for folder, launch in starts]
    if ranks.restarts and all(job_state.finished(artifact) for artifact, _ in launched):
        print("every arm of this job had finished; nothing is run", flush=True)
        return
    for artifact, launch in launched if ranks.restarts else ():
        # The folder may have been given to another start meanwhile; then it is left alone.
        with job_state.deciding(artifact):
            if job_state.renew(artifact, launch):
                aside = job_state.set_aside(artifact)
                print(
                    f"{artifact.folder}: start {ranks.restarts + 1} of this job; what was there is in {aside}",
                    flush=True,
                )
    for artifact, launch in launched:
        with job_state.running(artifact, launch) as refusal:
            if refusal:
                print(f"{artifact.folder}: start {launch}: {refusal}; nothing is run", flush=True)
                continue
            started = time.monotonic()
            # Before and after: the image may be replaced while the arms of a job run one after the other.
            message = ranks.refuse_image() or _run_arm(artifact, launch, ranks, signals) or ranks.refuse_image()
            if message and ranks.job_is_ending():
                # Slurm knows best why, and may start the job again.
                print(f"{artifact.folder}: Slurm ends this job\n{message}", flush=True)
                return
            _write_outcome(artifact, launch, message, time.monotonic() - started, ranks.nodes)
        if message and _is_timed(artifact):
            print("its experiment needs all its runs; those behind it are not made", flush=True)
            return


def _is_timed(artifact: Artifact) -> bool:
    """Return whether the arm is a run of an experiment, whose runs stand or fall together."""
    try:
        return Plan.from_json(artifact.plan.read_text(encoding="utf-8")).timing is not None
    except (OSError, PlanError):
        return False


def _write_outcome(artifact: Artifact, launch: str, message: str, seconds: float, nodes: tuple[str, ...]) -> None:
    """Write how the arm ended, unless its folder was given to another start meanwhile.

    Slurm may take a node for lost that lives on, and this process with it.
    """
    print(message or f"{artifact.folder}: done", flush=True)
    record = job_state.read_record(artifact)
    if record is None or record.launch != launch:
        print(f"{artifact.folder}: is another start's now; no outcome is written", flush=True)
        return
    ended, seconds = job_state.now(), round(seconds, 3)
    ArmOutcome(ok=not message, message=message, launch=launch, ended=ended, seconds=seconds, nodes=nodes).write(
        artifact
    )


def _run_arm(artifact: Artifact, launch: str, ranks: LocalRanks | SrunRanks, signals: _Signals) -> str:
    """Run one arm; return what went wrong, or an empty text.

    Rank 0 may lose its port to somebody else between the choice and the use; then all ranks start again.
    """
    arm = artifact.folder.name
    try:
        plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
        if plan.restore and not Path(plan.restore).is_dir():
            return f"arm {plan.arm}: starts from {plan.restore}, which the arm before it did not write"
        restored = rank_command.list_restored(plan)
        message = ""
        for _ in range(PORT_TRIES):
            message = signals.message(plan.arm) or _run_ranks(artifact, plan, launch, ranks, signals)
            if not message or not failure_messages.lost_the_port(artifact.log(0)):
                break
            job_state.clear(artifact)
        if message:
            return message
        deadline = time.monotonic() + ranks.lag
        while (missing := job_state.missing(artifact, plan.world)) and time.monotonic() < deadline:
            time.sleep(1)
        if missing:
            return failure_messages.of_missing_file(artifact, missing[0], ranks.place, rank_command.why_missing(plan))
        return rank_command.settle(artifact, plan, restored)
    except (OSError, PlanError) as error:
        # One arm that cannot be run does not keep the others from running.
        return f"arm {arm}: {ranks.place}: {error}; mend that, {AGAIN}"


def _run_ranks(artifact: Artifact, plan: Plan, launch: str, ranks: LocalRanks | SrunRanks, signals: _Signals) -> str:
    """Start all ranks and watch them to their end; return what went wrong, or an empty text."""
    limits = plan.recipe.launch
    artifact.log(0).parent.mkdir(exist_ok=True)
    try:
        ranks.start(artifact, plan, launch)
        patience = Patience(plan.recipe, artifact.progress)
        while ranks.running():
            if message := signals.message(plan.arm):
                return message
            match patience.exceeded():
                case "time":
                    return failure_messages.of_time(artifact, plan.world, limits.time_minutes)
                case "hang":
                    ranks.dump_stacks()
                    return failure_messages.of_hang(artifact, plan.world, limits.hang_minutes)
            time.sleep(ranks.pause)
        failure = ranks.failure(artifact)
        return (signals.message(plan.arm) or failure) if failure else ""
    finally:
        ranks.end(grace=0.0 if signals.seen else GRACE_SECONDS)


class _Signals:
    """The last signal that asked this job to end: SIGTERM and SIGINT cancel, SIGUSR2 is Slurm's near time limit."""

    def __init__(self, ranks: LocalRanks | SrunRanks) -> None:
        self.seen: signal.Signals | None = None
        self._cancelled = ranks.cancelled
        for signum in ranks.signals:
            signal.signal(signum, self._note)

    def _note(self, signum: int, _frame: object) -> None:
        self.seen = signal.Signals(signum)

    def message(self, arm: str) -> str:
        if self.seen is None:
            return ""
        if self.seen is signal.SIGUSR2:
            return (
                f"arm {arm}: job {_job()}: Slurm's time limit is near (SIGUSR2), ended; raise launch.time_minutes, "
                f"from which the job's limit follows, {AGAIN}"
            )
        return f"arm {arm}: {self._cancelled} ({self.seen.name}), {AGAIN}"


class Patience:
    """Limits on the time of a start in all, and on the time without a step.

    progress: the file that rank 0 appends to at every step; a change of its size is a step.
    """

    def __init__(self, recipe: Recipe, progress: Path) -> None:
        self._limit = 60 * recipe.launch.time_minutes
        self._hang = 60 * recipe.launch.hang_minutes
        self._progress = progress
        self._started = self._moved = self._looked = time.monotonic()
        self._size = 0

    def exceeded(self) -> Literal["time", "hang"] | None:
        """Return the limit that is exceeded now; to be asked at least every few seconds."""
        now = time.monotonic()
        try:
            size = self._progress.stat().st_size
        except OSError:
            size = 0
        if (gap := now - self._looked) > _STOPPED_SECONDS:
            # The watcher asks all the time, unless it was stopped (SIGSTOP, suspend), and its ranks with it.
            self._started, self._moved = self._started + gap, self._moved + gap
        self._looked = now
        if size != self._size:
            self._size, self._moved = size, now
        if now - self._started > self._limit:
            return "time"
        return "hang" if now - self._moved > self._hang else None


class LocalRanks:
    """Rank processes on this machine.

    Each leads a session of its own, so that its helpers end with it, and dies with the process that started it.
    """

    cancelled = "was cancelled"
    signals = (signal.SIGTERM, signal.SIGINT)
    restarts = 0
    nodes: tuple[str, ...] = ()
    lag = 0.0
    pause = 0.02

    def __init__(self, inherited: Mapping[str, str], command: Sequence[str] | None) -> None:
        self._inherited = inherited
        self._own_command = command
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._statuses: dict[int, int] = {}

    @property
    def place(self) -> str:
        return socket.gethostname()

    def refuse_image(self) -> str:
        """Return an empty text: no image is entered on this machine."""
        return ""

    def job_is_ending(self) -> bool:
        return False

    def start(self, artifact: Artifact, plan: Plan, launch: str) -> None:
        """Start one process a rank, or one process that starts them all where the recipe's launcher does."""
        self._processes, self._statuses = {}, {}
        port, parent = free_port("127.0.0.1"), os.getpid()
        own = (sys.executable, *rank_command.entry(plan.recipe))
        perturbed = rank_command.perturbation(plan, artifact.folder, sys.executable)
        command = [*perturbed, *(self._own_command or own), str(artifact.folder)]
        environment = {**self._inherited, **rank_command.rank_environment(plan)}
        processes = 1 if rank_command.one_process_per_node(plan.recipe) else plan.world
        for rank in [rank for rank in rank_command.starting_order(plan) if rank < processes]:
            meeting = rank_command.local_rank_environment(rank, plan.world, port, launch)
            with artifact.log(rank).open("wb") as stream:
                self._processes[rank] = subprocess.Popen(
                    command,
                    env={**environment, **meeting},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - the job has one thread
                )

    def running(self) -> bool:
        """Return whether ranks still run and none has failed."""
        self._look()
        return len(self._statuses) < len(self._processes) and not any(self._statuses.values())

    def failure(self, artifact: Artifact) -> str:
        """Return a message about the rank that failed first, or an empty text."""
        failed = [rank for rank, status in self._statuses.items() if status != 0]
        if not failed:
            return ""
        # Of ranks seen to have failed at once: a killed one first, since its peers fail for want of it.
        rank = next((rank for rank in failed if self._statuses[rank] < 0), failed[0])
        return failure_messages.of_rank(artifact, rank, self._statuses[rank], self.place)

    def dump_stacks(self) -> None:
        """Have the ranks, not their helpers, write their stacks into their logs."""
        for rank, process in self._processes.items():
            if rank not in self._statuses:
                process.send_signal(signal.SIGUSR1)
        time.sleep(GRACE_SECONDS)

    def end(self, grace: float) -> None:
        """Leave the ranks `grace` seconds to end by themselves, then two after SIGTERM, then kill them."""
        for seconds, signum in ((grace, signal.SIGTERM), (2.0, signal.SIGKILL), (None, None)):
            deadline = None if seconds is None else time.monotonic() + seconds
            while not self._all_ended() and (deadline is None or time.monotonic() < deadline):
                time.sleep(0.02)
            for rank, process in self._processes.items():
                if signum is not None and rank not in self._statuses:
                    _signal_group(process.pid, signum)

    def _all_ended(self) -> bool:
        self._look()
        return len(self._statuses) == len(self._processes)

    def _look(self) -> None:
        """Note the exit status of ranks that have ended, in the order in which that is seen; -N: killed by signal N."""
        for rank, process in self._processes.items():
            # WNOWAIT: not reaped yet, so that the helpers go while the rank's id, which names their group, is taken.
            if rank not in self._statuses and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                _signal_group(process.pid, signal.SIGKILL)
                self._statuses[rank] = process.wait()


class SrunRanks:
    """Ranks on the nodes of the Slurm job in whose batch step this process runs, as one step of `srun`."""

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    pause = 0.2

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._srun: subprocess.Popen[bytes] | None = None
        self._said = Path(os.devnull)
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        self.place = f"job {_job()}"
        self.cancelled = f"{self.place}: was cancelled or preempted"
        self.lag = _LAG_SECONDS

    @property
    def nodes(self) -> tuple[str, ...]:
        """The job's nodes in the order of ranks; empty where Slurm does not say."""
        try:
            return names(os.environ.get("SLURM_JOB_NODELIST", ""))
        except SlurmError:
            return ()

    def refuse_image(self) -> str:
        """Return what is wrong with the image file, as each node sees it, or an empty text."""
        image = self._stage.image
        if image is None or image.file is None:
            return ""
        command = srun.image_check(self._stage, sys.executable, image)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ""
        said = "\n".join(f"    {line}" for line in done.stderr.splitlines()[-failure_messages.LOG_LINES :])
        return (
            f"{self.place}: the image {image.name} was refused; no step counts\n{said}\n"
            "Put the file back that the recipe names, or lock the new one (`samebits image lock`), then start again."
        )

    def job_is_ending(self) -> bool:
        """Return whether Slurm is ending this job: its limit, a cancellation, a preemption, a lost node."""
        try:
            return view(_job()).state not in ("RUNNING", "SUSPENDED")
        except SlurmError:
            return False

    def start(self, artifact: Artifact, plan: Plan, launch: str) -> None:
        """Start all ranks as one step; what srun itself prints goes to `launch/srun.log`."""
        reverse = rank_command.nodes_reversed(plan, self._stage.nodes)
        # A job's batch step runs on its first node.
        first = self.nodes[-1] if reverse else os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        outside = dict(self._stage.outside)
        if reverse:
            path = artifact.launch / "nodes"
            path.write_text(rank_command.host_file(self.nodes, self._stage.ranks_per_node), encoding="utf-8")
            outside[rank_command.HOST_FILE] = str(path)
        command = srun.ranks(self._stage, artifact, plan, Meeting(address=first, port=free_port(), launch=launch))
        print(" ".join(command), flush=True)
        self._said = artifact.launch / "srun.log"
        with self._said.open("wb") as stream:
            # Leads no group of its own: what Slurm sends to the job must reach it.
            self._srun = subprocess.Popen(
                command,
                env=rank_command.srun_environment(os.environ, outside),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def running(self) -> bool:
        """Return whether srun still runs and has named no task that failed."""
        if self._ended_within(0):
            return False
        if failure_messages.parse_srun(self._lines()):
            # The other ranks say in their logs what they saw of it.
            self._ended_within(GRACE_SECONDS)
            return False
        return True

    def failure(self, artifact: Artifact) -> str:
        """Return a message about the failed rank that is to blame, or about the step; or an empty text."""
        said, status = self._lines(), self._srun.returncode if self._srun else 0
        if failure_messages.parse_srun(said):
            return failure_messages.of_tasks(artifact, said, _job())
        return failure_messages.of_step(artifact, said, status, _job()) if status else ""

    def dump_stacks(self) -> None:
        """Have the ranks write their stacks into their logs; srun passes the signal on."""
        if self._srun is not None:
            self._srun.send_signal(signal.SIGUSR1)
            self._ended_within(GRACE_SECONDS)

    def end(self, grace: float) -> None:
        """End the step: its ranks get SIGTERM, then SIGKILL. The grace has passed while srun was watched."""
        if self._srun is None or self._ended_within(0):
            return
        self._srun.send_signal(signal.SIGTERM)
        if not self._ended_within(2):
            # Steps alone: without --batch this process and its shell are left alone.
            subprocess.run(["scancel", "--signal=KILL", _job()], capture_output=True, check=False)
        if not self._ended_within(10):
            self._srun.kill()
            self._srun.wait()

    def _ended_within(self, seconds: float) -> bool:
        try:
            if self._srun is not None:
                self._srun.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _lines(self) -> list[str]:
        return self._said.read_text(encoding="utf-8", errors="replace").splitlines()


def free_port(address: str = "") -> int:
    """Return a port that is free at this moment; somebody else may take it before rank 0 does.

    address: of the interface; empty: all interfaces of this host.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", "?")


def _signal_group(leader: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signum)


def _die_with(parent: int) -> None:
    """Have the kernel kill this new process when its parent dies; runs before the command."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    # These are blocked in the job (see `submit`), and that is inherited.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGHUP))
