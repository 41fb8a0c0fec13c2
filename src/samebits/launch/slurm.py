"""Arms as jobs of a Slurm cluster: the batch step of each job runs `samebits.launch.supervise.run_on_cluster`."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import replace
from pathlib import Path

from samebits.fingerprint.paths import Artifact, write_whole
from samebits.launch import failure_messages, progress, sbatch, slurm_cli
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, LaunchError, read_outcome
from samebits.launch.rank_command import copy_sources
from samebits.launch.slurm_cli import SlurmError, View
from samebits.launch.submit import BatchError, JobRequest, complete_batch, job_log, submit_batch
from samebits.launch.supervise import run_on_cluster
from samebits.recipe.cluster import ClusterFile
from samebits.recipe.image import Image, check_file
from samebits.spec.plan import Plan

_NO_NODES = re.compile("node configuration is not available|More processors requested", re.IGNORECASE)
_CANCEL_SECONDS = 180
_HOPELESS_LOOKS = 3
_STANDING = ("SUSPENDED", "STOPPED", "SPECIAL_EXIT", "REQUEUE_HOLD")
_SOON_SECONDS = 0.5
"""Between two questions once the arm has said how it ended."""
_SOON_LOOKS = 20


class SlurmExecutor:
    """Jobs of a cluster; an implementation of `submit.Executor`. facts: of the cluster file."""

    def __init__(self, facts: ClusterFile) -> None:
        self._facts = facts

    def check(self, plan: Plan, artifact: Artifact) -> None:
        if "%" in str(artifact.folder):
            raise LaunchError(f"{artifact.folder}: has a %, which Slurm replaces in names of logs; use another folder")
        results = artifact.folder.parent.parent
        image = sbatch.stage(self._facts, plan, results).image
        # Files that lie on the nodes alone are checked there alone.
        here = image is not None and image.file is not None and image.file.exists()
        if image is not None and (here or self._facts.verify_image == "first-node"):
            check_image(image, results / ".images.json")

    def place(self, plan: Plan) -> str:
        nodes, ranks = self._facts.layout(plan.recipe)
        over = f" over {self._facts.interface}" if self._facts.interface else ""
        image = f", in the image by {self._facts.engine}" if plan.recipe.container else ""
        return f"{nodes} node{'s' if nodes > 1 else ''} of a cluster{over}, {ranks} ranks each{image}"

    def submit(self, request: JobRequest, echo: Echo) -> SlurmJob:
        """Return a job; where the cluster has no nodes but those to avoid, one that runs on any.

        The judge then says what that cannot show.
        """
        home = request.starts[0].artifact
        arm, name = request.starts[0].plan.arm, sbatch.job_name(home, request.starts[0].launch)
        for start in request.starts:
            copy_sources(start.artifact.launch / "code")
        try:
            job = self._submit(request)
        except BatchError as refused:
            said = str(refused)
            refusal = LaunchError(f"arm {arm}: sbatch refused the job: {said}; {sbatch.advice(said)}")
            if not request.off or not _NO_NODES.search(said):
                raise refusal from refused
            try:
                job = self._submit(replace(request, off=()))
            except BatchError:
                raise refusal from refused
            echo.line(
                f"arm {arm}: cannot avoid {', '.join(request.off)}, the reference's nodes ({said}), and runs on any: "
                "that bits are equal across allocations will not be claimed"
            )
        # A site's own rules may have given it another name.
        with contextlib.suppress(SlurmError):
            name = slurm_cli.view(job).name or name
        return SlurmJob(home, home, job, name, self._facts.poll_seconds)

    def attach(self, artifact: Artifact, record: JobRecord) -> SlurmJob | None:
        """Raise LaunchError where Slurm cannot be asked: whether there is a job is not known then."""
        home = Artifact(artifact.folder.with_name(record.lead or artifact.folder.name))
        name = record.name or sbatch.job_name(home, record.launch)
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

    def _submit(self, request: JobRequest) -> str:
        """Return the job's id. Raises BatchError where sbatch gave none and Slurm has no job of that name."""
        home = request.starts[0].artifact
        stage = sbatch.stage(self._facts, request.starts[0].plan, home.folder.parent.parent, request)
        starts = [(str(start.artifact.folder), start.launch) for start in request.starts]
        parameters = sbatch.parameters(self._facts, request)
        try:
            return submit_batch(home.launch, parameters, run_on_cluster, starts, stage)
        except BatchError:
            # The job may have been taken all the same, and the answer lost.
            job = None
            with contextlib.suppress(SlurmError):
                job = slurm_cli.find(str(parameters["job_name"]))
            if job is None:
                raise
            complete_batch(home.launch, job)
            return job


