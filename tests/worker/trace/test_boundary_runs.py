"""Rung boundary in real runs: the same bits twice, the same final state as with capture off, and every invariant."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import builders
import launching
from samebits.checks.check import check
from samebits.compare.collect import collect
from samebits.compare.compare import compare
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.reader import FingerprintFile, read
from samebits.fingerprint.records import Flag, Kind, Moment
from samebits.launch.run_arms import run_arms
from samebits.plan import arms
from samebits.spec.sections import Recipe

pytestmark = pytest.mark.ranks

SMALL = {"layers": 2, "hidden": 32, "heads": 4, "ffn_hidden": 64, "sequence_length": 16, "vocabulary": 128}
SHORT = {"steps": 2, "checkpoint": {"every": 2, "resume_from": 2}, "capture": {"rung": "boundary"}}
EXPERTS: dict[str, Any] = {
    **SHORT,
    "model": {**SMALL, "moe": builders.moe(ffn_hidden=32), "mtp": {"layers": 1, "loss_scaling": 0.1}},
    "parallel": {"expert": 2},
}
STAGES: dict[str, Any] = {
    **SHORT,
    "model": {**SMALL, "layers": 4, "normalization": "LayerNorm", "tied_embeddings": True},
    "parallel": {"world": 4, "tensor": 2, "sequence": True, "pipeline": 2, "data": 1},
    "data": {"global_batch": 8},
}


def run(recipe: Recipe, arm: str, results: Path) -> Artifact:
    plan = arms.plan(recipe, arm, results)
    artifact = Artifact(arms.artifact_folder(results, recipe.name, arm))
    echo, said = launching.echo()
    outcome = run_arms([(plan, artifact)], echo=echo)
    assert outcome.ok, f"{outcome.message}\n{said.getvalue()}"
    collect(artifact.folder)
    return artifact


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    results = tmp_path_factory.mktemp("experts")
    return {arm: run(builders.recipe(**EXPERTS), arm, results) for arm in ("reference", "twin-1", "bare")}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    results = tmp_path_factory.mktemp("stages")
    return {arm: run(builders.recipe(**STAGES), arm, results) for arm in ("reference", "bare")}


def kinds(file: FingerprintFile, step: int) -> Counter[str]:
    block = file.block(Moment.STEP, step)
    assert block is not None
    return Counter(file.sites[row["site"]].kind for row in file.records(block))


def names(file: FingerprintFile, kind: Kind) -> set[str]:
    return {f"{site.name} [{site.scope}]" if site.scope else site.name for site in file.sites if site.kind is kind}


def test_two_runs_have_the_same_bits_and_the_final_state_of_one_that_records_nothing(
    experts: dict[str, Artifact],
) -> None:
    twins = compare(experts["reference"], experts["twin-1"])
    assert (twins.verdict, twins.divergence) == ("pass", None)
    assert compare(experts["reference"], experts["bare"]).verdict == "pass"


def test_experts_gradients_and_the_optimizer_are_recorded_by_their_names(experts: dict[str, Artifact]) -> None:
    file = read(experts["reference"].fingerprint(0), deep=True)
    calls = names(file, Kind.CALL)
    assert {"dispatch [decoder.layers.0.mlp]", "combine [decoder.layers.1.mlp]", "optimizer.step"} <= calls
    assert names(file, Kind.LOCAL_GRADIENT) == names(file, Kind.GRADIENT) != set()
    counted = kinds(file, 2)
    assert counted[Kind.LOCAL_GRADIENT] == counted[Kind.GRADIENT]
    assert {"all_to_all_single [ranks 0-1]", "reduce_scatter_tensor [ranks 0-1]"} <= names(file, Kind.COLLECTIVE)
    assert "decoder.layers.0.self_attention.linear_qkv" in names(file, Kind.MODULE) & names(file, Kind.OUTPUT_GRADIENT)


def test_the_gradient_that_is_reduced_is_recorded_before_it_is(experts: dict[str, Artifact]) -> None:
    """Order on one rank: local gradient, then the collective, then the reduced gradient; and the two ranks' differ."""
    local = []
    for rank in range(2):
        file = read(experts["reference"].fingerprint(rank), deep=True)
        block = file.block(Moment.STEP, 1)
        assert block is not None
        order = [file.sites[row["site"]] for row in file.records(block)]
        places = {
            kind: [number for number, site in enumerate(order) if site.kind is kind]
            for kind in (Kind.LOCAL_GRADIENT, Kind.GRADIENT)
        }
        reduced = [number for number, site in enumerate(order) if site.name == "reduce_scatter_tensor"]
        assert places[Kind.LOCAL_GRADIENT][0] < min(reduced) <= max(reduced) < min(places[Kind.GRADIENT])
        rows = file.records(block)[places[Kind.LOCAL_GRADIENT]]
        local.append({file.sites[row["site"]].name: tuple(row["output"]) for row in rows})
    assert all(local[0][name] != local[1][name] for name in local[0] if name.endswith("layernorm.weight"))


