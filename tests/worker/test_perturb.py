"""Each variation of a stress run is in force inside the rank's process, and nothing of it is left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import builders
import launching
from samebits.fingerprint import conditions
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state, rank_command
from samebits.spec.command import Command
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe, Recipe
from samebits.spec.stressors import NAMES, Stressor
from samebits.worker.perturb import NICENESS

RANK = Path(__file__).parents[1].joinpath("stressed_rank.py")
NO_RANDOMIZE = 0x40000
CORES = sorted(os.sched_getaffinity(0))


def granted(call: str) -> bool:
    """Whether the kernel lets this user do it: containers often do not, not even to root."""
    code = f"from samebits.worker import perturb; perturb.{call}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0


def plan(*stress: Stressor, **changes: object) -> Plan:
    return dataclasses.replace(launching.plan("varied", **changes), stress=stress)


def started(results: Path, wanted: Plan, mode: str = "ok", **environment: str) -> tuple[Artifact, Any]:
    artifact = launching.prepared(results, wanted)
    process = launching.start_ranks(artifact, mode, environment={"PATH": os.environ["PATH"], **environment})
    _STARTED.append(process)
    return artifact, process


_STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _stressed_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launching, "STUB", RANK)
    yield
    while _STARTED:
        process = _STARTED.pop()
        process.kill()
        process.wait()


def seen(results: Path, *stress: Stressor, mode: str = "ok", **environment: str) -> list[dict[str, Any]]:
    """What each rank saw before it trained."""
    artifact, process = started(results, plan(*stress), mode, **environment)
    assert process.wait(timeout=60) == 0
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert outcome.ok, outcome.message
    return look(artifact)


def look(artifact: Artifact) -> list[dict[str, Any]]:
    return [json.loads((artifact.folder / f"seen-{rank}.json").read_text()) for rank in range(2)]


def notes(results: Path) -> list[conditions.Condition]:
    return conditions.read(results / "smoke" / "arms" / "varied")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Without any variation."""
    before, launching.STUB = launching.STUB, RANK
    try:
        results = tmp_path_factory.mktemp("usual")
        found = seen(results)
        assert notes(results) == []
    finally:
        launching.STUB = before
    return found


def test_without_variations_a_rank_is_started_as_ever(usual: list[dict[str, Any]]) -> None:
    assert rank_command.perturbation(plan(), Path("a"), "python") == []
    assert usual[0]["hash"] == usual[1]["hash"]
    assert usual[0]["environment"]["PYTHONHASHSEED"] == "0"
    assert [rank["children"] for rank in usual] == [[], []]


def test_hashes_of_text_differ_from_the_reference_and_from_rank_to_rank(
    usual: list[dict[str, Any]], tmp_path: Path
) -> None:
    hashes = [rank["hash"] for rank in seen(tmp_path, "hash-seed")]
    assert len({usual[0]["hash"], *hashes}) == 3
    assert [note.in_force for note in notes(tmp_path)] == [True, True]


def test_a_variation_is_the_same_in_every_run(tmp_path: Path) -> None:
    """So that a run made again tells something."""
    first, again = seen(tmp_path / "a", "hash-seed"), seen(tmp_path / "b", "hash-seed")
    assert [rank["hash"] for rank in first] == [rank["hash"] for rank in again]


