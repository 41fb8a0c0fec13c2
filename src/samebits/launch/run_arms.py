"""Run arms, again and again if need be: what is finished and unchanged stays, what runs is waited for.

    outcome = run_arms([(plan, Artifact(folder))], echo=Echo(sys.stderr))

An artifact that must make way is moved to `superseded/ARM` beside `arms`; one per arm is kept, the latest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.paths import Artifact, write_whole
from samebits.launch import job_state, progress, rank_command
from samebits.launch.console import Echo
from samebits.launch.job_state import (
    ArmOutcome,
    JobRecord,
    LaunchError,
    deciding,
    latest_outcome,
    now,
    read_outcome,
    read_record,
    unreadable,
)
from samebits.launch.local import LocalExecutor
from samebits.launch.submit import Executor, Job, JobRequest, Start
from samebits.plan import arms
from samebits.spec.plan import Plan, PlanError

PlannedArm = tuple[Plan, Artifact]
"""An arm, and the folder in which it runs."""


class CancelledError(RuntimeError):
    """SIGINT or SIGTERM ended the wait, and the job was cancelled. status: exit status for the shell."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.status = 128 + signum


def run_arms(
    wanted: Sequence[PlannedArm],
    *,
    echo: Echo,
    executor: Executor | None = None,
    command: Sequence[str] | None = None,
    allocation: Sequence[PlannedArm] = (),
    again: bool = False,
) -> ArmOutcome:
    """Run arms where need be, and wait for them.

    wanted: one arm; or all runs of an experiment, in their order and in one folder, which stand or fall together: runs
    of another job, another hour or other nodes than the rest are no evidence beside them. Where one is missing, failed
    or of another recipe, all are made again.
    executor: None: this machine. command: starts one rank, the artifact's folder is appended; None: the executor's own.
    allocation: all arms that are to share one allocation, in their order, the wanted one among them; those that must
    run are started with it, but not waited for. again: nothing that stands is kept; a job that runs is waited for.

    Returns how they ended, now or earlier: the outcome of the first that failed, else of the last one. `ok` exactly
    when every wanted artifact is whole. Raises LaunchError where they cannot be started, and CancelledError after
    SIGINT or SIGTERM.
    """
    planned = [(plan, Artifact(artifact.folder.absolute())) for plan, artifact in wanted]
    beside = [(plan, Artifact(artifact.folder.absolute())) for plan, artifact in allocation]
    launcher = _Launcher(planned, beside or planned, echo, executor or LocalExecutor(), command)
    try:
        with _interrupts() as launcher.interrupts:
            return launcher.run(again)
    except OSError as error:
        raise LaunchError(
            f"{launcher.name}: {error.filename or planned[0][1].folder}: {error.strerror or error}; the results folder "
            "must be writable, have room, and lie on a file system with locks; mend that, then start again"
        ) from error


def reasons_to_run(plan: Plan, artifact: Artifact, place: str) -> list[str]:
    """Return why what lies in the folder cannot stand for this plan, a line each; none: it can.

    place: where the arm would run, in the executor's words.
    """
    outcome, record = read_outcome(artifact), read_record(artifact)
    if outcome is None or (record is not None and record.launch != outcome.launch):
        return ["its last start did not finish" if artifact.plan.exists() else "it has not run yet"]
    if not outcome.ok:
        return [f"its last start failed: {outcome.message.splitlines()[0]}"]
    if changes := _plan_changes(plan, artifact):
        return changes
    lost, step = [], plan.recipe.checkpoint.resume_from
    if missing := job_state.missing(artifact, plan.world):
        lost.append(f"its fingerprint files of ranks {ranks_text(missing)} are gone")
    if plan.keep_checkpoints and not arms.checkpoint(plan.recipe, artifact).exists():
        lost.append(f"its checkpoint of step {step} is gone")
    return lost or _surrounding_changes(plan, artifact, place)


def _plan_changes(plan: Plan, artifact: Artifact) -> list[str]:
    """Return what differs between the plan in the folder and this one, of what counts."""
    try:
        return arms.explain_change(Plan.from_json(artifact.plan.read_text(encoding="utf-8")), plan)
    except (OSError, PlanError) as error:
        return [f"its plan cannot be read: {error}"]


