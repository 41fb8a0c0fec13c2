"""What sbatch is asked for, and finding a job again. The commands are stand-ins; tests/slurm asks the real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import clusters
import launching
from batching import Site
from samebits.fingerprint.paths import Artifact
from samebits.launch import allocation
from samebits.launch.job_state import JobRecord, LaunchError, now
from samebits.launch.slurm import SlurmExecutor
from samebits.launch.start import Request, Start
from samebits.plan import arms

LAUNCH = "0123456789abcdef0123"
NAME = f"smoke-reference-{LAUNCH[:12]}"
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


def request_of(results: Path, *names: str, off: tuple[str, ...] = ()) -> Request:
    starts = [
        Start(plan=launching.plan(name), artifact=launching.prepared(results, launching.plan(name)), launch=LAUNCH)
        for name in names
    ]
    return Request(starts=tuple(starts), off=off)


def submit(executor: SlurmExecutor, request: Request) -> tuple[str, str]:
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
        line for line in executor.script(request).splitlines() if line.startswith("#SBATCH")
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
    name = allocation.job_name(Artifact(arms.artifact_folder(tmp_path, "smoke", "twin-1")), LAUNCH)
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
