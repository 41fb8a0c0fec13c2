"""Arms as jobs of a Slurm cluster: the batch step of each job runs `samebits.launch.batch.run_arms`."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

from samebits.fingerprint.paths import Artifact
from samebits.launch import allocation, seen, slurm_cli
from samebits.launch.batch import run_arms
from samebits.launch.code import freeze
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, LaunchError
from samebits.launch.slurm_cli import SlurmError
from samebits.launch.slurm_job import SlurmJob
from samebits.launch.start import Request
from samebits.launch.submit import BatchError, batch_script, complete_batch, submit_batch
from samebits.recipe.cluster import ClusterFile
from samebits.spec.plan import Plan

_NO_NODES = re.compile("node configuration is not available|More processors requested", re.IGNORECASE)


class SlurmExecutor:
    """facts: of the cluster file."""

    def __init__(self, facts: ClusterFile) -> None:
        self._facts = facts

    def check(self, plan: Plan, artifact: Artifact) -> None:
        if "%" in str(artifact.folder):
            raise LaunchError(f"{artifact.folder}: has a %, which Slurm replaces in names of logs; use another folder")
        results = artifact.folder.parent.parent
        image = allocation.stage(self._facts, plan, results).image
        # Files that lie on the nodes alone are checked there alone.
        here = image is not None and image.file is not None and image.file.exists()
        if image is not None and (here or self._facts.verify_image == "first-node"):
            seen.check(image, results / ".images.json")

    def place(self, plan: Plan) -> str:
        nodes, ranks = self._facts.layout(plan.recipe)
        over = f" over {self._facts.interface}" if self._facts.interface else ""
        image = f", in the image by {self._facts.engine}" if plan.recipe.container else ""
        return f"{nodes} node{'s' if nodes > 1 else ''} of a cluster{over}, {ranks} ranks each{image}"

    def submit(self, request: Request, echo: Echo) -> SlurmJob:
        for start in request.starts:
            freeze(start.artifact.launch / "code")
        try:
            job = self._submit(request)
        except BatchError as refused:
            job = self._without_avoiding(request, refused, echo)
        return self._job(request.starts[0].artifact, job, request)

    def attach(self, artifact: Artifact, record: JobRecord) -> SlurmJob | None:
        """Raises LaunchError where Slurm cannot be asked: whether there is a job is not known then."""
        home = Artifact(artifact.folder.with_name(record.lead or artifact.folder.name))
        name = record.name or allocation.job_name(home, record.launch)
        try:
            job = record.job or slurm_cli.find(name)
            view = slurm_cli.view(job) if job else None
        except SlurmError as error:
            raise LaunchError(
                f"arm {artifact.folder.name}: {error}; whether its job of {record.submitted} still runs is not known; "
                "start again when Slurm answers"
            ) from error
        # Ids begin again with a new cluster: a job of another name is somebody else's.
        if job is None or view is None or not view.live or view.name != name:
            return None
        complete_batch(home.launch, job)
        return SlurmJob(artifact, home, job, name, self._facts.poll_seconds)

    def script(self, request: Request) -> str:
        """The text that sbatch is given."""
        return batch_script(request.starts[0].artifact.launch, allocation.parameters(self._facts, request))

    def _job(self, home: Artifact, job: str, request: Request) -> SlurmJob:
        name = allocation.job_name(home, request.starts[0].launch)
        # A site's own rules may have given it another name.
        with contextlib.suppress(SlurmError):
            name = slurm_cli.view(job).name or name
        return SlurmJob(home, home, job, name, self._facts.poll_seconds)

    def _without_avoiding(self, request: Request, refused: BatchError, echo: Echo) -> str:
        """Where the cluster has no nodes but those to avoid, on any: the judge then says what that cannot show."""
        arm = request.starts[0].plan.arm
        refusal = LaunchError(f"arm {arm}: sbatch refused the job: {refused}; {allocation.advice(str(refused))}")
        if not request.off or not _NO_NODES.search(str(refused)):
            raise refusal from refused
        try:
            job = self._submit(replace(request, off=()))
        except BatchError:
            raise refusal from refused
        echo.line(
            f"arm {arm}: cannot avoid {', '.join(request.off)}, the reference's nodes ({refused}), and runs on any: "
            "that bits are equal across allocations will not be claimed"
        )
        return job

    def _submit(self, request: Request) -> str:
        """Raises BatchError where sbatch gave no id and Slurm has no job of that name."""
        home = request.starts[0].artifact
        stage = allocation.stage(self._facts, request.starts[0].plan, home.folder.parent.parent, request)
        starts = [(str(start.artifact.folder), start.launch) for start in request.starts]
        parameters = allocation.parameters(self._facts, request)
        try:
            return submit_batch(home.launch, parameters, run_arms, starts, stage)
        except BatchError:
            # It may have been taken all the same, and the answer lost.
            if (job := self._taken(str(parameters["job_name"]))) is None:
                raise
            complete_batch(home.launch, job)
            return job

    def _taken(self, name: str) -> str | None:
        try:
            return slurm_cli.find(name)
        except SlurmError:
            return None
