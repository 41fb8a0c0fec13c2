"""The live or ended job of one or several arms on a cluster."""

from __future__ import annotations

import time

from samebits.fingerprint.paths import Artifact
from samebits.launch import allocation, ending, progress, slurm_cli
from samebits.launch.job_state import LaunchError, read_outcome
from samebits.launch.slurm_cli import SlurmError, View

_CANCEL_SECONDS = 180
_LOOKS = 3
_STANDING = ("SUSPENDED", "STOPPED", "SPECIAL_EXIT", "REQUEUE_HOLD")
_SOON_SECONDS = 0.5
"""Between two questions once the arm has said how it ended."""
_SOON_LOOKS = 20


class SlurmJob:
    """artifact: of the arm that is waited for. home: of the job's first arm, where its log is. name: of the job; a job
    of another name is somebody else's, ids are used again. poll: seconds between two questions to the controller."""

    def __init__(self, artifact: Artifact, home: Artifact, job_id: str, name: str, poll: float) -> None:
        self._artifact = artifact
        self._log = home.launch / f"{job_id}_0_log.out"
        self._id = job_id
        self._name = name
        self._poll = poll
        self._asked = float("-inf")
        self._view = View(state="PENDING")
        self._trouble = ""
        self._soon = _SOON_LOOKS
        self._hopeless = 0
        self._never = ""

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def way_to_end(self) -> str:
        return f"scancel {self._id}"

    def running(self) -> bool:
        """True as well while the controller does not answer: nothing is known then."""
        if time.monotonic() - self._asked < self._interval():
            return True
        self._asked = time.monotonic()
        try:
            self._view, self._trouble = self._look(), ""
        except SlurmError as error:
            self._trouble = str(error)
            return True
        self._give_up()
        return self._view.live

    @property
    def pause(self) -> float:
        return min(1.0, self._poll)

    def _interval(self) -> float:
        """Shorter for a while once the arm has said how it ended: its job ends soon, unless other arms follow."""
        if self._soon and read_outcome(self._artifact):
            self._soon -= 1
            return min(_SOON_SECONDS, self._poll)
        return self._poll

    def _look(self) -> View:
        seen = slurm_cli.view(self._id)
        return seen if seen.name in ("", self._name) else View(state="GONE")

    def _give_up(self) -> None:
        """Ends a job that Slurm took and can never start. After some looks: the first reason may be a passing one."""
        waits = self._view.state == "PENDING" and self._view.reason in slurm_cli.HOPELESS
        self._hopeless = self._hopeless + 1 if waits else 0
        if self._hopeless == _LOOKS:
            self._never = self._view.reason
            self.cancel()
            self._view = View(state="CANCELLED")

    def waits(self, seconds: float) -> str:
        if self._trouble:
            return f"job {self._id}: waiting for Slurm to answer, {progress.clock(seconds)} ({self._trouble})"
        if self._view.state in ("PENDING", "CONFIGURING", "REQUEUED"):
            why = f" ({self._view.reason})" if self._view.reason not in ("", "None") else ""
            return f"job {self._id}: waits in the queue{why}, {progress.clock(seconds)}"
        if self._view.state in _STANDING:
            return f"job {self._id}: is {self._view.state.lower()}, {progress.clock(seconds)}; see `scontrol show job`"
        return ""

    def cancel(self) -> None:
        """Raises LaunchError where Slurm does not end it in three minutes."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline:
            try:
                if not self._look().live:
                    return
                slurm_cli.cancel(self._id)
            except SlurmError as error:
                self._trouble = str(error)
            time.sleep(1)
        raise LaunchError(
            f"job {self._id}: Slurm has not ended it ({self._trouble or self._view.state}); it may still run: "
            f"`{self.way_to_end}`"
        )

    @property
    def lag(self) -> float:
        """Long where its runner came to its own end, so that it must have said how the arm ended."""
        return 30.0 if self._view.state == "COMPLETED" else 2.0

    def last_words(self) -> str:
        if self._never:
            return (
                f"arm {self._artifact.folder.name}: job {self._id}: Slurm took it and can never start it "
                f"({self._never}), cancelled; {allocation.advice('node')}"
            )
        return ending.of_job(self._artifact, self._id, self._log, self._view)