@pytest.mark.skipif(not granted("flip_address_randomization()"), reason="this machine lets nobody switch ASLR")
def test_address_randomization_is_switched_over_and_malloc_lays_out_otherwise(
    usual: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = seen(tmp_path, "addresses")
    for before, after in zip(usual, found, strict=True):
        assert (before["personality"] ^ after["personality"]) & NO_RANDOMIZE
    paddings = [rank["environment"]["MALLOC_TOP_PAD_"] for rank in found]
    assert len(set(paddings)) == 2
    assert "MALLOC_TOP_PAD_" not in usual[0]["environment"]


@pytest.mark.skipif(not granted("rename_host('x')"), reason="this machine lets nobody rename the host in a namespace")
def test_a_rank_sees_another_host_name_and_nobody_else_does(usual: list[dict[str, Any]], tmp_path: Path) -> None:
    before = os.uname().nodename
    found = seen(tmp_path, "host-name")
    assert {rank["host"] for rank in found} == {f"stress-{before}"[:63]}
    assert {rank["environment"]["HOSTNAME"] for rank in found} == {f"stress-{before}"[:63]}
    assert usual[0]["host"] == os.uname().nodename == before


def test_busy_processes_are_beside_the_ranks_while_they_run_and_gone_after(tmp_path: Path) -> None:
    artifact, process = started(tmp_path, plan("contention"), "wait")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    busy = [pid for rank in look(artifact) for pid in rank["children"]]
    assert len(busy) == max(2, len(CORES))
    launching.wait_for(lambda: all(cpu_seconds(pid) > 0.02 for pid in busy))
    assert all(launching.alive(pid) for pid in busy)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, pid) - own for pid in busy} == {NICENESS}
    assert {core for pid in busy for core in os.sched_getaffinity(pid)} == set(CORES)
    (artifact.folder.parent / "go").touch()
    assert process.wait(timeout=60) == 0
    launching.wait_for(lambda: not any(map(launching.alive, busy)))
    assert (outcome := job_state.read_outcome(artifact)) is not None
    assert outcome.ok, outcome.message


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", ["kill", "raise", "cancel", "job"])
def test_busy_processes_end_however_the_arm_ends(how: str, tmp_path: Path) -> None:
    """A rank killed, a rank that fails, SIGTERM to the job, SIGKILL to the job."""
    artifact, process = started(tmp_path, plan("contention"), how if how in ("kill", "raise") else "hang")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    busy = [pid for rank in look(artifact) for pid in rank["children"]]
    assert busy
    if how == "cancel":
        process.send_signal(signal.SIGTERM)
    if how == "job":
        process.kill()
    process.wait(timeout=60)
    launching.wait_for(lambda: not any(map(launching.alive, busy)))


def test_a_question_for_stacks_does_not_end_a_busy_process(tmp_path: Path) -> None:
    artifact, process = started(tmp_path, plan("contention"), "hang")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    busy = [pid for rank in look(artifact) for pid in rank["children"]]
    before = {pid: cpu_seconds(pid) for pid in busy}
    for pid in busy:
        os.kill(pid, signal.SIGUSR1)
    launching.wait_for(lambda: all(cpu_seconds(pid) > before[pid] for pid in busy))
    assert all(map(launching.alive, busy))
    process.kill()
    process.wait()


def test_caches_are_new_and_empty_and_python_writes_none(usual: list[dict[str, Any]], tmp_path: Path) -> None:
    found = seen(tmp_path, "cold-caches")
    folders = [rank["environment"]["TRITON_CACHE_DIR"] for rank in found]
    assert len(set(folders)) == 2
    assert [rank["cached"] for rank in found] == [[], []]
    for name in ("TORCHINDUCTOR_CACHE_DIR", "PYTHONPYCACHEPREFIX"):
        assert all(rank["environment"][name].startswith(str(tmp_path)) for rank in found)
    assert [list(Path(folder).parent.rglob("*.pyc")) for folder in folders] == [[], []]
    assert "TRITON_CACHE_DIR" not in usual[0]["environment"]