def _surrounding_changes(plan: Plan, artifact: Artifact, place: str) -> list[str]:
    """Return what differs besides the plan: the software, the place, the checkpoint that it starts from."""
    record = read_record(artifact)
    if record is None or record.key != arms.key(plan):
        return ["the software, or samebits itself, is not what it ran with"]
    if record.place != place:
        return [f"it ran on {record.place}, and is to run on {place}"]
    origin = None if plan.restore is None else read_record(Artifact(Path(plan.restore).parent.parent))
    # The arm that it starts from has ended, or is about to run in the same job.
    if record.restored not in (_launch_restored(plan), origin.launch if origin else None):
        return [f"arm {arms.needs(plan)[0]} has run again, and with it the checkpoint that this arm starts from"]
    return []


def _launch_restored(plan: Plan) -> str | None:
    """Return the launch id of the arm whose checkpoint the plan starts from."""
    outcome = None if plan.restore is None else read_outcome(Artifact(Path(plan.restore).parent.parent))
    return outcome.launch if outcome else None


class _Launcher:
    """One call of `run_arms`. beside: arms of the same allocation, the wanted ones among them."""

    def __init__(
        self,
        wanted: Sequence[PlannedArm],
        beside: Sequence[PlannedArm],
        echo: Echo,
        executor: Executor,
        command: Sequence[str] | None,
    ) -> None:
        self._wanted = wanted
        self._beside = beside
        self._echo = echo
        self._executor = executor
        self._command = tuple(command) if command is not None else None
        self._place = ""
        self._experiment = len(wanted) > 1
        self._folder = wanted[0][1].folder.parent if self._experiment else wanted[0][1].folder
        self.name = self._folder.name if self._experiment else f"arm {wanted[0][0].arm}"
        self.interrupts: list[int] = []

    def run(self, again: bool) -> ArmOutcome:
        plan, artifact = self._wanted[0]
        artifact.folder.parent.mkdir(parents=True, exist_ok=True)
        self._place = self._executor.place(plan)
        self._executor.check(plan, artifact)
        try:
            found = self._find_or_start(again)
        except LaunchError as error:
            if self.interrupts:
                raise CancelledError(str(error), self.interrupts[0]) from error
            raise
        return found if isinstance(found, ArmOutcome) else self._wait(found)

    def _find_or_start(self, again: bool) -> ArmOutcome | Job:
        """Return the outcome that stands, the job that runs, or a job that was started now."""
        with contextlib.ExitStack() as held:
            # An experiment's lock is its first run's: one for each would be more files than a process may open.
            for _, artifact in self._wanted[:1] if self._experiment else self._beside:
                held.enter_context(deciding(artifact, lambda: bool(self.interrupts), self._echo.line))
            if found := self._live_job() or (None if again else self._kept()):
                return found
            if self._experiment:
                self._set_experiment_aside()
            return self._start(self._wanted if self._experiment else self._must_run())

    def _live_job(self) -> Job | None:
        """Return the live job of any wanted arm. Raises LaunchError where it runs something else, or may."""
        for plan, artifact in self._wanted:
            if path := unreadable(artifact):
                raise LaunchError(
                    f"{self.name}: {path} cannot be read; whether its job still runs is not known: see to that, "
                    f"delete {self._folder}, then start again"
                )
            record = read_record(artifact)
            job = self._executor.attach(artifact, record) if record else None
            if record is None or job is None:
                continue
            if changes := _plan_changes(plan, artifact) or _surrounding_changes(plan, artifact, self._place):
                raise LaunchError(
                    f"{self.name}: job {job.id}, submitted {record.submitted}, still runs it as it was before "
                    f"({changes[0]}); wait for it, or end it with `{job.way_to_end}`, then start again"
                )
            self._echo.line(f"{self.name}: re-attached to job {job.id}, submitted {record.submitted}")
            return job
        return None

    def _kept(self) -> ArmOutcome | None:
        """Return the earlier outcome where all that is wanted stands; otherwise say why not."""
        first = read_record(self._wanted[0][1])
        for plan, artifact in self._wanted:
            reasons, record = reasons_to_run(plan, artifact, self._place), read_record(artifact)
            if first and record and job_state.job_part(first.launch) != job_state.job_part(record.launch):
                reasons.append("it is of another job than the first run")
            if reasons and self._experiment:
                self._echo.line(f"{self.name}: {len(self._wanted)} runs to make ({plan.arm}: {reasons[0]})")
                return None
            for reason in reasons:
                self._echo.line(f"{self.name}: runs: {reason}")
            if reasons:
                return None
        outcome = read_outcome(self._wanted[-1][1])
        if outcome is not None:
            self._echo.line(f"{self.name}: kept, unchanged since {outcome.ended}")
        return outcome

    def _must_run(self) -> list[PlannedArm]:
        """Return the wanted arm and, of its allocation, those that cannot stand either, or whose start cannot."""
        due: list[PlannedArm] = []
        for plan, artifact in self._beside:
            origin_runs = plan.restore is not None and any(
                Path(plan.restore).is_relative_to(other.folder) for _, other in due
            )
            if plan.arm != self._wanted[0][0].arm:
                if not origin_runs and not reasons_to_run(plan, artifact, self._place):
                    continue
                record = read_record(artifact)
                if record is not None and self._executor.attach(artifact, record) is not None:
                    continue
            due.append((plan, artifact))
        return due

    def _set_experiment_aside(self) -> None:
        """Move all runs that were made before, as a whole and under the name of their job: no other takes its place."""
        made = [Artifact(path.parent) for path in self._folder.glob("*/plan.json")]
        if not made:
            return
        for artifact in made:
            _refuse_running(artifact)
        record = next((found for artifact in made if (found := read_record(artifact))), None)
        job = job_state.job_part(record.launch)[:8] if record else "unknown"
        aside = self._folder.parent / "superseded" / f"{self.name}-{job}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for artifact in made:
            artifact.folder.rename(aside / artifact.folder.name)
        self._echo.line(f"{self.name}: the {len(made)} runs that were there are now in {aside}")

    def _start(self, due: Sequence[PlannedArm]) -> Job:
        """Submit one job that runs the arms in this order; what lies in their folders makes way."""
        job = uuid.uuid4().hex
        starts = tuple(
            Start(plan=plan, artifact=artifact, launch=f"{job}-{number}" if len(due) > 1 else job)
            for number, (plan, artifact) in enumerate(due)
        )
        for start in starts:
            plan = start.plan
            if plan.restore is not None and not Path(plan.restore).is_dir() and _origin(start, starts) is None:
                recipe, needed = plan.recipe.name, arms.needs(plan)[0]
                raise LaunchError(
                    f"arm {plan.arm}: starts from {plan.restore}, which is not there; arm {needed} writes it: "
                    f"`samebits run recipes/{recipe}.yaml {needed}` first"
                )
            _refuse_running(start.artifact)
        for start in starts:
            folder = start.artifact.folder
            if start.artifact.plan.exists():
                aside = folder.rename(job_state.superseded(start.artifact))
                self._echo.line(f"arm {start.plan.arm}: what was there is now in {aside}; it starts from nothing")
            else:
                shutil.rmtree(folder, ignore_errors=True)
        try:
            return self._submit(starts)
        except (OSError, LaunchError):
            for start in starts:
                shutil.rmtree(start.artifact.folder, ignore_errors=True)
            raise

    def _submit(self, starts: tuple[Start, ...]) -> Job:
        """Write plans and records, submit, and write the job's id into the records.

        The record is written before and after: whoever dies in between leaves a job that is found by its launch, or
        that gives up because its launch is not the one in the folder.
        """
        records, lead = [], starts[0].artifact.folder.name
        for start in starts:
            start.artifact.launch.mkdir(parents=True, exist_ok=True)
            write_whole(start.artifact.plan, start.plan.to_json().encode())
            origin = _origin(start, starts)
            record = JobRecord(
                launch=start.launch,
                key=arms.key(start.plan),
                restored=origin.launch if origin else _launch_restored(start.plan),
                submitted=now(),
                lead=lead,
                place=self._place,
            )
            record.write(start.artifact)
            records.append(record)
        job = self._executor.submit(self._request(starts), self._echo)
        for number, (start, record) in enumerate(zip(starts, records, strict=True)):
            dataclasses.replace(record, job=job.id, name=job.name).write(start.artifact)
            if number and self._experiment:
                continue  # one line for all runs of an experiment
            plan, ranks = start.plan, start.plan.world
            steps = f"steps {plan.first_step}-{plan.last_step}"
            self._echo.line(f"arm {plan.arm}: job {job.id}, {ranks} rank{'s' if ranks > 1 else ''}, {steps}")
        return job

    def _request(self, starts: tuple[Start, ...]) -> JobRequest:
        """Return the job's request; where the reference has run before, with its nodes to run on, or to avoid."""
        plan, folder = starts[0].plan, self._wanted[0][1].folder
        # A stress run lies elsewhere, and is held against the same reference.
        home = folder.parent.with_name("arms") if folder.parent.name == rank_command.STRESS else folder.parent
        reference = read_outcome(Artifact(home / arms.REFERENCE))
        nodes = reference.nodes if reference else ()
        same = plan.recipe.cluster is not None and plan.recipe.cluster.placement == "same-nodes"
        return JobRequest(
            starts=starts,
            inherited=rank_command.inherited(os.environ),
            command=self._command,
            on=nodes if same else (),
            off=nodes if arms.avoids_reference(plan) else (),
        )

    def _wait(self, job: Job) -> ArmOutcome:
        """Wait for the job's end, telling how far it is; cancel it when a signal comes."""
        started, count = time.monotonic(), len(self._wanted)
        while job.running():
            if self.interrupts:
                name = signal.Signals(self.interrupts[0]).name
                self._echo.line(f"{self.name}: {name}: cancelling job {job.id}")
                job.cancel()
                message = f"{self.name}: {name}: cancelled job {job.id}; nothing of it runs"
                raise CancelledError(message, self.interrupts[0])
            waited = time.monotonic() - started
            at = min(sum(outcome is not None for outcome in self._outcomes()), count - 1)
            plan, artifact = self._wanted[at]
            told = progress.describe(plan.arm, plan.world, progress.read(artifact.progress), waited)
            told = f"{self.name}: run {at + 1} of {count}: {told}" if self._experiment else told
            self._echo.update(job.waits(waited) or told)
            time.sleep(job.pause)
        # A shared file system may show outcomes a while after their job has ended. Behind a failed run none is made.
        deadline = time.monotonic() + job.lag
        while True:
            outcomes = self._outcomes()
            failed = next((outcome for outcome in outcomes if outcome is not None and not outcome.ok), None)
            ended = [outcome for outcome in outcomes if outcome is not None]
            if failed or len(ended) == count or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        if failed:
            return failed
        if len(ended) < count:
            record = read_record(self._wanted[outcomes.index(None)][1])
            launch = record.launch if record else ""
            return ArmOutcome(ok=False, message=job.last_words(), launch=launch, ended=now(), seconds=0.0)
        runs = f"{count} runs " if self._experiment else ""
        seconds = progress.clock(sum(outcome.seconds for outcome in ended))
        self._echo.line(f"{self.name}: {runs}done in {seconds}")
        return ended[-1]

    def _outcomes(self) -> list[ArmOutcome | None]:
        return [latest_outcome(artifact) for _, artifact in self._wanted]


def _refuse_running(artifact: Artifact) -> None:
    """Raise LaunchError while a process still runs an earlier start of the arm."""
    if pid := job_state.runner(artifact):
        raise LaunchError(
            f"arm {artifact.folder.name}: process {pid}, on this host or a node, still runs its earlier start; end it, "
            "or take its node down, then start again"
        )


def _origin(start: Start, starts: Sequence[Start]) -> Start | None:
    """Return the start in the same job that writes the checkpoint that this one restores."""
    if start.plan.restore is None:
        return None
    path = Path(start.plan.restore)
    return next((other for other in starts if path.is_relative_to(other.artifact.folder)), None)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM meanwhile. They interrupt nothing by themselves, so that no job is lost sight of."""
    seen: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {signum: signal.signal(signum, lambda number, _: seen.append(number)) for signum in signals}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