class SlurmJob:
    """The live or ended job of one or several arms; an implementation of `submit.Job`.

    artifact: of the arm that is waited for. home: of the job's first arm, where its log is. name: of the job; a job
    of another name is somebody else's, ids are used again. poll: seconds between two questions to the controller.
    """

    def __init__(self, artifact: Artifact, home: Artifact, job_id: str, name: str, poll: float) -> None:
        self.id = job_id
        self.name = name
        self.way_to_end = f"scancel {job_id}"
        self.pause = min(1.0, poll)
        self._artifact = artifact
        self._log = job_log(home.launch, job_id, "out")
        self._poll = poll
        self._asked = float("-inf")
        self._view = View(state="PENDING")
        self._trouble = ""
        self._soon = _SOON_LOOKS
        self._hopeless = 0
        self._never = ""

    def running(self) -> bool:
        """Return whether the job lives; True as well while the controller does not answer: nothing is known then."""
        interval = self._poll
        if self._soon and read_outcome(self._artifact):
            # The arm has said how it ended: its job ends soon, unless other arms follow.
            self._soon -= 1
            interval = min(_SOON_SECONDS, self._poll)
        if time.monotonic() - self._asked < interval:
            return True
        self._asked = time.monotonic()
        try:
            self._view, self._trouble = self._look(), ""
        except SlurmError as error:
            self._trouble = str(error)
            return True
        # A job that Slurm took and can never start is ended; after some looks, for the reason may be a passing one.
        waits = self._view.state == "PENDING" and self._view.reason in slurm_cli.HOPELESS
        self._hopeless = self._hopeless + 1 if waits else 0
        if self._hopeless == _HOPELESS_LOOKS:
            self._never = self._view.reason
            self.cancel()
            self._view = View(state="CANCELLED")
        return self._view.live

    def waits(self, seconds: float) -> str:
        if self._trouble:
            return f"job {self.id}: waiting for Slurm to answer, {progress.clock(seconds)} ({self._trouble})"
        if self._view.state in ("PENDING", "CONFIGURING", "REQUEUED"):
            why = f" ({self._view.reason})" if self._view.reason not in ("", "None") else ""
            return f"job {self.id}: waits in the queue{why}, {progress.clock(seconds)}"
        if self._view.state in _STANDING:
            return f"job {self.id}: is {self._view.state.lower()}, {progress.clock(seconds)}; see `scontrol show job`"
        return ""

    def cancel(self) -> None:
        """Return when the job has ended. Raises LaunchError where Slurm does not end it in three minutes."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline:
            try:
                if not self._look().live:
                    return
                slurm_cli.cancel(self.id)
            except SlurmError as error:
                self._trouble = str(error)
            time.sleep(1)
        raise LaunchError(
            f"job {self.id}: Slurm has not ended it ({self._trouble or self._view.state}); it may still run: "
            f"`{self.way_to_end}`"
        )

    @property
    def lag(self) -> float:
        """Long where its supervisor came to its own end, so that it must have written how the arm ended."""
        return 30.0 if self._view.state == "COMPLETED" else 2.0

    def last_words(self) -> str:
        if self._never:
            return (
                f"arm {self._artifact.folder.name}: job {self.id}: Slurm took it and can never start it "
                f"({self._never}), cancelled; {sbatch.advice('node')}"
            )
        return failure_messages.of_slurm_job(self._artifact, self.id, self._log, self._view)

    def _look(self) -> View:
        view = slurm_cli.view(self.id)
        return view if view.name in ("", self.name) else View(state="GONE")


def check_image(image: Image, memory: Path) -> None:
    """Read an image file and compare its digest; a file of the same size, time and inode is read once on this host.

    memory: a file of what was read, made where it is missing. Raises ImageError where the file is not there, or is not
    the one that the digest names. Nodes read it again before the first step, whatever is remembered here.
    """
    file = image.file
    if file is None:
        return
    known: dict[str, list[object]] = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(memory.read_text(encoding="utf-8"))
        known = found if isinstance(found, dict) else {}
    identity: list[int] = []
    with contextlib.suppress(OSError):
        status = file.stat()
        identity = [status.st_size, status.st_mtime_ns, status.st_ino]
    if identity and known.get(str(file)) == [*identity, image.digest]:
        return
    check_file(image)
    known[str(file)] = [*identity, image.digest]
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_whole(memory, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
