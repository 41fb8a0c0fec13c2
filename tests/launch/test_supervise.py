"""A job's own process over stub ranks, on this machine and with a stand-in for srun."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

import batching
import launching
import timed
from batching import JOB, Site
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state, rank_command
from samebits.launch.job_state import ArmOutcome
from samebits.launch.supervise import Patience
from samebits.plan import overhead_runs
from samebits.recipe.image import Image
from samebits.spec.overhead import Timing
from samebits.spec.plan import Plan


def run(artifact: Artifact, mode: str, **options: object) -> ArmOutcome:
    process = launching.start_ranks(artifact, mode, **options)
    assert process.wait(timeout=120) == 0
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    return outcome


def test_an_arm_whose_ranks_all_end_well_is_ok(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    outcome = run(artifact, "ok")
    assert (outcome.ok, outcome.message, outcome.launch) == (True, "", launching.LAUNCH)
    assert sorted(rank for rank, _, _ in launching.starts(artifact)) == [0, 1]
    assert artifact.log(1).read_text() == "rank 1 starts\n"


def test_a_killed_rank_is_named_with_host_signal_log_and_way_out(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    outcome = run(artifact, "kill")
    first, *rest = outcome.message.splitlines()
    assert not outcome.ok
    assert first == f"arm reference: rank 1 on {os.uname().nodename} was killed by signal 9 (SIGKILL)"
    assert "    rank 1 starts" in rest
    assert str(artifact.log(1)) in outcome.message
    assert "start again" in rest[-1]


def test_a_python_exception_is_the_headline_and_peers_are_not_blamed(tmp_path: Path) -> None:
    outcome = run(launching.prepared(tmp_path, launching.plan()), "raise")
    first = outcome.message.splitlines()[0]
    assert first.endswith("ended with status 1: ValueError: the loss is a teapot")
    assert "rank 1" in first


def test_a_port_lost_here_is_tried_again_with_another(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    assert run(artifact, "port").ok
    assert len(launching.starts(artifact)) == 4


def test_ranks_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    process = launching.start_ranks(artifact, "hang")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    assert job_state.runner(artifact) == process.pid
    process.kill()
    process.wait()
    launching.wait_for(lambda: not any(launching.alive(pid) for _, pid, _ in launching.starts(artifact)))
    assert job_state.runner(artifact) is None


def test_helpers_of_a_rank_end_with_it(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    assert run(artifact, "helper").ok
    helpers = [int((artifact.folder / f"helper-{rank}").read_text()) for rank in range(2)]
    launching.wait_for(lambda: not any(launching.alive(pid) for pid in helpers))


def test_sigterm_cancels_the_arm_and_says_so(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    process = launching.start_ranks(artifact, "hang")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert "was cancelled (SIGTERM)" in outcome.message


def test_a_second_runner_of_the_same_start_runs_nothing(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    first = launching.start_ranks(artifact, "slow")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    second = launching.start_ranks(artifact, "slow")
    assert first.wait(timeout=60) == 0
    assert second.wait(timeout=60) == 0
    assert len(launching.starts(artifact)) == 2


def test_a_rank_gets_the_recipes_environment_and_nothing_from_the_users_shell(tmp_path: Path) -> None:
    artifact = launching.prepared(
        tmp_path, launching.plan(determinism={"environment": {"NCCL_PROTO": "Simple"}}, launch={"threads": 3})
    )
    surroundings = rank_command.inherited(
        {"PATH": os.environ["PATH"], "NCCL_ALGO": "Tree", "LD_PRELOAD": "x", "OMP_NUM_THREADS": "64", "HOME": "/h"}
    )
    assert run(artifact, "environment", environment=surroundings).ok
    seen = json.loads((artifact.folder / "environment-1.json").read_text())
    wanted = {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "PYTHONHASHSEED": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "SAMEBITS_LAUNCH": launching.LAUNCH,
        "HOME": "/h",
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert "LD_PRELOAD" not in seen
    assert not any(name.startswith("SUBMITIT") for name in seen)


HANG_MINUTES = 0.1


"""6 seconds, of a clock that the tests set."""


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def patience(progress: Path, **launch: object) -> Patience:
    return Patience(launching.plan(launch={"hang_minutes": HANG_MINUTES, **launch}).recipe, progress)


def test_an_arm_that_moves_is_given_its_time(tmp_path: Path, clock: Time) -> None:
    progress = tmp_path / "progress"
    watched = patience(progress)
    for step in range(8):
        with progress.open("a") as stream:
            stream.write(f"{step} 1 8 0.0\n")
        assert watched.exceeded() is None
        clock.now += 5


def test_an_arm_that_ends_no_step_hangs(tmp_path: Path, clock: Time) -> None:
    progress = tmp_path / "progress"
    progress.write_text("0 1 8 0.0\n")
    watched = patience(progress)
    assert watched.exceeded() is None
    clock.now += 5
    assert watched.exceeded() is None
    clock.now += 2
    assert watched.exceeded() == "hang"


def test_an_arm_that_never_began_hangs_too(tmp_path: Path, clock: Time) -> None:
    watched = patience(tmp_path / "absent")
    clock.now += 5
    assert watched.exceeded() is None
    clock.now += 2
    assert watched.exceeded() == "hang"


def test_the_time_limit_counts_whatever_moves(tmp_path: Path, clock: Time) -> None:
    progress = tmp_path / "progress"
    watched = patience(progress, time_minutes=0)
    progress.write_text("0 1 8 0.0\n")
    clock.now += 1
    assert watched.exceeded() == "time"


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, str]:
    """An arm whose rank 1 stands still while rank 0 waits for it, and what was said of it."""
    wanted = launching.plan(launch={"hang_minutes": 0.1})
    artifact = launching.prepared(tmp_path_factory.mktemp("stuck"), wanted)
    process = launching.start_ranks(artifact, "stuck")
    try:
        assert process.wait(timeout=60) == 0
    finally:
        process.terminate()
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert not outcome.ok
    return artifact, outcome.message


def test_the_rank_that_the_others_wait_for_is_named(stuck: tuple[Artifact, str]) -> None:
    assert stuck[1].startswith(
        "arm reference: no step for 0.1 minutes (launch.hang_minutes), ended: rank 1 does not wait for the others\n"
    )


def test_the_stacks_are_grouped_and_all_of_them_are_in_the_logs(stuck: tuple[Artifact, str]) -> None:
    artifact, message = stuck
    shown = [line for line in message.splitlines() if line.startswith("  ranks ")]
    assert [line.split(" stand at ")[0] for line in shown] == ["  ranks 0", "  ranks 1"]
    assert "in all_reduce" in shown[0]
    assert "in stand_still" in shown[1]
    assert f"All stacks are in {artifact.log(0).parent}." in message
    assert "in all_reduce" in artifact.log(0).read_text()


def test_the_log_of_the_rank_to_blame_is_quoted_with_the_way_out(stuck: tuple[Artifact, str]) -> None:
    artifact, message = stuck
    assert f"  last lines of {artifact.log(1)}:" in message
    assert "raise launch.hang_minutes where a step really takes so long, then start again" in message


def test_no_rank_of_an_arm_that_hangs_is_left(stuck: tuple[Artifact, str]) -> None:
    assert len(launching.starts(stuck[0])) == 2
    assert not any(launching.alive(pid) for _, pid, _ in launching.starts(stuck[0]))


AGAIN = {"SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def outcome(artifact: Artifact) -> ArmOutcome:
    found = job_state.read_outcome(artifact)
    assert found is not None
    return found


def launches(artifact: Artifact) -> list[str]:
    """Of every rank process that ever started."""
    return [launch for _, _, launch in launching.starts(artifact)]


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restored(results: Path, arm: str = "resumed") -> Plan:
    """An arm that starts from the reference's checkpoint of step 2."""
    checkpoint = Artifact(results / "smoke" / "arms" / "reference").checkpoint(2)
    return dataclasses.replace(launching.plan(arm), first_step=3, restore=str(checkpoint))


