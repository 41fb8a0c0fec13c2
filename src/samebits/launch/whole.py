"""Running the arms of an experiment, which stand or fall together: one job, one after the other, in their order.

Runs of another job, another hour or another allocation than the rest are no evidence beside them. Where one is missing,
failed or of another recipe, all are made again; where all stand, none is.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.launch import progress
from samebits.launch.arm import CancelledError, cancel, interrupts
from samebits.launch.console import Echo
from samebits.launch.job_state import LaunchError, Outcome, deciding, latest_outcome, now, read_record, unreadable
from samebits.launch.kept import plan_changes, reasons_to_run
from samebits.launch.start import base
from samebits.launch.starting import Starting, refuse_running
from samebits.launch.submit import Executor, Job
from samebits.spec.plan import Plan


def run_whole(
    plans: Sequence[Plan],
    folder: Path,
    *,
    echo: Echo,
    executor: Executor,
    command: Sequence[str] | None = None,
    again: bool = False,
) -> Outcome:
    """Returns how the experiment ended, now or earlier: its last run's outcome where all ended well, else that of the
    first one that did not.

    folder: of the experiment; each run's artifact lies in it. command: starts one rank; None: the executor's own.
    again: nothing that stands is kept; a job that runs is waited for.
    Raises LaunchError where it cannot be started, and CancelledError after SIGINT or SIGTERM.
    """
    whole = _Whole(plans, folder.absolute(), echo, executor, command)
    try:
        with interrupts() as whole.interrupts:
            return whole.run(again)
    except OSError as error:
        raise LaunchError(
            f"{folder}: {error.filename or folder}: {error.strerror or error}; the results folder must be writable, "
            "have room, and lie on a file system with locks; mend that, then start again"
        ) from error


class _Whole:
    def __init__(
        self, plans: Sequence[Plan], folder: Path, echo: Echo, executor: Executor, command: Sequence[str] | None
    ) -> None:
        self._plans = plans
        self._name = folder.name
        self._artifacts = [Artifact(folder / plan.arm) for plan in plans]
        self._folder = folder
        self._echo = echo
        self._executor = executor
        self._starting = Starting(plans[0].arm, self._artifacts[0], echo, command)
        self.interrupts: list[int] = []

    def run(self, again: bool) -> Outcome:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._executor.check(self._plans[0], self._artifacts[0])
        try:
            found = self._found_or_started(again)
        except LaunchError as error:
            if self.interrupts:
                raise CancelledError(str(error), self.interrupts[0]) from error
            raise
        return found if isinstance(found, Outcome) else self._wait(found)

    def _found_or_started(self, again: bool) -> Outcome | Job:
        # The first one's lock is the experiment's: one for each would be more files than a process may open.
        with deciding(self._artifacts[0], lambda: bool(self.interrupts), self._echo.line):
            if found := self._live_job() or (None if again else self._kept()):
                return found
            self._clear()
            return self._starting.start(self._executor, self._plans)

    def _clear(self) -> None:
        """Sets aside what was made before, as a whole and under the name of its start: no other takes its place."""
        made = [path.parent for path in self._folder.glob("*/plan.json")]
        if not made:
            return
        for path in made:
            refuse_running(Artifact(path))
        record = next((found for path in made if (found := read_record(Artifact(path)))), None)
        start = base(record.launch)[:8] if record else "unknown"
        aside = self._folder.parent / "superseded" / f"{self._name}-{start}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for path in made:
            path.rename(aside / path.name)
        self._echo.line(f"{self._name}: the {len(made)} runs that were there are now in {aside}")

    def _live_job(self) -> Job | None:
        for plan, artifact in zip(self._plans, self._artifacts, strict=True):
            if path := unreadable(artifact):
                raise LaunchError(
                    f"{self._name}: {path} cannot be read; whether its job still runs is not known: see to that, "
                    f"delete {self._folder}, then start again"
                )
            record = read_record(artifact)
            job = self._executor.attach(artifact, record) if record else None
            if record is None or job is None:
                continue
            if changes := plan_changes(plan, artifact):
                raise LaunchError(
                    f"{self._name}: job {job.id}, submitted {record.submitted}, still runs it as it was before "
                    f"({changes[0]}); wait for it, or end it with `{job.way_to_end}`, then start again"
                )
            self._echo.line(f"{self._name}: re-attached to job {job.id}, submitted {record.submitted}")
            return job
        return None

    def _kept(self) -> Outcome | None:
        place = self._executor.place(self._plans[0])
        for plan, artifact in zip(self._plans, self._artifacts, strict=True):
            if reasons := [*reasons_to_run(plan, artifact, place), *self._apart(artifact)]:
                self._echo.line(f"{self._name}: {len(self._plans)} runs to make ({plan.arm}: {reasons[0]})")
                return None
        outcome = latest_outcome(self._artifacts[-1])
        if outcome is not None:
            self._echo.line(f"{self._name}: kept, unchanged since {outcome.ended}")
        return outcome

    def _apart(self, artifact: Artifact) -> list[str]:
        """Whether it is of another job than the first run."""
        jobs = {base(record.launch) for found in (self._artifacts[0], artifact) if (record := read_record(found))}
        return ["it is of another job than the first run"] if len(jobs) > 1 else []

    def _wait(self, job: Job) -> Outcome:
        started = time.monotonic()
        while job.running():
            if self.interrupts:
                cancel(job, self._name, self.interrupts[0], self._echo)
            waited = time.monotonic() - started
            self._echo.update(job.waits(waited) or self._progress(waited))
            time.sleep(job.pause)
        self._await_last(job)
        outcome = self._outcome(job)
        if outcome.ok:
            self._echo.line(f"{self._name}: {len(self._plans)} runs done in {progress.clock(self._seconds())}")
        return outcome

    def _progress(self, waited: float) -> str:
        done = sum(latest_outcome(artifact) is not None for artifact in self._artifacts)
        at = min(done, len(self._plans) - 1)
        plan, seen = self._plans[at], progress.read(self._artifacts[at].progress)
        told = progress.describe(plan.arm, plan.world, seen, waited)
        return f"{self._name}: run {at + 1} of {len(self._plans)}: {told}"

    def _await_last(self, job: Job) -> None:
        """A shared file system may show outcomes a while after their job has ended."""
        deadline = time.monotonic() + job.lag
        while not self._all_told() and time.monotonic() < deadline:
            time.sleep(0.5)

    def _all_told(self) -> bool:
        outcomes = [latest_outcome(artifact) for artifact in self._artifacts]
        return all(outcomes) or any(outcome is not None and not outcome.ok for outcome in outcomes)

    def _outcome(self, job: Job) -> Outcome:
        """Runs behind one that failed were not made."""
        found = [latest_outcome(artifact) for artifact in self._artifacts]
        if failed := [outcome for outcome in found if outcome is not None and not outcome.ok]:
            return failed[0]
        if found[-1] is not None and all(found):
            return found[-1]
        return Outcome(ok=False, message=job.last_words(), launch="", ended=now(), seconds=0.0)

    def _seconds(self) -> float:
        return sum(outcome.seconds for artifact in self._artifacts if (outcome := latest_outcome(artifact)))
