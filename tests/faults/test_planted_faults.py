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


@pytest.mark.parametrize("streams", list(zip(RNG_STREAMS[::2], RNG_STREAMS[1::2], strict=True)), ids=" and ".join)
def test_a_random_stream_off_by_one_draw_at_restore_is_named_on_each_rank(
    streams: tuple[str, str], small: Arms, reference: Artifact
) -> None:
    faults = [Fault(kind="rng-skip", rank=rank, target=stream) for rank, stream in enumerate(streams)]
    candidate = small.run(small_recipe(), "resumed", f"planted-{'-'.join(streams).replace('/', '-')}", *faults)
    found = divergence(compare(reference, candidate))
    assert (found.moment, found.step, found.symptom) == ("restored", RESTORED_AT, Symptom.RNG), found.explanation
    assert {rank.rank: (rank.role, rank.first.item) for rank in found.ranks} == {
        rank: ("origin", f"rng:{stream}") for rank, stream in enumerate(streams)
    }
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


def test_another_library_version_thread_count_and_seed_are_invalid_and_named(
    small: Arms, reference: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone makes a comparison invalid (tests/compare); here ranks observe all three, as asked and as in force."""
    version = other_version("psutil", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    recipe = small_recipe(seed=1235, launch={"threads": 2})
    comparison = compare(reference, small.run(recipe, "twin-1", "others"))
    assert comparison.verdict == "invalid"
    pins = {entry.pin: (entry.reference, entry.candidate) for entry in comparison.deviations}
    expected = {
        "software.psutil": (metadata.version("psutil"), version),
        "recipe.launch.threads": ("1", "2"),
        "runtime.threads": ("1", "2"),
        "recipe.seed": ("1234", "1235"),
    }
    assert {pin: pins.get(pin) for pin in expected} == expected
    assert next(entry.ranks for entry in comparison.deviations if entry.pin == "software.psutil") == (0, 1)


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