def test_a_cache_that_the_recipe_names_stays(tmp_path: Path) -> None:
    named = {"environment": {"TRITON_CACHE_DIR": "/of/the/recipe"}}
    artifact, process = started(tmp_path, plan("cold-caches", determinism=named))
    assert process.wait(timeout=60) == 0
    variables = look(artifact)[0]["environment"]
    assert variables["TRITON_CACHE_DIR"] == "/of/the/recipe"
    assert variables["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_data_is_out_of_the_page_cache_or_the_rank_says_why_not(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.write_bytes(b"0" * 4096)
    for path, in_force in ((corpus, True), (tmp_path / "gone", False)):
        results = tmp_path / f"with-{path.name}"
        artifact = launching.prepared(results, plan("cold-caches", data=builders.tokens(path)))
        launching.start_ranks(artifact, "ok").wait(timeout=60)
        assert {note.in_force for note in notes(results)} == {in_force}


@pytest.mark.skipif(len(CORES) < 2, reason="one core has no other order")
def test_ranks_start_in_reverse_order_on_cores_of_their_own(usual: list[dict[str, Any]], tmp_path: Path) -> None:
    assert list(rank_command.starting_order(plan())) == [0, 1]
    assert list(rank_command.starting_order(plan("node-order"))) == [1, 0]
    found = seen(tmp_path, "node-order")
    assert found[0]["cores"] == CORES[::-1][0::2][::-1]
    assert found[1]["cores"] == CORES[::-1][1::2][::-1]
    assert found[1]["pid"] < found[0]["pid"]
    assert usual[0]["pid"] < usual[1]["pid"]
    assert [rank["cores"] for rank in usual] == [CORES, CORES]


def test_the_environment_is_larger_and_elsewhere(usual: list[dict[str, Any]], tmp_path: Path) -> None:
    found = seen(tmp_path, "batch-of-environment", TZ="UTC", LANG="C.UTF-8")
    more = [rank["environment"].keys() - usual[0]["environment"].keys() for rank in found]
    assert [len([name for name in names if name.startswith("STRESS_")]) for names in more] == [200, 201]
    assert {rank["environment"]["TZ"] for rank in found} == {"STR-14"}
    assert {rank["environment"]["LANG"] for rank in found} == {"POSIX"}


def test_a_stressed_rank_keeps_its_launcher_as_parent_and_everything_the_launcher_gave_it(tmp_path: Path) -> None:
    """It is stopped, watched and asked for stacks as every rank is."""
    artifact, process = started(tmp_path, plan(*NAMES), "ok")
    assert process.wait(timeout=60) == 0
    found = look(artifact)
    assert {rank["parent"] for rank in found} == {process.pid}
    own = {"RANK": "1", "WORLD_SIZE": "2", "SAMEBITS_LAUNCH": launching.LAUNCH, "MASTER_ADDR": "127.0.0.1"}
    assert {name: found[1]["environment"][name] for name in own} == own


def test_a_rank_that_fails_under_variations_is_named_as_ever(tmp_path: Path) -> None:
    artifact, process = started(tmp_path, plan(*NAMES), "raise")
    process.wait(timeout=60)
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert "rank 1" in outcome.message
    assert "ValueError: the loss is a teapot" in outcome.message


@pytest.mark.parametrize(("launcher", "in_force"), [("ours", True), ("torchrun", False)])
def test_a_line_that_starts_its_ranks_itself_keeps_their_order_and_all_cores(
    launcher: str, in_force: bool, tmp_path: Path
) -> None:
    command = Command(full="true", launcher=launcher)
    shared = {field.name: getattr(builders.recipe(), field.name) for field in dataclasses.fields(Recipe)}
    recipe = CommandRecipe(**{**shared, "workload": "command", "command": command})
    wanted = dataclasses.replace(plan("node-order", "contention"), recipe=recipe)
    (tmp_path / "plan.json").write_text(wanted.to_json())
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    words = [sys.executable, "-m", "samebits.worker.perturb", str(tmp_path), "true"]
    subprocess.run(words, env=environment, check=True, timeout=60)
    found = {note.stressor: note for note in conditions.read(tmp_path)}
    assert found["node-order"].in_force is (in_force and len(CORES) > 1)
    assert found["contention"].how.count(",") == len(CORES[:: 2 if in_force else 1]) - 1
    assert rank_command.nodes_reversed(wanted, 2) is in_force
    assert not rank_command.nodes_reversed(wanted, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a right away")
@pytest.mark.parametrize(
    ("each", "why"),
    [
        ("2", "another host name needs the right to make namespaces (Operation not permitted)"),
        ("1", "libraries find the network by the host name; set `interface` in the cluster file"),
    ],
)
def test_a_host_name_that_cannot_be_another_is_noted_with_the_reason(each: str, why: str) -> None:
    """each: ranks of a node; two ranks in all."""
    code = (
        "import os, sys; from pathlib import Path; from samebits.worker import perturb; "
        "os.setgid(65534); os.setuid(65534); perturb.main(Path(sys.argv[1]), ['true'])"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "plan.json").write_text(plan("host-name").to_json())
        environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": each}
        subprocess.run([sys.executable, "-c", code, name], env=environment, check=True, timeout=60)
        (found,) = conditions.read(folder)
    assert (found.in_force, found.how) == (False, why)


def test_ranks_are_run_by_the_launchers_own_python() -> None:
    assert rank_command.perturbation(plan("contention"), Path("/a"), sys.executable)[0] == sys.executable
