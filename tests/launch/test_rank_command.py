"""What a rank is started with: its command, its environment, a copy of its sources; nothing of somebody's shell."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import builders
import commands
import samebits
from samebits.fingerprint import conditions
from samebits.fingerprint.paths import Artifact
from samebits.launch import rank_command, srun
from samebits.launch.srun import Meeting, Stage
from samebits.plan import arms
from samebits.spec.command import filled
from samebits.worker import jitter
from samebits.worker.inject import launch_line as start

SITE = Path(torch.__file__).parents[1]


"""Where torch, numpy and megatron are; its .pth files, which lead to this checkout, are not read."""


IMPORT_ALL = """
import importlib, pkgutil, sys
import samebits.worker
for module in pkgutil.walk_packages(samebits.worker.__path__, "samebits.worker."):
    if module.name.rpartition(".")[2] not in ("sitecustomize", "triton_kernel"):
        importlib.import_module(module.name)
print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "samebits"), sep="\\n")
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    rank_command.copy_sources(tmp_path / "launch" / "code")
    return tmp_path / "launch" / "code"


def in_a_rank(target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python as in an image that holds torch and megatron, but not samebits."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{target}{os.pathsep}{SITE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", "-W", "ignore", *arguments]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def test_all_that_a_rank_imports_is_in_the_copy(target: Path) -> None:
    done = in_a_rank(target, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    loaded = [Path(line) for line in done.stdout.splitlines()]
    assert target / "samebits" / "worker" / "main.py" in loaded
    assert target / "samebits" / "fingerprint" / "paths.py" in loaded
    assert all(path.is_relative_to(target) for path in loaded)


def test_a_rank_starts_from_the_copy_and_says_what_it_lacks(target: Path) -> None:
    done = in_a_rank(target, "-m", "samebits.worker.main", "/no/artifact")
    assert done.returncode == 1
    assert "RANK and SLURM_PROCID are not set" in done.stderr
    assert str(target / "samebits" / "worker" / "rendezvous.py") in done.stderr


def test_the_copy_is_what_the_arms_key_counts(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "_STARTING", ())
    digest = arms.sources_digest()
    monkeypatch.setattr(samebits, "__file__", str(target / "samebits" / "__init__.py"))
    assert arms.sources_digest() == digest
    source = target / "samebits" / "worker" / "main.py"
    source.write_text(source.read_text() + "\n")
    assert arms.sources_digest() != digest


def test_what_runs_on_the_host_alone_is_not_copied(target: Path) -> None:
    package = target / "samebits"
    assert sorted(path.name for path in package.iterdir() if path.is_dir()) == ["fingerprint", "spec", "worker"]
    assert not {"cli.py", "arms.py", "recipe.py"} & {path.name for path in package.iterdir()}
    assert not list(package.rglob("*.pyc"))


SHELL = {"PATH": "/home/me/bin", "HOME": "/home/me", "NCCL_ALGO": "Tree", "LD_PRELOAD": "x.so", "PYTHONSTARTUP": "s.py"}


JOB = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "SLURMD_NODENAME": "n1", "SRUN_DEBUG": "3"}


def test_srun_gets_the_jobs_own_variables_and_what_is_asked_for() -> None:
    assert rank_command.srun_environment({**SHELL, **JOB}, {"HOME": "/home/you"}) == {
        **JOB,
        "HOME": "/home/you",
        # As the cluster file's `setup` left it in the batch step.
        "PATH": "/home/me/bin",
    }


def test_what_is_asked_for_outside_wins_over_the_jobs_own() -> None:
    assert rank_command.srun_environment({"SLURM_CPU_BIND": "cores"}, {"SLURM_CPU_BIND": "none"}) == {
        "SLURM_CPU_BIND": "none"
    }


def test_only_what_finds_software_files_and_devices_is_taken_over() -> None:
    found = {"PATH": "/home/me/bin", "HOME": "/home/me", "LD_LIBRARY_PATH": "/opt/lib", "CUDA_VISIBLE_DEVICES": "1"}
    assert rank_command.inherited({**SHELL, **JOB, **found}) == found


def test_a_recipes_variables_come_before_those_that_are_filled_in() -> None:
    plan = builders.plan(launch={"threads": 5}, determinism={"environment": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}})
    own = rank_command.rank_environment(plan)
    assert (own["CUBLAS_WORKSPACE_CONFIG"], own["NCCL_ALGO"]) == (":16:8", "Ring")
    assert (own["OMP_NUM_THREADS"], own["MKL_NUM_THREADS"], own["PYTHONHASHSEED"]) == ("5", "5", "0")


def test_ranks_of_one_machine_meet_there() -> None:
    own = rank_command.local_rank_environment(1, 2, 4711, "launch")
    assert (own["RANK"], own["LOCAL_RANK"], own["WORLD_SIZE"], own["LOCAL_WORLD_SIZE"]) == ("1", "1", "2", "2")
    assert (own["MASTER_ADDR"], own["MASTER_PORT"], own["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "4711", "lo")
    assert own["SAMEBITS_LAUNCH"] == "launch"


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
    assert words[-4:] == ["python", "-m", "samebits.worker.inject.launch_line", "/a"]


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
    before, artifact = rank_command.list_restored(plan), Artifact(tmp_path / "resumed")
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
    jitter.DrawnAhead(0, tmp_path).on_start(SimpleNamespace(sampler=None))  # type: ignore[arg-type]
    assert [(note.stressor, note.in_force) for note in conditions.read(tmp_path)] == [("loader-threads", False)]


def test_whatever_builds_a_ranks_command_line_counts_in_the_arms_key() -> None:
    package, counted = Path(samebits.__file__).parent, set(arms._STARTING)
    assert all((package / name).is_file() for name in counted)
    tree = ast.parse((package / "launch" / "srun.py").read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "samebits.launch"]
    assert {f"launch/{name.name}.py" for node in froms for name in node.names} | {"launch/srun.py"} <= counted