def assert_no_rank_lives(artifact: Artifact) -> None:
    assert not any(launching.alive(pid) for _, pid, _ in launching.starts(artifact))


def test_an_arm_whose_ranks_all_end_well_is_ok_and_names_its_nodes(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    said = site.run([(artifact, launch)])

    ended = outcome(artifact)
    assert (ended.ok, ended.message, ended.launch, ended.nodes) == (True, "", JOB, ("n1", "n2"))
    assert ended.seconds > 0
    assert sorted(rank for rank, _, _ in launching.starts(artifact)) == [0, 1]
    assert artifact.log(1).read_text() == "rank 1 starts\n"
    assert said.splitlines()[-1] == f"{artifact.folder}: done"
    assert job_state.runner(artifact) is None


def test_ranks_get_what_the_recipe_asks_for_and_nothing_from_the_jobs_shell(site: Site, tmp_path: Path) -> None:
    wanted = launching.plan(launch={"threads": 3})
    artifact, launch = batching.arm(tmp_path, wanted, "environment")
    stage = site.stage(interface="ib0", path="/shared/site")
    site.run([(artifact, launch)], stage, NCCL_ALGO="Tree", LD_PRELOAD="", SECRET="x")

    seen = json.loads((artifact.folder / "environment-1.json").read_text())
    wanted = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "3",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "n1",
        "NCCL_SOCKET_IFNAME": "ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
        "PYTHONPATH": f"{artifact.launch / 'code'}:/shared/site",
        "SAMEBITS_LAUNCH": JOB,
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "7",
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert not {"SECRET", "LD_PRELOAD", "RANK"} & seen.keys()


def test_a_job_that_begins_again_sets_aside_what_was_there_and_runs_under_another_id(
    site: Site, tmp_path: Path
) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    batching.left_behind(artifact, launch)
    said = site.run([(artifact, launch)], **AGAIN)

    aside = Artifact(tmp_path / "smoke" / "superseded" / "reference")
    assert aside.fingerprint(1).read_bytes() == b"of the earlier start"
    assert outcome(aside).launch == JOB
    assert aside.plan.read_bytes() == artifact.plan.read_bytes()
    assert artifact.fingerprint(1).read_bytes() == b"stub"
    record = job_state.read_record(artifact)
    assert record is not None
    assert (outcome(artifact).ok, outcome(artifact).launch, record.launch) == (True, f"{JOB}.1", f"{JOB}.1")
    assert launches(artifact) == [f"{JOB}.1"] * 2
    assert f"start 2 of this job; what was there is in {aside.folder}" in said


def test_a_third_start_follows_a_second_one_that_ended_anywhere(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    batching.left_behind(artifact, launch)
    assert job_state.renew(artifact, f"{JOB}.1")
    site.run([(artifact, launch)], SLURM_RESTART_COUNT="2")

    assert outcome(artifact).launch == f"{JOB}.2"
    assert launches(artifact) == [f"{JOB}.2"] * 2


def test_a_job_whose_arms_had_all_finished_runs_nothing_when_slurm_starts_it_again(site: Site, tmp_path: Path) -> None:
    starts = [batching.arm(tmp_path, launching.plan(name), launch=f"{JOB}-{name}") for name in ("reference", "twin-1")]
    for artifact, launch in starts:
        batching.left_behind(artifact, launch, ok=True)
    before = content(tmp_path / "smoke")
    said = site.run(starts, **AGAIN)

    assert said == "every arm of this job had finished; nothing is run\n"
    assert content(tmp_path / "smoke") == before


def test_all_arms_of_a_job_begin_again_where_one_had_not_finished(site: Site, tmp_path: Path) -> None:
    starts = [batching.arm(tmp_path, launching.plan(name), launch=f"{JOB}-{name}") for name in ("reference", "twin-1")]
    batching.left_behind(*starts[0], ok=True)
    site.run(starts, **AGAIN)

    assert [launches(artifact) for artifact, _ in starts] == [[f"{launch}.1"] * 2 for _, launch in starts]
    assert [outcome(artifact).launch for artifact, _ in starts] == [f"{launch}.1" for _, launch in starts]


@pytest.mark.parametrize(("before", "after"), [(f"{JOB}-0", f"{JOB}-0.1"), ("another-0", "another-0"), (None, None)])
def test_an_arm_that_begins_again_starts_from_the_new_checkpoint_of_its_own_job(
    site: Site, tmp_path: Path, before: str | None, after: str | None
) -> None:
    starts = [
        batching.arm(tmp_path, launching.plan(), launch=f"{JOB}-0"),
        batching.arm(tmp_path, restored(tmp_path), launch=f"{JOB}-1", restored=before),
    ]
    site.run(starts, **AGAIN)

    record = job_state.read_record(starts[1][0])
    assert record is not None
    assert (record.launch, record.restored) == (f"{JOB}-1.1", after)
    assert outcome(starts[1][0]).ok


@pytest.mark.parametrize("again", [{}, AGAIN])
def test_a_folder_that_was_given_to_another_start_is_passed_over_and_left_as_it_is(
    site: Site, tmp_path: Path, again: dict[str, str]
) -> None:
    taken, _ = batching.arm(tmp_path, launching.plan(), launch="another")
    batching.left_behind(taken, "another")
    taken.outcome.unlink()
    mine = batching.arm(tmp_path, launching.plan("twin-1"), launch=f"{JOB}-1")
    before = content(taken.folder)
    said = site.run([(taken, f"{JOB}-0"), mine], **again)

    assert f"start {f'{JOB}-0.1' if again else f'{JOB}-0'}: was given up for another start; nothing" in said
    assert {path: text for path, text in content(taken.folder).items() if path.name != "lock"} == before
    assert not (tmp_path / "smoke" / "superseded" / "reference").exists()
    assert outcome(mine[0]).ok


def test_a_start_that_has_ended_is_not_run_a_second_time(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    batching.left_behind(artifact, launch)
    assert "has ended before; nothing is run" in site.run([(artifact, launch)])
    assert launches(artifact) == []


def test_an_arm_whose_folder_is_gone_is_passed_over(site: Site, tmp_path: Path) -> None:
    mine = batching.arm(tmp_path, launching.plan("twin-1"), launch=f"{JOB}-1")
    gone = Artifact(mine[0].folder.with_name("reference"))
    assert f"start {JOB}-0.1: " in site.run([(gone, f"{JOB}-0"), mine], **AGAIN)
    assert not gone.folder.exists()
    assert outcome(mine[0]).ok


@pytest.mark.parametrize("verify", ["every-node", "first-node"])
def test_an_image_that_is_not_the_pinned_one_fails_every_arm_before_any_rank_starts(
    site: Site, tmp_path: Path, verify: str
) -> None:
    file = tmp_path / "train.sqsh"
    file.write_bytes(b"another image")
    starts = [batching.arm(tmp_path, launching.plan(name), launch=f"{JOB}-{name}") for name in ("reference", "twin-1")]
    image = Image("train.sqsh", f"sha256:{'ab' * 32}", file)
    site.run(starts, site.stage(image=image, verify=verify))

    for artifact, launch in starts:
        ended = outcome(artifact)
        assert (ended.ok, ended.launch) == (False, launch)
        assert "job 7: the image train.sqsh was refused; no step counts" in ended.message
        assert f"must have the digest {image.digest}" in ended.message
        assert launches(artifact) == []
    assert [step["options"]["ntasks"] for step in site.steps()] == (["2", "2"] if verify == "every-node" else [])


def test_the_pinned_image_is_read_on_every_node_before_and_after_and_named_to_the_ranks(
    site: Site, tmp_path: Path
) -> None:
    file = tmp_path / "train.sqsh"
    file.write_bytes(b"the image")
    image = Image("train.sqsh", f"sha256:{hashlib.sha256(b'the image').hexdigest()}", file)
    artifact, launch = batching.arm(tmp_path, launching.plan(), "environment")
    site.run([(artifact, launch)], site.stage(image=image))

    assert outcome(artifact).ok
    check, ranks, after = site.steps()
    assert check == after
    assert check["command"][1:] == ["-m", "samebits.recipe.image", str(file), image.digest]
    assert (check["options"]["ntasks"], ranks["options"]["ntasks"]) == ("2", "2")
    assert json.loads((artifact.folder / "environment-0.json").read_text())["SAMEBITS_IMAGE"] == image.digest


@pytest.mark.parametrize(
    ("signum", "words"),
    [
        (signal.SIGTERM, "was cancelled or preempted (SIGTERM)"),
        (signal.SIGINT, "was cancelled or preempted (SIGINT)"),
        (signal.SIGUSR2, "Slurm's time limit is near (SIGUSR2), ended; raise launch.time_minutes"),
    ],
)
def test_a_signal_ends_the_ranks_and_every_arm_that_is_left_says_why(
    site: Site, tmp_path: Path, signum: signal.Signals, words: str
) -> None:
    first = batching.arm(tmp_path, launching.plan(), "hang", launch=f"{JOB}-0")
    second = batching.arm(tmp_path, launching.plan("twin-1"), launch=f"{JOB}-1")
    batch = site.start([first, second])
    launching.wait_for(lambda: len(launches(first[0])) == 2)
    batch.process.send_signal(signum)
    batch.end()

    assert outcome(first[0]).message.startswith(f"arm reference: job 7: {words}")
    assert outcome(second[0]).message.startswith(f"arm twin-1: job 7: {words}")
    assert launches(second[0]) == []
    assert_no_rank_lives(first[0])


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "REQUEUED"])
def test_while_slurm_ends_the_job_it_is_not_said_how_an_arm_ended(site: Site, tmp_path: Path, state: str) -> None:
    first = batching.arm(tmp_path, launching.plan(), "silent", launch=f"{JOB}-0")
    second = batching.arm(tmp_path, launching.plan("twin-1"), launch=f"{JOB}-1")
    site.state(state)
    said = site.run([first, second])

    assert "Slurm ends this job" in said
    assert "left no rank-00000.fp" in said
    assert job_state.read_outcome(first[0]) is None
    assert job_state.read_outcome(second[0]) is None
    assert launches(second[0]) == []


def test_an_arm_that_ended_well_says_so_whatever_slurm_does_with_the_job(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    site.state("COMPLETING")
    site.run([(artifact, launch)])
    assert outcome(artifact).ok


def test_a_failed_arm_says_so_where_slurm_does_not_answer(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan(), "silent")
    site.no_answer()
    site.run([(artifact, launch)])
    assert "left no rank-00000.fp" in outcome(artifact).message


def test_without_an_answer_about_host_names_an_arm_is_as_good_and_names_no_nodes(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    site.command("scontrol", "exit 1")
    site.run([(artifact, launch)])
    assert (outcome(artifact).ok, outcome(artifact).nodes) == (True, ())


def test_where_a_run_of_an_experiment_fails_those_behind_it_are_not_made(site: Site, tmp_path: Path) -> None:
    """Other arms stand by themselves; half an experiment is none."""
    timing = Timing(experiment="overhead", setting="baseline", block=1, position=1, blocks=1, warm_up=1)
    plans = [dataclasses.replace(launching.plan(f"baseline-{number}"), timing=timing) for number in (1, 2)]
    starts = [
        batching.arm(tmp_path, plan, mode, launch=f"{JOB}-{number}")
        for number, (plan, mode) in enumerate(zip(plans, ("raise", "ok"), strict=True))
    ]
    said = site.run(starts)

    assert not outcome(starts[0][0]).ok
    assert launches(starts[1][0]) == []
    assert said.splitlines()[-1] == "its experiment needs all its runs; those behind it are not made"


def test_each_run_of_a_job_is_started_with_what_its_own_plan_asks_for(site: Site, tmp_path: Path) -> None:
    baseline, deterministic = overhead_runs.plans(timed.recipe(blocks=1), "overhead")[1:3]
    starts = [
        batching.arm(tmp_path, plan, "environment", launch=f"{JOB}-{number}")
        for number, plan in enumerate((baseline, deterministic))
    ]
    site.run(starts)
    seen = [json.loads((artifact.folder / "environment-1.json").read_text()) for artifact, _ in starts]
    assert [environment.get("NCCL_ALGO") for environment in seen] == [None, "Ring"]


DEAF = 'trap "" TERM; echo "$SLURM_PROCID $$ deaf 0" >> "$0/starts"; exec sleep 30'


def failed(site: Site, results: Path, mode: str, **recipe: object) -> tuple[Artifact, str]:
    """The artifact and the message of an arm that fails."""
    artifact, launch = batching.arm(results, launching.plan(**recipe), mode)
    site.run([(artifact, launch)])
    ended = outcome(artifact)
    assert not ended.ok
    assert ended.nodes == ("n1", "n2")
    return artifact, ended.message


def test_a_rank_that_ends_with_status_0_and_no_file_is_a_failure(site: Site, tmp_path: Path) -> None:
    _, message = failed(site, tmp_path, "silent")
    assert message.startswith("arm reference: rank 0 on job 7 ended with status 0, but left no rank-00000.fp")


def test_a_killed_rank_is_named_with_its_node_and_its_peer_is_not_blamed(site: Site, tmp_path: Path) -> None:
    artifact, message = failed(site, tmp_path, "kill")
    assert message.startswith("arm reference: rank 1 on n2 (job 7) was killed by signal 9 (SIGKILL)")
    assert "ConnectionError: peer went away" in artifact.log(0).read_text()


def test_a_rank_that_raises_is_quoted(site: Site, tmp_path: Path) -> None:
    _, message = failed(site, tmp_path, "raise")
    assert "rank 1 on n2 (job 7) ended with status 1: ValueError: the loss is a teapot" in message


def test_a_command_that_is_not_on_the_nodes_is_named(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    site.run([(artifact, launch)], site.stage(prefix=("no-such-engine", "exec")))
    assert "rank 0 on n1 (job 7) ended with status 2" in outcome(artifact).message


def test_a_step_that_srun_cannot_make_is_told_in_its_words(site: Site, tmp_path: Path) -> None:
    site.command("srun", "echo 'srun: error: Unable to create step for job 7: Invalid generic resource' >&2; exit 1")
    _, message = failed(site, tmp_path, "ok")
    assert message.startswith("arm reference: job 7 could not run its ranks (srun: status 1)")
    assert "Invalid generic resource" in message


def test_a_port_lost_to_somebody_else_is_tried_again_with_another(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan(), "port")
    artifact.progress.write_text("0 1 4 0.0\n")  # the first try's
    site.run([(artifact, launch)])

    assert outcome(artifact).ok
    lines = [line.split() for line in (artifact.folder / "starts").read_text().splitlines()]
    assert sorted(rank for rank, *_ in lines) == ["0", "0", "1", "1"]
    assert len({port for *_, port in lines}) == 2
    assert [line.split()[0] for line in artifact.progress.read_text().splitlines()] == ["0", "1", "2", "3", "4"]


def test_a_port_that_is_taken_again_and_again_is_a_failure_after_three_tries(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    stage = site.stage(command=("sh", "-c", "echo EADDRINUSE; exit 1"))
    site.run([(artifact, launch)], stage)
    assert "ended with status 1: EADDRINUSE" in outcome(artifact).message
    assert len(site.steps()) == 3


def test_arms_of_one_job_run_one_after_the_other_and_go_on_after_one_that_failed(site: Site, tmp_path: Path) -> None:
    modes = {"reference": "ok", "twin-1": "silent", "twin-2": "ok"}
    starts = [
        batching.arm(tmp_path, launching.plan(name), mode, launch=f"{JOB}-{number}")
        for number, (name, mode) in enumerate(modes.items())
    ]
    site.run(starts)

    assert [outcome(artifact).ok for artifact, _ in starts] == [True, False, True]
    assert [outcome(artifact).launch for artifact, _ in starts] == [f"{JOB}-{number}" for number in range(3)]
    assert [step["command"][-1] for step in site.steps()] == [str(artifact.folder) for artifact, _ in starts]
    ends = [artifact.outcome.stat().st_mtime_ns for artifact, _ in starts]
    begins = [(artifact.launch / "srun.log").stat().st_ctime_ns for artifact, _ in starts]
    assert ends == sorted(ends)
    assert begins[1] > ends[0]


def test_an_arm_starts_from_the_checkpoint_that_the_one_before_it_wrote(site: Site, tmp_path: Path) -> None:
    starts = [batching.arm(tmp_path, launching.plan(), launch=f"{JOB}-0")]
    starts.append(batching.arm(tmp_path, restored(tmp_path), launch=f"{JOB}-1", restored=f"{JOB}-0"))
    site.run(starts)
    assert [outcome(artifact).ok for artifact, _ in starts] == [True, True]


def test_an_arm_whose_checkpoint_was_not_written_says_so_and_starts_no_rank(site: Site, tmp_path: Path) -> None:
    without = dataclasses.replace(launching.plan(), keep_checkpoints=False)
    first = batching.arm(tmp_path, without, "silent", launch=f"{JOB}-0")
    second = batching.arm(tmp_path, restored(tmp_path), launch=f"{JOB}-1", restored=f"{JOB}-0")
    third = batching.arm(tmp_path, launching.plan("bare"), launch=f"{JOB}-2")
    site.run([first, second, third])

    checkpoint = first[0].checkpoint(2)
    assert outcome(second[0]).message == (
        f"arm resumed: starts from {checkpoint}, which the arm before it did not write"
    )
    assert launches(second[0]) == []
    assert outcome(third[0]).ok


def test_ranks_that_do_not_heed_sigterm_are_killed_with_their_step_alone(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    batch = site.start([(artifact, launch)], site.stage(command=("sh", "-c", DEAF)))
    launching.wait_for(lambda: len(launches(artifact)) == 2)
    batch.process.terminate()
    batch.end()

    assert (site.bin / "scancel.log").read_text() == "--signal=KILL 7\n"
    assert "was cancelled or preempted (SIGTERM)" in outcome(artifact).message
    assert_no_rank_lives(artifact)


def test_the_time_limit_ends_the_ranks_and_says_how_far_they_came(site: Site, tmp_path: Path) -> None:
    artifact, message = failed(site, tmp_path, "hang", launch={"time_minutes": 0})
    assert message.startswith("arm reference: not finished after 0 minutes (launch.time_minutes), ended")
    assert "Last recorded: ranks 0-1 no step" in message
    assert_no_rank_lives(artifact)


def test_the_rank_that_the_others_wait_for_is_named_with_its_stack(site: Site, tmp_path: Path) -> None:
    artifact, message = failed(site, tmp_path, "stuck", launch={"hang_minutes": 0.1})
    assert message.startswith(
        "arm reference: no step for 0.1 minutes (launch.hang_minutes), ended: rank 1 does not wait for the others"
    )
    assert "in stand_still" in message
    assert "in all_reduce" in message
    assert "Last recorded: ranks 0-1 no step" in message
    assert_no_rank_lives(artifact)


def test_while_ranks_run_the_job_is_the_arms_runner_and_leaves_with_it(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan(), "wait")
    batch = site.start([(artifact, launch)])
    launching.wait_for(lambda: len(launches(artifact)) == 2)
    assert job_state.runner(artifact) == batch.process.pid
    (artifact.folder.parent / "go").touch()
    batch.end()
    assert job_state.runner(artifact) is None


def test_what_setup_puts_on_path_is_found_by_the_step(site: Site, tmp_path: Path) -> None:
    """`setup: [module load apptainer]` changes the batch script's PATH."""
    engine = tmp_path / "modules" / "engine"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\nexec "$@"\n')
    engine.chmod(0o755)
    artifact, launch = batching.arm(tmp_path, launching.plan())
    site.run([(artifact, launch)], site.stage(prefix=("engine",)), PATH=f"{engine.parent}:{site.path()}")
    assert outcome(artifact).ok, outcome(artifact).message


def test_an_arm_whose_plan_is_damaged_does_not_take_the_others_with_it(site: Site, tmp_path: Path) -> None:
    starts = [batching.arm(tmp_path, launching.plan(arm), launch=f"{JOB}-{arm}") for arm in ("reference", "twin-1")]
    starts[0][0].plan.write_text("{")
    site.run(starts)
    assert "plan: not JSON" in outcome(starts[0][0]).message
    assert outcome(starts[1][0]).ok


def test_a_missing_srun_is_one_message(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    (tmp_path / "nothing").mkdir()
    site.run([(artifact, launch)], PATH=str(tmp_path / "nothing"))
    assert "No such file or directory: 'srun'" in outcome(artifact).message
