"""An executor that starts nothing: it keeps what it was asked, and ends every arm as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.job_state import ArmOutcome, JobRecord, LaunchError, now, read_record
from samebits.launch.submit import JobRequest, Start
from samebits.spec.plan import Plan

Ending = Callable[[Start], None]


def ends_well(start: Start, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
    """Leaves what an arm leaves that ended well."""
    for rank in range(start.plan.world):
        start.artifact.fingerprint(rank).write_bytes(b"whole")
    if start.plan.keep_checkpoints:
        start.artifact.checkpoint(start.plan.recipe.checkpoint.resume_from).mkdir(parents=True)
    ends(start.artifact, start.launch, ok=True, nodes=nodes)


def keeps_silent(_start: Start) -> None:
    """Leaves nothing."""


def ends(artifact: Artifact, launch: str, *, ok: bool, nodes: tuple[str, ...] = ()) -> None:
    message = "" if ok else "arm: the loss is a teapot"
    ArmOutcome(ok=ok, message=message, launch=launch, ended=now(), seconds=1.0, nodes=nodes).write(artifact)


class Ended:
    """A job that has ended when somebody asks. last: what it does before."""

    id = "7"
    way_to_end = "scancel 7"
    name = "smoke"
    pause = 0.0
    lag = 0.0

    def __init__(self, last: Callable[[], None] = lambda: None) -> None:
        self._last = last

    def running(self) -> bool:
        self._last()
        return False

    def waits(self, seconds: float) -> str:
        return ""

    def cancel(self) -> None: ...

    def last_words(self) -> str:
        return "job 7 ended and left no word"


class Recording:
    """requests: submitted so far. submitted: the records that lay in the folders then. live: folders of arms that run
    in another job. where: its place. refusal: what submitting is answered with. ending: befalls each arm while it is
    submitted; later: when the job's id has been written down."""

    def __init__(self, ending: Ending = ends_well, later: Ending = keeps_silent) -> None:
        self.requests: list[JobRequest] = []
        self.submitted: list[JobRecord | None] = []
        self.live: set[Path] = set()
        self.refusal = ""
        self.where = "nowhere"
        self._ending = ending
        self._later = later

    def check(self, plan: Plan, artifact: Artifact) -> None: ...

    def place(self, plan: Plan) -> str:
        return self.where

    def submit(self, request: JobRequest, echo: Echo) -> Ended:
        if self.refusal:
            raise LaunchError(self.refusal)
        self.requests.append(request)
        self.submitted += [read_record(start.artifact) for start in request.starts]
        for start in request.starts:
            self._ending(start)
        return Ended(lambda: self._end(request))

    def _end(self, request: JobRequest) -> None:
        for start in request.starts:
            self._later(start)

    def attach(self, artifact: Artifact, record: JobRecord) -> Ended | None:
        return Ended() if artifact.folder in self.live else None

    def arms(self) -> list[list[str]]:
        """Names of the arms of every request."""
        return [[start.plan.arm for start in request.starts] for request in self.requests]
