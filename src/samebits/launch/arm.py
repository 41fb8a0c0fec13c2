"""Running one arm, again and again if need be: what is finished and unchanged stays, what runs is waited for.

    outcome = run_arm(plan, Artifact(folder), echo=Echo(sys.stderr))

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

from samebits import arms
from samebits.artifact.folder import Artifact, write_whole
from samebits.launch import environment, failure, progress
from samebits.launch.echo import Echo
from samebits.launch.job import JobRecord, LaunchError, Outcome, deciding, now, read_outcome, read_record
from samebits.launch.local import RANK_COMMAND
from samebits.launch.submit import Executor, Job, LocalExecutor
from samebits.plan import Plan, PlanError


class CancelledError(RuntimeError):
    """SIGINT or SIGTERM ended the wait; the arm's job was cancelled. status: for the shell."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.status = 128 + signum


def run_arm(
    plan: Plan,
    artifact: Artifact,
    *,
    echo: Echo,
    executor: Executor | None = None,
    command: Sequence[str] = RANK_COMMAND,
) -> Outcome:
    """Returns how the arm ended, now or earlier; `ok` exactly when its artifact is whole.

    command: starts one rank; the artifact's folder is appended. Raises LaunchError where it cannot be started, and
    CancelledError after SIGINT or SIGTERM.
    """
    arm = _Arm(plan, Artifact(artifact.folder.absolute()), echo, executor or LocalExecutor(), command)
    try:
        with _interrupts() as arm.interrupts:
            return arm.run()
    except OSError as error:
        place = error.filename or artifact.folder
        raise LaunchError(
            f"arm {plan.arm}: {place}: {error.strerror or error}; the results folder must be writable and have room; "
            "mend that, then start again"
        ) from error


class _Arm:
    def __init__(self, plan: Plan, artifact: Artifact, echo: Echo, executor: Executor, command: Sequence[str]) -> None:
        self._plan = plan
        self._artifact = artifact
        self._echo = echo
        self._executor = executor
        self._command = command
        self.interrupts: list[int] = []

    def run(self) -> Outcome:
        self._artifact.folder.parent.mkdir(parents=True, exist_ok=True)
        with deciding(self._artifact, lambda: bool(self.interrupts)):
            job = self._live_job()
            if job is None:
                if kept := self._kept():
                    return kept
                job = self._start()
        return self._wait(job)

    def _live_job(self) -> Job | None:
        record = read_record(self._artifact)
        job = self._executor.attach(self._artifact, record) if record else None
        if record is None or job is None:
            return None
        if changes := _plan_changes(self._plan, self._artifact) or _surroundings(self._plan, self._artifact):
            raise LaunchError(
                f"arm {self._plan.arm}: job {job.id}, submitted {record.submitted}, still runs it as it was before "
                f"({changes[0]}); wait for it, or end it with `kill {job.id}`, then start again"
            )
        self._echo.line(f"arm {self._plan.arm}: re-attached to job {job.id}, submitted {record.submitted}")
        return job

    def _kept(self) -> Outcome | None:
        """The earlier outcome, if it stands. Otherwise says why not and makes room."""
        outcome, reasons = read_outcome(self._artifact), reasons_to_run(self._plan, self._artifact)
        if outcome is not None and not reasons:
            self._echo.line(f"arm {self._plan.arm}: kept, unchanged since {outcome.ended}")
            return outcome
        for reason in reasons:
            self._echo.line(f"arm {self._plan.arm}: runs: {reason}")
        if aside := _set_aside(self._artifact):
            self._echo.line(f"arm {self._plan.arm}: what was there is now in {aside}; it starts from nothing")
        return None

    def _start(self) -> Job:
        if self._plan.restore and not Path(self._plan.restore).is_dir():
            recipe, needed = self._plan.recipe.name, arms.needs(self._plan)[0]
            raise LaunchError(
                f"arm {self._plan.arm}: starts from {self._plan.restore}, which is not there; arm {needed} writes it: "
                f"`samebits run recipes/{recipe}.yaml {needed}` first"
            )
        record = JobRecord(
            launch=uuid.uuid4().hex, key=self._key(), restored=launch_restored(self._plan), submitted=now()
        )
        try:
            return self._submit(record)
        except OSError:
            shutil.rmtree(self._artifact.folder, ignore_errors=True)
            raise

    def _submit(self, record: JobRecord) -> Job:
        self._artifact.launch.mkdir(parents=True, exist_ok=True)
        write_whole(self._artifact.plan, self._plan.to_json().encode())
        # Before and after: whoever dies in between leaves a job that gives up, since the next start has another id.
        record.write(self._artifact)
        inherited = environment.inherited(os.environ)
        arguments = [str(self._artifact.folder), record.launch, inherited, list(self._command)]
        job = self._executor.submit(self._artifact, self._plan.recipe.launch.time_minutes, arguments)
        dataclasses.replace(record, job=job.id).write(self._artifact)
        ranks, steps = self._plan.world, f"steps {self._plan.first_step}-{self._plan.last_step}"
        self._echo.line(f"arm {self._plan.arm}: job {job.id}, {ranks} rank{'s' if ranks > 1 else ''}, {steps}")
        return job

    def _wait(self, job: Job) -> Outcome:
        started = time.monotonic()
        while job.running():
            if self.interrupts:
                self._cancel(job)
            seen = progress.read(self._artifact.progress)
            waited = time.monotonic() - started
            self._echo.update(progress.describe(self._plan.arm, self._plan.world, seen, waited))
            time.sleep(0.1)
        outcome = read_outcome(self._artifact) or self._without_outcome(job)
        if outcome.ok:
            self._echo.line(f"arm {self._plan.arm}: done in {progress.clock(outcome.seconds)}")
        return outcome

    def _cancel(self, job: Job) -> None:
        name = signal.Signals(self.interrupts[0]).name
        self._echo.line(f"arm {self._plan.arm}: {name}: cancelling job {job.id}")
        job.cancel()
        raise CancelledError(
            f"arm {self._plan.arm}: {name}: cancelled job {job.id}; nothing of it runs", self.interrupts[0]
        )

    def _without_outcome(self, job: Job) -> Outcome:
        record = read_record(self._artifact)
        message = failure.of_job(self._artifact, job.id, job.log)
        return Outcome(ok=False, message=message, launch=record.launch if record else "", ended=now(), seconds=0.0)

    def _key(self) -> str:
        return arms.key(self._plan.recipe, self._plan.arm)


