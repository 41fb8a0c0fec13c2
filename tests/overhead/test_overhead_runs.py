"""Real runs of real Megatron Core, timed: what is in force in each setting, and where a step's time goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import builders

pytestmark = pytest.mark.ranks


def overhead(folder: Path, *options: str, **changes: Any) -> dict[str, Any]:
    """The cost, of one block."""
    section = {"limit_percent": 50.0, "blocks": 1, "steps": 8, "warm_up": 3}
    path = builders.recipe_file(folder, gates=["overhead"], overhead=section, **changes)
    verb = [Path(sys.executable).with_name("samebits"), "overhead", path, "--results", folder / "results", "--json"]
    done = subprocess.run([*verb, *options], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    cost: dict[str, Any] = json.loads(done.stdout)
    assert (cost["problems"], cost["deviations"], cost["failures"]) == ([], [], [])
    return cost


def test_baseline_and_deterministic_differ_in_what_ranks_read_back(tmp_path: Path) -> None:
    cost = overhead(
        tmp_path,
        model={"layers": 1, "moe": builders.moe()},
        parallel={"expert": 2},
        determinism={"fill_uninitialized_memory": True},
    )
    baseline, deterministic = (setting["in_force"] for setting in cost["findings"]["settings"])
    assert baseline == {
        "NCCL_ALGO": "not set",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "not set",
        "CUBLAS_WORKSPACE_CONFIG": "not set",
        "deterministic_algorithms": "False",
        "fill_uninitialized_memory": "False",
        "deterministic_mode": "False",
        "cross_entropy_loss_fusion": "True",
    }
    assert deterministic == {
        "NCCL_ALGO": "Ring",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "deterministic_algorithms": "True",
        "fill_uninitialized_memory": "True",
        "deterministic_mode": "True",
        "cross_entropy_loss_fusion": "False",
    }
    (effect,) = cost["findings"]["effects"]
    assert [phase["phase"] for phase in effect["phases"]] == ["forward", "backward", "communication", "optimizer"]
    assert all(phase["reference"] > 0 for phase in effect["phases"])
    assert cost["findings"]["settings"][1]["end_states"] == 1
    assert [run["arm"] for run in cost["runs"]][:2] == ["rehearsal", "baseline-1"]
    assert not list(tmp_path.glob("results/smoke/overhead/*/checkpoints"))


def test_steps_that_are_stretched_are_seen_to_take_longer(tmp_path: Path) -> None:
    """Each by what that very step took, whatever else runs on this machine."""
    cost = overhead(tmp_path, "--null", "--slowdown", "300", parallel={"world": 1, "data": 1})
    (effect,) = cost["findings"]["effects"]
    spent = {phase["phase"]: phase["candidate"] for phase in effect["phases"]}
    assert spent["optimizer"] >= 3 * (spent["forward"] + spent["backward"] + spent["communication"]) > 0
    assert (effect["reference"], effect["candidate"]) == ("baseline", "again")


def test_what_capture_costs_is_measured_in_every_rung(tmp_path: Path) -> None:
    cost = overhead(tmp_path, "--capture", parallel={"world": 1, "data": 1})
    off, *rungs = [setting["bytes_a_step"] for setting in cost["findings"]["settings"]]
    assert off is None
    assert rungs[0] > 0
    assert rungs == sorted(set(rungs)), "metrics, state, boundary, op"
    shares = {
        effect["knob"]: {phase["phase"]: phase["candidate"] for phase in effect["phases"]}["capture"]
        for effect in cost["findings"]["effects"]
    }
    assert set(shares) == {"metrics", "state", "boundary", "op"}
    assert all(share > 0 for share in shares.values())
