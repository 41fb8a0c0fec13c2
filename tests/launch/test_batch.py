"""What a job does on its first node, over stub ranks and a stand-in for srun: every arm ends in one word of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal
from pathlib import Path

import pytest

import batching
import launching
import timed
from batching import JOB, Site
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.job_state import Outcome
from samebits.plan import overhead_runs
from samebits.recipe.image import Image
from samebits.spec.overhead import Timing
from samebits.spec.plan import Plan

AGAIN = {"SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def outcome(artifact: Artifact) -> Outcome:
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