def reasons_to_run(plan: Plan, artifact: Artifact) -> list[str]:
    """Why what lies in the folder cannot stand for this plan, a line each; empty: it can."""
    outcome = read_outcome(artifact)
    if outcome is None:
        return ["its last start did not finish" if artifact.plan.exists() else "it has not run yet"]
    if not outcome.ok:
        return [f"its last start failed: {outcome.message.splitlines()[0]}"]
    return _plan_changes(plan, artifact) or _losses(plan, artifact) or _surroundings(plan, artifact)


def launch_restored(plan: Plan) -> str | None:
    """Launch id of the arm whose checkpoint the plan starts from."""
    if plan.restore is None:
        return None
    outcome = read_outcome(Artifact(Path(plan.restore).parent.parent))
    return outcome.launch if outcome else None


def _plan_changes(plan: Plan, artifact: Artifact) -> list[str]:
    try:
        return arms.explain_change(Plan.from_json(artifact.plan.read_text(encoding="utf-8")), plan)
    except (OSError, PlanError) as error:
        return [f"its plan cannot be read: {error}"]


def _losses(plan: Plan, artifact: Artifact) -> list[str]:
    ranks = [rank for rank in range(plan.world) if not artifact.fingerprint(rank).exists()]
    step = plan.recipe.checkpoint.resume_from
    return [
        *([f"its fingerprint files of ranks {failure.numbers(ranks)} are gone"] if ranks else []),
        *(
            [f"its checkpoint of step {step} is gone"]
            if plan.keep_checkpoints and not artifact.checkpoint(step).exists()
            else []
        ),
    ]


def _surroundings(plan: Plan, artifact: Artifact) -> list[str]:
    record = read_record(artifact)
    if record is None or record.key != arms.key(plan.recipe, plan.arm):
        return ["the software, or samebits itself, is not what it ran with"]
    if record.restored != launch_restored(plan):
        return [f"arm {arms.needs(plan)[0]} has run again, and with it the checkpoint that this arm starts from"]
    return []


def _set_aside(artifact: Artifact) -> Path | None:
    """Moves what lies in the folder out of the way; None where there was nothing to keep."""
    if not artifact.plan.exists():
        shutil.rmtree(artifact.folder, ignore_errors=True)
        return None
    aside = artifact.folder.parent.parent / "superseded" / artifact.folder.name
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    return artifact.folder.rename(aside)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals that came meanwhile. They interrupt nothing by themselves, so that no job is lost sight of."""
    seen: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {signum: signal.signal(signum, lambda number, _: seen.append(number)) for signum in signals}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
