"""How a launch line of one's own is started: by whom, with what in its placeholders and its environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import commands
from samebits.fingerprint import conditions
from samebits.fingerprint.paths import Artifact
from samebits.launch import rank_command, srun
from samebits.launch.srun import Meeting, Stage
from samebits.spec.command import filled
from samebits.worker import unrest
from samebits.worker.inject import start


def stage(nodes: int, each: int) -> Stage:
    return Stage(
        nodes=nodes,
        ranks_per_node=each,
        cpus_per_rank=3,
        options=(),
        prefix=(),
        command=("python", *rank_command.entry(commands.recipe())),
        outside={},
        path="",
        interface=None,
        image=None,
        verify="first-node",
    )


MEETING = Meeting(address="node-1", port=29500, launch="x")


def test_torchrun_is_started_once_a_node_with_the_cores_of_its_ranks() -> None:
    plan = commands.plan(commands.recipe(world=8, command={"launcher": "torchrun"}))
    words = srun.ranks(stage(2, 4), Artifact(Path("/a")), plan, MEETING)
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=12"} <= set(words)
    assert words[-4:] == ["python", "-m", "samebits.worker.inject.start", "/a"]


def test_ranks_of_ours_are_started_one_by_one() -> None:
    words = srun.ranks(stage(2, 4), Artifact(Path("/a")), commands.plan(commands.recipe(world=8)), MEETING)
    assert {"--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=3"} <= set(words)


def test_placeholders_are_filled_in_and_stay_within_their_words() -> None:
    plan = commands.plan(commands.recipe(world=8), restore=Path("/with space/own"))
    variables = {"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node-1", "MASTER_PORT": "1", "SLURM_NODEID": "1"}
    values = start.values(Artifact(Path("/a b")), plan, variables)
    text = "x --load={checkpoint} {step} {stop} {nodes}.{node} {ranks_per_node}/{world} {master_address}:{master_port}"
    assert filled(f"{text} {{save}} '{{{{}}}} {{logs}}'", values) == [
        *("x", "--load=/with space/own", "2", "4", "2.1", "4/8", "node-1:1"),
        *("/a b/checkpoints/own", "{} /a b/logs/own"),
    ]


def test_a_launcher_of_its_own_sees_no_rank_and_the_recipes_path_stands_behind_ours() -> None:
    inherited = {**commands.environment(), "PATH": "/bin"}
    command = dataclasses.replace(
        commands.recipe().command, launcher="own", environment={"PYTHONPATH": "/theirs", "X": "1"}
    )
    found = start.environment(Artifact(Path("/a")), command, inherited)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(found)
    first, second, third = found["PYTHONPATH"].split(":")
    assert (Path(first) / "sitecustomize.py").is_file()
    assert (Path(second) / "samebits").is_dir()
    assert (third, found["X"], found["SAMEBITS_ARTIFACT"], found["PATH"].split(":")[0]) == (
        "/theirs",
        "1",
        "/a",
        "/bin",
    )


def test_the_restored_folder_must_be_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "step-2.pt").write_text("x")
    plan = dataclasses.replace(commands.plan(commands.recipe(), restore=tmp_path / "own"), keep_checkpoints=False)
    before, artifact = rank_command.listing(plan), Artifact(tmp_path / "resumed")
    artifact.own_checkpoints.mkdir(parents=True)
    assert rank_command.settle(artifact, plan, before) == ""
    assert not artifact.checkpoints.exists()
    (tmp_path / "own" / "latest").write_text("4")
    assert "wrote into" in rank_command.settle(artifact, plan, before)


def test_a_reference_that_saved_nothing_is_told(tmp_path: Path) -> None:
    artifact, plan = Artifact(tmp_path), commands.plan(commands.recipe())
    artifact.own_checkpoints.mkdir(parents=True)
    assert "left no checkpoint" in rank_command.settle(artifact, plan, ())
    (artifact.own_checkpoints / "step-2.pt").touch()
    assert rank_command.settle(artifact, plan, ()) == ""


def test_data_that_the_line_draws_by_itself_are_not_said_to_be_drawn_ahead(tmp_path: Path) -> None:
    unrest.DrawnAhead(0, tmp_path).on_start(SimpleNamespace(sampler=None))  # type: ignore[arg-type]
    assert [(note.stressor, note.in_force) for note in conditions.read(tmp_path)] == [("loader-threads", False)]