def test_inputs_are_known_where_something_goes_in(experts: dict[str, Artifact]) -> None:
    file = read(experts["reference"].fingerprint(0), deep=True)
    block = file.block(Moment.STEP, 1)
    assert block is not None
    for row in file.records(block):
        site = file.sites[row["site"]]
        if site.kind in (Kind.COLLECTIVE, Kind.CALL):
            assert row["flags"] & Flag.INPUT, site
        if site.kind in (Kind.MODULE, Kind.LOCAL_GRADIENT, Kind.OUTPUT_GRADIENT):
            assert not row["flags"] & Flag.INPUT, site


def checked(artifact: Artifact) -> dict[str, int]:
    found = check(artifact)
    assert (found.verdict, found.problem) == ("pass", None), [str(one) for i in found.invariants for one in i.violated]
    return {invariant.name: invariant.checked for invariant in found.invariants}


def test_every_invariant_that_applies_to_replicas_with_experts_is_checked_and_holds(
    experts: dict[str, Artifact],
) -> None:
    counts = checked(experts["reference"])
    applicable = {"replicas", "all-reduce", "all-gather", "random-streams-apart", "samples"}
    assert {name for name, count in counts.items() if count} == applicable


def test_every_invariant_that_applies_to_tensor_ranks_and_stages_is_checked_and_holds(
    stages: dict[str, Artifact],
) -> None:
    counts = checked(stages["reference"])
    applicable = {
        *("tensor-replicas", "tied-embeddings", "all-reduce", "all-gather", "messages", "batches"),
        *("random-streams-equal", "random-streams-apart"),
    }
    assert {name for name, count in counts.items() if count} == applicable
    assert counts["messages"] == 2 * 2 * 2 * 4  # ways, tensor ranks, steps, micro-batches
    assert compare(stages["reference"], stages["bare"]).verdict == "pass"


AGAIN = {
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm"]},
    "none": {},
}
"""A whole layer by a checkpoint; a module by a checkpoint, and one whose output is thrown away once it was used. With
`mlp` beside these megatron-core 0.16.1 recurs without end, recorded or not."""


def alone(folder: Path, settings: dict[str, Any]) -> Artifact:
    """One rank, collected."""
    artifact = Artifact(folder)
    folder.mkdir()
    split = {"world": 1, "data": 1}
    plan = builders.plan("reference", **{**SHORT, "model": SMALL, "parallel": split, "data": {"global_batch": 4}})
    artifact.plan.write_text(dataclasses.replace(plan, keep_checkpoints=False).to_json(), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        **{"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)},
    }
    script = str(Path(__file__).parents[2].joinpath("recompute_rank.py"))
    command = [sys.executable, "-W", "ignore", script, str(artifact.plan), str(folder), json.dumps(settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    artifact.outcome.write_text('{"ok": true, "message": ""}\n', encoding="utf-8")
    collect(folder)
    return artifact


def test_megatrons_recomputation_gives_what_the_first_time_gave(tmp_path: Path) -> None:
    artifacts = {name: alone(tmp_path / name, settings) for name, settings in AGAIN.items()}
    finals = []
    for name, artifact in artifacts.items():
        file = read(artifact.fingerprint(0), deep=True)
        recomputed = {site.name for site in file.sites if site.kind is Kind.RECOMPUTE}
        assert ("decoder.layers.0.input_layernorm" in recomputed) == (name != "none")
        assert ("decoder.layers.1.self_attention.core_attention" in recomputed) == (name != "none")
        assert ("decoder.layers.0.self_attention.linear_qkv" in recomputed) == (name == "full")
        invariant = next(one for one in check(artifact).invariants if one.name == "recompute")
        assert (invariant.verdict, invariant.violations) == ("inconclusive" if name == "none" else "pass", 0)
        finals.append(next(block.digest for block in file.blocks if block.moment is Moment.FINAL))
    assert len(set(finals)) == 1
