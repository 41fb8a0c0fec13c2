"""`samebits stress` with real ranks of the built-in workload: nothing matters to it, and what does is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import builders
import launching
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact
from samebits.spec.questions import Fault
from samebits.stress import run as stressing
from samebits.stress.results import Stress

pytestmark = pytest.mark.ranks

CORPUS = Path(__file__).parents[2] / "data" / "tiny-corpus.txt"
TINY = {
    "model": {"layers": 2, "hidden": 32, "heads": 4, "ffn_hidden": 64, "sequence_length": 16},
    "steps": 4,
    "checkpoint": {"every": 2, "resume_from": 2},
    "data": builders.tokens(
        CORPUS,
        sha256="2cd002a442a469c09586d3a6b6fca1b68cf049479b7b4b914327f31640b56e64",
        micro_batch=4,
        global_batch=16,
    ),
}


def stress(folder: Path, only: tuple[str, ...] = (), fault: Fault | None = None) -> Stress:
    echo, said = launching.echo()
    recipe = builders.recipe_file(folder, **TINY)
    try:
        return stressing.stressed(recipe, folder / "results", echo=echo, only=only, fault=fault)
    finally:
        print(said.getvalue())


def test_no_variation_changes_what_the_built_in_workload_computes(tmp_path: Path) -> None:
    found = stress(tmp_path)
    assert found.verdict == "pass", found.headline
    assert {row.name: row.effect for row in found.variations if row.effect != "same"} == {}
    home = tmp_path / "results" / "smoke"
    manifests = [read_manifest(Artifact(home / name)) for name in ("arms/reference", "stress/stress-all")]
    assert manifests[0].run_fingerprint == manifests[1].run_fingerprint
    seeds = [file.pins.environment["PYTHONHASHSEED"] for file in manifests[1].ranks]
    assert len({"0", *seeds}) == 3
    assert {file.pins.placement["host"][:7] for file in manifests[1].ranks} == {"stress-"}


def test_data_in_the_order_of_a_hash_is_blamed_on_the_hash_seed(tmp_path: Path) -> None:
    """Each run is made with this fault, the reference too: with one seed it has the same bits every time."""
    fault = Fault(kind="hash-shuffle", target="text", rank=1, step=3)
    found = stress(tmp_path, only=("batch-of-environment", "hash-seed"), fault=fault)
    assert (found.verdict, found.culprits) == ("fail", ("hash-seed",)), found.headline
    assert "batch-of-environment changes nothing" in found.headline
    assert found.comparison is not None
    assert found.comparison.divergence is not None
    first = found.comparison.divergence.ranks[0]
    assert (first.rank, first.step, first.first.item) == (1, 3, "batch:tokens")
