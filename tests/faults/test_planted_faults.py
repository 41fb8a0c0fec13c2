"""Every planted fault, in real runs of Megatron Core, is found and named at exactly its place."""

from __future__ import annotations

import dataclasses
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from faults.conftest import Arms, small_recipe
from samebits.compare.compare import compare
from samebits.compare.results import Comparison, Divergence, Symptom
from samebits.fingerprint.paths import Artifact
from samebits.spec.questions import Fault

pytestmark = pytest.mark.ranks

RESTORED_AT = 2
FIRST_RESUMED = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """arm: in which the fault is planted. item: `kind:name` of the first difference; its start, where it ends in `*`.
    ranks: the origins."""

    name: str
    fault: Fault
    arm: str
    moment: str
    step: int
    item: str
    ranks: tuple[int, ...]
    symptom: Symptom


def restored(name: str, fault: Fault, item: str, symptom: Symptom) -> Case:
    return Case(name, fault, "resumed", "restored", RESTORED_AT, item, (1,), symptom)


FIRST_PARAMETER = "embedding.word_embeddings.weight"
DEEP_PARAMETER = "decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight"
RNG_STREAMS = (
    "python",
    "numpy",
    "torch",
    "megatron/data-parallel-rng",
    "megatron/expert-parallel-rng",
    "megatron/model-parallel-rng",
)
CASES = (
    Case(
        "one unit in the last place of one parameter",
        Fault(kind="ulp", rank=1, step=3, target=DEEP_PARAMETER),
        "twin-1",
        "step",
        3,
        f"parameter:{DEEP_PARAMETER}",
        (1,),
        Symptom.HARDWARE_SUSPICION,
    ),
    Case(
        "two samples of a batch swapped",
        Fault(kind="batch-swap", rank=0, step=2),
        "twin-1",
        "step",
        2,
        "batch:tokens",
        (0,),
        Symptom.DATA,
    ),
    Case(
        "one gradient element after reduction",
        Fault(kind="gradient", rank=1, step=2, target=FIRST_PARAMETER),
        "twin-1",
        "step",
        2,
        f"gradient:{FIRST_PARAMETER}",
        (1,),
        Symptom.HARDWARE_SUSPICION,
    ),
    Case(
        "a loss logged otherwise than it was trained on",
        Fault(kind="loss-logging", rank=1, step=3),
        "twin-1",
        "step",
        3,
        "metric:lm loss",
        (1,),
        Symptom.LOGGING_ONLY,
    ),
    restored(
        "one optimizer moment dropped on restore",
        Fault(kind="moment-drop", rank=1),
        "optimizer:*",
        Symptom.RESTORED_STATE,
    ),
    restored(
        "data position off by one at restore",
        Fault(kind="position-skip", rank=1),
        "position:position",
        Symptom.DATA,
    ),
    *(
        restored(
            f"RNG stream {stream} off by one draw at restore",
            Fault(kind="rng-skip", rank=1, target=stream),
            f"rng:{stream}",
            Symptom.RNG,
        )
        for stream in RNG_STREAMS
    ),
    Case(
        "the optimizer step shared by all parameters after a load, as upstream has it",
        Fault(kind="upstream", target="shared-step"),
        "resumed",
        "step",
        FIRST_RESUMED,
        "optimizer:*.step",
        (0, 1),
        Symptom.RESTORED_STATE,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-").replace("/", "-"))
def test_a_planted_fault_is_named_by_moment_step_rank_and_item(
    case: Case, small: Arms, reference: Artifact, request: pytest.FixtureRequest
) -> None:
    name = f"planted-{CASES.index(case)}"
    candidate = small.run(small_recipe(), case.arm, name, case.fault)
    comparison = compare(reference, candidate)
    assert comparison.verdict == "fail", comparison.problems
    found = divergence(comparison)
    assert (found.moment, found.step) == (case.moment, case.step), found.explanation
    origins = [rank for rank in found.ranks if rank.role == "origin"]
    assert tuple(rank.rank for rank in origins) == case.ranks, found.explanation
    start, star, end = case.item.partition("*")
    for rank in origins:
        assert rank.first.item == case.item or (star and rank.first.item.startswith(start)), rank.first
        assert rank.first.item.endswith(end), rank.first
    assert found.symptom is case.symptom, found.explanation
    shutil.rmtree(candidate.folder)


def divergence(comparison: Comparison) -> Divergence:
    assert comparison.divergence is not None, comparison.problems
    return comparison.divergence


def test_two_equal_runs_pass_and_a_resumed_one_too(small: Arms, reference: Artifact) -> None:
    for arm in ("twin-1", "resumed"):
        comparison = compare(reference, small.run(small_recipe(), arm, arm))
        assert comparison.verdict == "pass", (comparison.problems, comparison.deviations, comparison.divergence)


def test_nan_losses_in_both_arms_are_identical_and_no_pass(small: Arms, tmp_path: Path) -> None:
    recipe = small_recipe(name="nan", optimizer={"lr": 1e30, "min_lr": 1e30, "lr_warmup_steps": 0})
    apart = Arms(tmp_path)
    both = [apart.run(recipe, arm, arm) for arm in ("reference", "twin-1")]
    comparison = compare(*both)
    assert comparison.reference_fingerprint == comparison.candidate_fingerprint
    assert comparison.divergence is None
    assert comparison.verdict == "fail"
    assert any("lm loss is nan" in problem for problem in comparison.problems), comparison.problems


def test_another_library_version_is_invalid_and_named(
    small: Arms, reference: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = other_version("psutil", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    comparison = compare(reference, small.run(small_recipe(), "twin-1", "other-version"))
    assert comparison.verdict == "invalid"
    deviation = next(entry for entry in comparison.deviations if entry.pin == "software.psutil")
    assert (deviation.reference, deviation.candidate) == (metadata.version("psutil"), version)
    assert deviation.ranks == (0, 1)


def other_version(distribution: str, folder: Path) -> str:
    """Puts a copy of an installed distribution there that says it is another version."""
    found = metadata.distribution(distribution)
    package = Path(str(found.locate_file(distribution)))
    shutil.copytree(package, folder / distribution)
    version = found.version + ".1"
    information = folder / f"{distribution}-{version}.dist-info"
    information.mkdir()
    text = (found.read_text("METADATA") or "").replace(f"Version: {found.version}", f"Version: {version}", 1)
    (information / "METADATA").write_text(text)
    return version


def test_another_thread_count_is_invalid_and_named_as_asked_and_as_observed(small: Arms, reference: Artifact) -> None:
    recipe = small_recipe(launch={"threads": 2})
    comparison = compare(reference, small.run(recipe, "twin-1", "other-threads"))
    assert comparison.verdict == "invalid"
    pins = {entry.pin: (entry.reference, entry.candidate) for entry in comparison.deviations}
    assert pins["recipe.launch.threads"] == ("1", "2")
    assert pins["runtime.threads"] == ("1", "2")


def test_another_seed_is_invalid_and_named(small: Arms, reference: Artifact) -> None:
    comparison = compare(reference, small.run(small_recipe(seed=1235), "twin-1", "other-seed"))
    assert comparison.verdict == "invalid"
    pins = {entry.pin: (entry.reference, entry.candidate) for entry in comparison.deviations}
    assert pins["recipe.seed"] == ("1234", "1235")
