"""Running one arm, again and again if need be: what is finished and unchanged stays, what runs is waited for.

    outcome = run_arm(plan, Artifact(folder), echo=Echo(sys.stderr))

An artifact that must make way is moved to `superseded/ARM` beside `arms`; one per arm is kept, the latest.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from samebits.fingerprint.paths import Artifact
from samebits.launch import progress
from samebits.launch.console import Echo
from samebits.launch.job_state import (
    LaunchError,
    Outcome,
    deciding,
    latest_outcome,
    now,
    read_outcome,
    read_record,
    unreadable,
)
from samebits.launch.kept import plan_changes, reasons_to_run, surrounding_changes
from samebits.launch.starting import Starting
from samebits.launch.submit import Executor, Job, LocalExecutor
from samebits.spec.plan import Plan


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
    command: Sequence[str] | None = None,
    together: Sequence[Plan] = (),
) -> Outcome:
    """Returns how the arm ended, now or earlier; `ok` exactly when its artifact is whole.

    command: starts one rank, the artifact's folder is appended; None: the executor's own. together: all arms of one
    allocation, in their order, this one among them; those that must run are started with it. Raises LaunchError where
    it cannot be started, and CancelledError after SIGINT or SIGTERM.
    """
    own = Artifact(artifact.folder.absolute())
    arm = _Arm(plan, own, echo, executor or LocalExecutor(), Starting(plan.arm, own, echo, command))
    try:
        with interrupts() as arm.interrupts:
            return arm.run(together or (plan,))
    except OSError as error:
        place = error.filename or artifact.folder
        raise LaunchError(
            f"arm {plan.arm}: {place}: {error.strerror or error}; the results folder must be writable, have room, and "
            "lie on a file system with locks; mend that, then start again"
        ) from error


class _Arm:
    def __init__(self, plan: Plan, artifact: Artifact, echo: Echo, executor: Executor, starting: Starting) -> None:
        self._plan = plan
        self._artifact = artifact
        self._echo = echo
        self._executor = executor
        self._starting = starting
        self._place = ""
        self.interrupts: list[int] = []

    def run(self, together: Sequence[Plan]) -> Outcome:
        self._artifact.folder.parent.mkdir(parents=True, exist_ok=True)
        self._place = self._executor.place(self._plan)
        self._executor.check(self._plan, self._artifact)
        try:
            found = self._found_or_started(together)
        except LaunchError as error:
            if self.interrupts:
                raise CancelledError(str(error), self.interrupts[0]) from error
            raise
        return found if isinstance(found, Outcome) else self._wait(found)

    def _found_or_started(self, together: Sequence[Plan]) -> Outcome | Job:
        """What stands, what runs, or what was started now."""
        with contextlib.ExitStack() as held:
            for plan in together:
                artifact = self._starting.artifact(plan)
                held.enter_context(deciding(artifact, lambda: bool(self.interrupts), self._echo.line))
            if found := self._live_job() or self._kept():
                return found
            return self._starting.start(self._executor, self._must_run(together))

    def _live_job(self) -> Job | None:
        if path := unreadable(self._artifact):
            raise LaunchError(
                f"arm {self._plan.arm}: {path} cannot be read; whether its job still runs is not known: see to that, "
                f"delete {self._artifact.folder}, then start again"
            )
        record = read_record(self._artifact)
        job = self._executor.attach(self._artifact, record) if record else None
        if record is None or job is None:
            return None
        if changes := plan_changes(self._plan, self._artifact) or surrounding_changes(
            self._plan, self._artifact, self._place
        ):
            raise LaunchError(
                f"arm {self._plan.arm}: job {job.id}, submitted {record.submitted}, still runs it as it was before "
                f"({changes[0]}); wait for it, or end it with `{job.way_to_end}`, then start again"
            )
        self._echo.line(f"arm {self._plan.arm}: re-attached to job {job.id}, submitted {record.submitted}")
        return job

    def _kept(self) -> Outcome | None:
        """The earlier outcome, if it stands. Otherwise says why not."""
        outcome, reasons = read_outcome(self._artifact), reasons_to_run(self._plan, self._artifact, self._place)
        if outcome is not None and not reasons:
            self._echo.line(f"arm {self._plan.arm}: kept, unchanged since {outcome.ended}")
            return outcome
        for reason in reasons:
            self._echo.line(f"arm {self._plan.arm}: runs: {reason}")
        return None

    def _must_run(self, together: Sequence[Plan]) -> list[Plan]:
        """Of the arms of one allocation, this one and those that cannot stand either, or whose start cannot."""
        wanted: list[Plan] = []
        for plan in together:
            again = plan.restore is not None and any(
                Path(plan.restore).is_relative_to(self._folder(of)) for of in wanted
            )
            due = again or bool(reasons_to_run(plan, self._starting.artifact(plan), self._place))
            if plan.arm == self._plan.arm or (due and not self._runs(plan)):
                wanted.append(plan)
        return wanted

    def _runs(self, plan: Plan) -> bool:
        artifact = self._starting.artifact(plan)
        record = read_record(artifact)
        return record is not None and self._executor.attach(artifact, record) is not None

    def _folder(self, plan: Plan) -> Path:
        return self._starting.artifact(plan).folder

    def _wait(self, job: Job) -> Outcome:
        started = time.monotonic()
        while job.running():
            if self.interrupts:
                cancel(job, f"arm {self._plan.arm}", self.interrupts[0], self._echo)
            seen = progress.read(self._artifact.progress)
            waited = time.monotonic() - started
            self._echo.update(job.waits(waited) or progress.describe(self._plan.arm, self._plan.world, seen, waited))
            time.sleep(job.pause)
        outcome = self._outcome_of(job) or self._without_outcome(job)
        if outcome.ok:
            self._echo.line(f"arm {self._plan.arm}: done in {progress.clock(outcome.seconds)}")
        return outcome

    def _outcome_of(self, job: Job) -> Outcome | None:
        """A shared file system may show it a while after its job has ended."""
        deadline = time.monotonic() + job.lag
        while (outcome := latest_outcome(self._artifact)) is None and time.monotonic() < deadline:
            time.sleep(0.5)
        return outcome

    def _without_outcome(self, job: Job) -> Outcome:
        record = read_record(self._artifact)
        launch = record.launch if record else ""
        return Outcome(ok=False, message=job.last_words(), launch=launch, ended=now(), seconds=0.0)


def cancel(job: Job, what: str, signum: int, echo: Echo) -> NoReturn:
    """Ends the job for a signal; raises CancelledError."""
    name = signal.Signals(signum).name
    echo.line(f"{what}: {name}: cancelling job {job.id}")
    job.cancel()
    raise CancelledError(f"{what}: {name}: cancelled job {job.id}; nothing of it runs", signum)


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """The signals that came meanwhile. They interrupt nothing by themselves, so that no job is lost sight of."""
    seen: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {signum: signal.signal(signum, lambda number, _: seen.append(number)) for signum in signals}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
