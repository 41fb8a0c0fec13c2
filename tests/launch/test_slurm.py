"""Jobs of a cluster, submitted, found again and waited for; the commands are stand-ins, tests/slurm asks real ones."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

import clusters
import executors
import launching
from batching import NAME, Site
from samebits.fingerprint.paths import Artifact
from samebits.launch import sbatch, slurm
from samebits.launch.job_state import JobRecord, LaunchError, now
from samebits.launch.slurm import SlurmExecutor, SlurmJob
from samebits.launch.submit import JobRequest, Start
from samebits.plan import arms
from samebits.recipe import image
from samebits.recipe.image import Image, ImageError

LAUNCH = "0123456789abcdef0123"


INVALID = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"


NO_NODES = "sbatch: error: Batch job submission failed: Requested node configuration is not available"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    monkeypatch.setenv("PATH", site.path())
    site.command("sbatch", f'cp "$1" {site.bin}/script\necho Submitted batch job 7')
    return site


@pytest.fixture
def executor(tmp_path: Path) -> SlurmExecutor:
    return SlurmExecutor(clusters.facts(tmp_path))


def request_of(results: Path, *names: str, off: tuple[str, ...] = ()) -> JobRequest:
    starts = [
        Start(plan=launching.plan(name), artifact=launching.prepared(results, launching.plan(name)), launch=LAUNCH)
        for name in names
    ]
    return JobRequest(starts=tuple(starts), off=off)


def submit(executor: SlurmExecutor, request: JobRequest) -> tuple[str, str]:
    """The job's id, and what was said."""
    echo, said = launching.echo()
    return executor.submit(request, echo).id, said.getvalue()


def recorded(results: Path, job: str | None, lead: str | None = None) -> tuple[Artifact, JobRecord]:
    record = JobRecord(launch=LAUNCH, key="", restored=None, submitted=now(), job=job, lead=lead)
    return launching.prepared(results, launching.plan()), record


def test_a_job_has_an_id_and_every_arm_its_own_sources(site: Site, executor: SlurmExecutor, tmp_path: Path) -> None:
    request = request_of(tmp_path, "reference", "twin-1")
    assert submit(executor, request) == ("7", "")
    for start in request.starts:
        assert (start.artifact.launch / "code" / "samebits" / "worker" / "main.py").exists()


