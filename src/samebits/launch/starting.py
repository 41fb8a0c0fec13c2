"""Starting arms: room is made, plans and records are written, one job is submitted."""

from __future__ import annotations

import dataclasses
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from samebits.fingerprint.paths import Artifact, write_whole
from samebits.launch import environment, traces
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, LaunchError, now, read_outcome, runner
from samebits.launch.kept import launch_restored
from samebits.launch.start import Request, Start
from samebits.launch.submit import Executor, Job
from samebits.launch.varying import STRESS
from samebits.plan import arms
from samebits.spec.plan import Plan


class Starting:
    """arm, artifact: the one that is asked for; those of the recipe's other arms lie beside it, by their names.
    command: starts one rank; None: the executor's own."""

    def __init__(self, arm: str, artifact: Artifact, echo: Echo, command: Sequence[str] | None) -> None:
        self._arm = arm
        self._artifact = artifact
        self._echo = echo
        self._command = tuple(command) if command is not None else None

    def artifact(self, plan: Plan) -> Artifact:
        return self._of(plan.arm)

    def start(self, executor: Executor, plans: Sequence[Plan]) -> Job:
        """One job that runs the arms in this order; what lies in their folders makes way. Raises LaunchError."""
        starts = tuple(self._starts(plans))
        for start in starts:
            self._check_restore(start, starts)
            refuse_running(start.artifact)
        for start in starts:
            self._make_room(start)
        try:
            return self._submit(executor, starts)
        except (OSError, LaunchError):
            for start in starts:
                shutil.rmtree(start.artifact.folder, ignore_errors=True)
            raise

    def _starts(self, plans: Sequence[Plan]) -> Iterator[Start]:
        job = uuid.uuid4().hex
        for number, plan in enumerate(plans):
            launch = f"{job}-{number}" if len(plans) > 1 else job
            yield Start(plan=plan, artifact=self.artifact(plan), launch=launch)

    def _check_restore(self, start: Start, starts: Sequence[Start]) -> None:
        plan = start.plan
        if plan.restore is None or Path(plan.restore).is_dir() or _origin(start, starts) is not None:
            return
        recipe, needed = plan.recipe.name, arms.needs(plan)[0]
        raise LaunchError(
            f"arm {plan.arm}: starts from {plan.restore}, which is not there; arm {needed} writes it: "
            f"`samebits run recipes/{recipe}.yaml {needed}` first"
        )

    def _make_room(self, start: Start) -> None:
        artifact = start.artifact
        if not artifact.plan.exists():
            shutil.rmtree(artifact.folder, ignore_errors=True)
            return
        aside = artifact.folder.rename(traces.superseded(artifact))
        self._echo.line(f"arm {start.plan.arm}: what was there is now in {aside}; it starts from nothing")

    def _submit(self, executor: Executor, starts: tuple[Start, ...]) -> Job:
        records, place, lead = {}, executor.place(starts[0].plan), starts[0].artifact.folder.name
        for start in starts:
            start.artifact.launch.mkdir(parents=True, exist_ok=True)
            write_whole(start.artifact.plan, start.plan.to_json().encode())
            origin = _origin(start, starts)
            restored = origin.launch if origin else launch_restored(start.plan)
            key = arms.key(start.plan)
            # Before and after: whoever dies in between leaves a job that is found by its launch, or gives up.
            records[start.launch] = JobRecord(
                launch=start.launch, key=key, restored=restored, submitted=now(), lead=lead, place=place
            )
            records[start.launch].write(start.artifact)
        job = executor.submit(self._request(starts), self._echo)
        for start in starts:
            dataclasses.replace(records[start.launch], job=job.id, name=job.name).write(start.artifact)
            self._announce(start.plan, job)
        return job

    def _request(self, starts: tuple[Start, ...]) -> Request:
        """Where the recipe wants the reference's nodes, or others, and the reference has run before."""
        plan = starts[0].plan
        reference = read_outcome(self._reference())
        nodes = reference.nodes if reference else ()
        same = plan.recipe.cluster is not None and plan.recipe.cluster.placement == "same-nodes"
        return Request(
            starts=starts,
            inherited=environment.inherited(os.environ),
            command=self._command,
            on=nodes if same else (),
            off=nodes if arms.avoids_reference(plan) else (),
        )

    def _reference(self) -> Artifact:
        """Of the recipe: a stress run lies elsewhere, and is held against the same reference."""
        if self._artifact.folder.parent.name != STRESS:
            return self._of(arms.REFERENCE)
        return Artifact(self._artifact.folder.parent.with_name("arms") / arms.REFERENCE)

    def _of(self, arm: str) -> Artifact:
        return self._artifact if arm == self._arm else Artifact(self._artifact.folder.with_name(arm))

    def _announce(self, plan: Plan, job: Job) -> None:
        if plan.timing is not None and plan.arm != self._arm:
            # One line for all runs of an experiment.
            return
        ranks, steps = plan.world, f"steps {plan.first_step}-{plan.last_step}"
        self._echo.line(f"arm {plan.arm}: job {job.id}, {ranks} rank{'s' if ranks > 1 else ''}, {steps}")


def refuse_running(artifact: Artifact) -> None:
    """Raises LaunchError while a process still runs an earlier start of the arm."""
    if pid := runner(artifact):
        raise LaunchError(
            f"arm {artifact.folder.name}: process {pid}, on this host or a node, still runs its earlier start; end it, "
            "or take its node down, then start again"
        )


def _origin(start: Start, starts: Sequence[Start]) -> Start | None:
    """The start in the same job that writes the checkpoint that this one restores."""
    if start.plan.restore is None:
        return None
    path = Path(start.plan.restore)
    return next((other for other in starts if path.is_relative_to(other.artifact.folder)), None)