def test_the_job_is_asked_for_in_the_words_that_the_plan_shows(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    request = request_of(tmp_path, "reference", "twin-1", off=("n3", "n4"))
    submit(executor, request)
    script = (site.bin / "script").read_text()
    assert "#SBATCH --exclude=n3,n4" in script
    assert "#SBATCH --time=25" in script
    assert "#SBATCH --job-name=smoke-reference-0123456789ab" in script
    assert [line for line in script.splitlines() if line.startswith("#SBATCH")] == [
        line for line in sbatch.script(request, clusters.facts(tmp_path)).splitlines() if line.startswith("#SBATCH")
    ]


@pytest.mark.parametrize("command", ["sbatch", "srun"])
def test_a_host_that_cannot_submit_is_refused(
    command: str, site: Site, executor: SlurmExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.bin / command).unlink(missing_ok=True)
    monkeypatch.setenv("PATH", str(site.bin))
    with pytest.raises(LaunchError, match=f"^`{command}` is not on PATH; start on a host that can submit to Slurm$"):
        submit(executor, request_of(tmp_path, "reference"))


def test_a_refusal_carries_the_words_of_sbatch_and_a_way_out(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    site.command("sbatch", f"echo '{INVALID}' >&2; exit 1")
    with pytest.raises(LaunchError, match=r"arm reference: sbatch refused the job: Batch job .*sacctmgr show"):
        submit(executor, request_of(tmp_path, "reference"))


def test_twins_run_anywhere_where_the_references_nodes_cannot_be_avoided(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    site.command(
        "sbatch", f"grep -q exclude \"$1\" && {{ echo '{NO_NODES}' >&2; exit 1; }}\necho Submitted batch job 8"
    )
    job, said = submit(executor, request_of(tmp_path, "twin-1", off=("n1", "n2")))
    assert job == "8"
    assert "arm twin-1: cannot avoid n1, n2, the reference's nodes (Batch job submission failed: Requested node" in said
    assert "runs on any: that bits are equal across allocations will not be claimed" in said


def test_a_job_that_is_refused_on_any_nodes_is_refused_for_its_first_reason(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    site.command(
        "sbatch", f"grep -q exclude \"$1\" && {{ echo '{NO_NODES}' >&2; exit 1; }}\necho '{INVALID}' >&2; exit 1"
    )
    with pytest.raises(LaunchError, match="Requested node configuration is not available"):
        submit(executor, request_of(tmp_path, "twin-1", off=("n1",)))


@pytest.mark.parametrize(("state", "found"), [("PENDING", True), ("RUNNING", True), ("COMPLETED", False)])
def test_a_recorded_job_is_found_again_while_it_lives(
    site: Site, executor: SlurmExecutor, tmp_path: Path, state: str, found: bool
) -> None:
    site.state(state)
    job = executor.attach(*recorded(tmp_path, "7"))
    assert (job is not None) is found
    assert job is None or job.way_to_end == "scancel 7"


def test_a_job_whose_id_was_not_written_down_is_found_by_the_name_of_its_first_arm(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    artifact, record = recorded(tmp_path, None, lead="twin-1")
    name = sbatch.job_name(Artifact(arms.artifact_folder(tmp_path, "smoke", "twin-1")), LAUNCH)
    site.command("squeue", f"case \"$*\" in *--name={name}*) echo 9;; *--jobs=9*) echo 'RUNNING|None|n1|{name}';; esac")
    job = executor.attach(artifact, record)
    assert job is not None
    assert job.id == "9"


def test_a_job_that_was_never_submitted_is_not_found(site: Site, executor: SlurmExecutor, tmp_path: Path) -> None:
    site.command("squeue", "exit 0")
    assert executor.attach(*recorded(tmp_path, None)) is None


@pytest.mark.parametrize("job", ["7", None])
def test_without_an_answer_no_second_job_is_submitted(
    site: Site, executor: SlurmExecutor, tmp_path: Path, job: str | None
) -> None:
    site.no_answer()
    with pytest.raises(LaunchError, match=r"whether its job of .* still runs is not known; start again when Slurm"):
        executor.attach(*recorded(tmp_path, job))


def test_another_job_under_the_same_id_is_left_alone(site: Site, executor: SlurmExecutor, tmp_path: Path) -> None:
    """Ids begin again when a controller is set up anew."""
    site.state("RUNNING", name="somebody-s-training")
    artifact, record = recorded(tmp_path, "7")
    assert executor.attach(artifact, record) is None


def test_a_job_that_a_site_gave_another_name_is_found_by_that_name(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    site.state("RUNNING", name="lab/smoke")
    echo, _ = launching.echo()
    job = executor.submit(request_of(tmp_path, "reference"), echo)
    assert job.name == "lab/smoke"
    record = JobRecord(launch=LAUNCH, key="", restored=None, submitted=now(), job="7", name=job.name)
    assert executor.attach(Artifact(tmp_path / "smoke" / "arms" / "reference"), record) is not None


@pytest.mark.parametrize(
    "name", ["SBATCH_PARTITION", "SBATCH_WAIT", "SLURM_RESTART_COUNT", "SRUN_DEBUG", "SLURM_TASK_PROLOG"]
)
def test_what_a_shell_holds_does_not_steer_sbatch(
    site: Site, executor: SlurmExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    site.command("sbatch", f"env > {site.bin}/seen\necho Submitted batch job 7")
    submit(executor, request_of(tmp_path, "reference"))
    seen = (site.bin / "seen").read_text().splitlines()
    assert f"{name}=1" not in seen
    assert "SLURM_CONF=/etc/slurm/other.conf" in seen, "which cluster it is stays the shell's business"
    assert os.environ[name] == "1"


def test_a_greeting_of_sbatch_is_not_taken_for_an_id(site: Site, executor: SlurmExecutor, tmp_path: Path) -> None:
    site.command("sbatch", "echo 'see job 99999 for news'\necho Submitted batch job 7")
    assert submit(executor, request_of(tmp_path, "reference"))[0] == "7"


@pytest.mark.parametrize(
    "answer",
    [
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
        "echo accepted",
    ],
)
def test_a_job_that_was_taken_although_the_answer_was_lost_is_adopted(
    site: Site, executor: SlurmExecutor, tmp_path: Path, answer: str
) -> None:
    site.command("sbatch", answer)
    site.command("squeue", f'case "$*" in *--name=*) echo 7;; *) echo "RUNNING|None|n1|{NAME}";; esac')
    request = request_of(tmp_path, "reference")
    job, said = submit(executor, request)
    assert (job, said) == ("7", "")
    assert (request.starts[0].artifact.launch / "7_submitted.pkl").exists(), "what it is to run waits for it"


def test_a_passing_failure_gives_up_no_claim(site: Site, executor: SlurmExecutor, tmp_path: Path) -> None:
    """Only where there are no other nodes do twins run on the reference's."""
    site.command("sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    site.command("squeue", "")
    with pytest.raises(LaunchError, match="Socket timed out; start again: the controller is slow"):
        submit(executor, request_of(tmp_path, "twin-1", off=("n1", "n2")))


def test_a_job_whose_pipeline_died_before_it_was_given_its_work_gets_it(
    site: Site, executor: SlurmExecutor, tmp_path: Path
) -> None:
    artifact, record = recorded(tmp_path, None)
    (artifact.launch / "0123456789.pkl").write_bytes(b"work")
    site.command("squeue", f'case "$*" in *--name=*) echo 7;; *) echo "RUNNING|None|n1|{NAME}";; esac')
    job = executor.attach(artifact, record)
    assert job is not None
    assert (artifact.launch / "7_submitted.pkl").read_bytes() == b"work"


def test_a_results_folder_that_slurm_would_read_otherwise_is_refused(executor: SlurmExecutor, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="has a %"):
        executor.check(launching.plan(), Artifact(tmp_path / "50%" / "smoke" / "arms" / "reference"))


@pytest.fixture
def queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Job 7 waits in the queue, until scancel ends it."""
    site = Site(tmp_path)
    monkeypatch.setenv("PATH", site.path())
    site.state("PENDING", "Resources")
    site.command("cancelled", f"echo 'CANCELLED|None||{NAME}'")
    site.command("scancel", f'echo "$@" >> {site.bin}/scancel.log\ncp {site.bin}/cancelled {site.bin}/squeue')
    return site


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return launching.prepared(tmp_path, launching.plan())


def looked_at(artifact: Artifact, poll: float = 0.0) -> SlurmJob:
    return SlurmJob(artifact, artifact, "7", NAME, poll)


def cancelled(queued: Site) -> list[str]:
    log = queued.bin / "scancel.log"
    return log.read_text().split() if log.exists() else []


def test_a_job_in_the_queue_says_why_it_waits(queued: Site, artifact: Artifact) -> None:
    job = looked_at(artifact)
    assert job.running()
    assert job.waits(75) == "job 7: waits in the queue (Resources), 1:15"
    queued.state("CONFIGURING")
    assert job.running()
    assert job.waits(75) == "job 7: waits in the queue, 1:15"


def test_a_job_that_runs_leaves_the_word_to_its_arm(queued: Site, artifact: Artifact) -> None:
    queued.state("RUNNING")
    job = looked_at(artifact)
    assert job.running()
    assert job.waits(75) == ""


@pytest.mark.parametrize("before", ["PENDING", "RUNNING"])
def test_while_the_controller_is_away_a_job_still_runs_and_says_what_it_waits_for(
    queued: Site, artifact: Artifact, before: str
) -> None:
    job = looked_at(artifact)
    queued.state(before)
    assert job.running()
    queued.no_answer()
    assert job.running()
    assert job.waits(3) == (
        "job 7: waiting for Slurm to answer, 0:03 (`squeue` says: slurm_load_jobs error: Unable to contact slurm "
        "controller (connect failure))"
    )
    queued.state("RUNNING")
    assert job.running()
    assert job.waits(3) == ""


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "NODE_FAIL", "TIMEOUT"])
def test_an_ended_job_does_not_run(queued: Site, artifact: Artifact, state: str) -> None:
    queued.state(state)
    assert not looked_at(artifact).running()


def test_a_job_that_slurm_has_forgotten_has_ended(queued: Site, artifact: Artifact) -> None:
    queued.command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    job = looked_at(artifact)
    assert not job.running()
    assert "is no longer known to Slurm" in job.last_words()


def test_a_job_of_another_name_is_somebody_elses_and_left_alone(queued: Site, artifact: Artifact) -> None:
    queued.state("RUNNING", name="somebodys")
    job = looked_at(artifact)
    assert not job.running()
    job.cancel()
    assert cancelled(queued) == []
    assert "is no longer known to Slurm" in job.last_words()


@pytest.mark.parametrize("state", ["SUSPENDED", "REQUEUE_HOLD"])
def test_a_job_that_stands_still_says_so(queued: Site, artifact: Artifact, state: str) -> None:
    queued.state(state)
    job = looked_at(artifact)
    assert job.running()
    assert job.waits(75).startswith(f"job 7: is {state.lower()}, 1:15")


@pytest.mark.parametrize("state", ["REQUEUED", "COMPLETING", "SUSPENDED"])
def test_a_job_that_may_come_back_is_waited_for(queued: Site, artifact: Artifact, state: str) -> None:
    executors.ends(artifact, launching.LAUNCH, ok=False)
    queued.state(state)
    assert looked_at(artifact).running()


def test_between_two_questions_nobody_asks(queued: Site, artifact: Artifact) -> None:
    job = looked_at(artifact, poll=60)
    assert job.running()
    queued.state("COMPLETED")
    assert job.running()


def test_once_an_arm_has_said_how_it_ended_the_next_question_comes_soon(
    queued: Site, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    job = looked_at(artifact, poll=60)
    assert job.running()
    executors.ends(artifact, launching.LAUNCH, ok=True)
    queued.state("COMPLETED")
    now = 100.4
    assert job.running()
    now = 100.6
    assert not job.running()


def test_a_job_that_can_never_start_is_cancelled_at_the_third_look(queued: Site, artifact: Artifact) -> None:
    queued.state("PENDING", "BadConstraints")
    job = looked_at(artifact)
    assert [job.running(), job.running()] == [True, True]
    assert cancelled(queued) == []
    assert not job.running()
    assert cancelled(queued) == ["7"]
    first, *_ = job.last_words().splitlines()
    assert first.startswith(
        "arm reference: job 7: Slurm took it and can never start it (BadConstraints), cancelled; ask for fewer or other"
    )


def test_a_hopeless_reason_that_passes_is_forgotten(queued: Site, artifact: Artifact) -> None:
    job = looked_at(artifact)
    for reason in ("PartitionConfig", "PartitionConfig", "Priority", "PartitionConfig", "PartitionConfig"):
        queued.state("PENDING", reason)
        assert job.running()
    assert cancelled(queued) == []


def test_a_job_that_runs_is_never_given_up(queued: Site, artifact: Artifact) -> None:
    queued.state("RUNNING", "BadConstraints")
    job = looked_at(artifact)
    assert all(job.running() for _ in range(5))
    assert cancelled(queued) == []


def test_cancelling_returns_once_the_job_has_ended(queued: Site, artifact: Artifact) -> None:
    job = looked_at(artifact)
    job.cancel()
    assert cancelled(queued) == ["7"]
    assert not job.running()


def test_a_job_that_slurm_does_not_end_is_said_to_run_still(
    queued: Site, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_CANCEL_SECONDS", 0.5)
    queued.command("scancel", "exit 0")
    with pytest.raises(LaunchError, match=r"job 7: Slurm has not ended it .* it may still run: `scancel 7`"):
        looked_at(artifact).cancel()


def test_a_job_without_a_word_is_told_by_its_state_and_its_own_log(queued: Site, artifact: Artifact) -> None:
    (artifact.launch / "7_0_log.out").write_text("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT ... ***\n")
    queued.state("CANCELLED")
    job = looked_at(artifact)
    assert not job.running()
    assert job.last_words().startswith("arm reference: job 7 on n[1-2] was cancelled (state CANCELLED)")
    assert "*** JOB 7 ON n1 CANCELLED" in job.last_words()


def test_the_log_of_an_arm_of_several_is_in_the_first_ones_folder(queued: Site, tmp_path: Path) -> None:
    home = launching.prepared(tmp_path, launching.plan())
    twin = launching.prepared(tmp_path, launching.plan("twin-1"))
    (home.launch / "7_0_log.out").write_text("what the job said\n")
    queued.state("FAILED")
    job = SlurmJob(twin, home, "7", NAME, 0)
    assert not job.running()
    assert job.last_words().startswith("arm twin-1: job 7")
    assert "what the job said" in job.last_words()


ONE, OTHER = b"the image", b"THE IMAGE"


class Store:
    """An image file, and how often it was read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "train.sqsh"
        self.memory = folder / "results" / ".images.json"
        self.reads = 0
        self.put(ONE)
        self._read = image.file_digest
        monkeypatch.setattr(image, "file_digest", self._counted)

    def _counted(self, path: Path) -> str:
        self.reads += 1
        return self._read(path)

    def put(self, content: bytes, seconds: int = 1_000_000_000) -> None:
        """In place, last changed at that time."""
        self.file.write_bytes(content)
        os.utime(self.file, (seconds, seconds))

    def check(self, content: bytes = ONE) -> None:
        """As the image that has this content."""
        slurm.check_image(Image("train.sqsh", f"sha256:{hashlib.sha256(content).hexdigest()}", self.file), self.memory)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(tmp_path, monkeypatch)


def test_an_unchanged_file_is_read_once(store: Store) -> None:
    store.check()
    store.check()
    assert store.reads == 1


def test_a_file_of_the_same_size_and_another_time_is_read_again(store: Store) -> None:
    store.check()
    store.put(OTHER, 1_000_000_001)
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check()
    assert store.reads == 2


def test_a_file_put_in_its_place_is_read_again_whatever_its_time(store: Store) -> None:
    store.check()
    new = store.file.with_name("new")
    new.write_bytes(OTHER)
    os.utime(new, (1_000_000_000, 1_000_000_000))
    new.rename(store.file)
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check()


def test_a_file_of_another_size_is_read_again(store: Store) -> None:
    store.check()
    store.put(ONE * 2)
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check()


def test_a_wrong_digest_is_never_remembered_as_right(store: Store) -> None:
    for reads in (1, 2):
        with pytest.raises(ImageError, match="the file was replaced or damaged"):
            store.check(OTHER)
        assert store.reads == reads
    assert not store.memory.exists()


def test_another_digest_of_a_file_that_was_read_is_read_again(store: Store) -> None:
    store.check()
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check(OTHER)
    store.check()
    assert store.reads == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"%s": "right"}', b'{"%s": [9, 1]}'])
def test_a_damaged_memory_is_no_memory(store: Store, damage: bytes) -> None:
    store.check()
    store.memory.write_bytes(damage.replace(b"%s", bytes(store.file)))
    store.check()
    assert store.reads == 2
    store.check()
    assert store.reads == 2


def test_several_files_are_remembered_side_by_side(store: Store) -> None:
    first = store.file
    store.check()
    store.file = first.with_name("other.sqsh")
    store.put(OTHER)
    store.check(OTHER)
    store.check(OTHER)
    store.file = first
    store.check()
    assert store.reads == 2


def test_a_file_that_was_there_and_is_gone_is_refused(store: Store) -> None:
    store.check()
    store.file.unlink()
    with pytest.raises(ImageError, match="must be a file that this host can read"):
        store.check()


def test_an_image_of_a_registry_is_not_read_here(store: Store) -> None:
    slurm.check_image(Image("registry.example/nvidia/pytorch", f"sha256:{'ab' * 32}"), store.memory)
    assert (store.reads, store.memory.exists()) == (0, False)
