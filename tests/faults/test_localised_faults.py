"""Nondeterminism planted in real runs of Megatron Core is localised to exactly the planted record, rank and step."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path

import pytest

import builders
from faults.conftest import SMALL, Arms, small_recipe
from samebits.compare.certify import Certified, load
from samebits.compare.compare import compare
from samebits.compare.results import Finding, Symptom
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Kind
from samebits.gates.judge import judge
from samebits.launch.console import Echo
from samebits.localize.finding import Subject
from samebits.localize.search import Hunt, LocalizeOptions, localize, of_arms, of_recipe
from samebits.recipe.evidence_rules import BY_CHANCE
from samebits.recipe.load import load as load_recipe
from samebits.report import json as json_report
from samebits.report.html import report_html
from samebits.spec.questions import Fault
from samebits.worker.disorder import KINDS, OUTPUTS

pytestmark = pytest.mark.ranks

STEP = 3
"""Behind the checkpoint of step 2, from which the pairs start."""
SYMPTOMS = {
    **dict.fromkeys(KINDS, Symptom.KERNEL),
    "wrong-stream": Symptom.RNG,
    "branch": Symptom.CONTROL_FLOW,
    "hash-shuffle": Symptom.DATA,
    "collective-output": Symptom.COLLECTIVE,
    "message": Symptom.COLLECTIVE,
}

ONE_SIDED = ("branch", "hash-shuffle", "hidden-write", "collective-output")
"""Planted in the candidate alone; the others in both arms of a pair, which then differ by chance."""


@dataclasses.dataclass(frozen=True)
class Apart:
    """Two arms that a fault of chance drove apart in step 3, on rank 1. traced: where the reference's run of a pair is
    kept: it is the same one for every fault of the candidate."""

    reference: Certified
    candidate: Certified
    subject: Subject
    traced: Path

    def with_fault(self, fault: Fault, *, both: bool = False) -> tuple[Certified, Certified]:
        """As if they had differed by this one."""
        return planned(self.reference, fault) if both else self.reference, planned(self.candidate, fault)


def planned(certified: Certified, fault: Fault) -> Certified:
    plan = dataclasses.replace(certified.manifest.plan, faults=(fault,))
    return dataclasses.replace(certified, manifest=dataclasses.replace(certified.manifest, plan=plan))


@pytest.fixture(scope="module")
def apart(small: Arms, reference: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Apart:
    candidate = small.run(small_recipe(), "twin-1", "by-chance", Fault(kind="unstable-gemm", rank=1, step=STEP))
    divergence = compare(reference, candidate).divergence
    assert divergence is not None
    assert divergence.step == STEP
    arms = [load(artifact.folder).certified for artifact in (reference, candidate)]
    assert arms[0] is not None
    assert arms[1] is not None
    subject = Subject(reference="reference", candidate="twin-1", launches=("a", "b"), divergence=divergence)
    return Apart(arms[0], arms[1], subject, tmp_path_factory.mktemp("pairs") / "reference")


def hunted(apart: Apart, fault: Fault, work: Path) -> Finding:
    one_sided, own = fault.kind in ONE_SIDED, work / "1" / "reference"
    if one_sided and apart.traced.exists():
        shutil.copytree(apart.traced, own)
    arms = apart.with_fault(fault, both=not one_sided)
    finding = localize(*arms, apart.subject, Hunt(folder=work, echo=Echo(io.StringIO()), tries=1))
    if one_sided and not apart.traced.exists():
        shutil.copytree(own, apart.traced)
    return finding


ELSEWHERE = ("message", "random-split", "unstable-gemm")
"""Kinds that tests below plant."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ELSEWHERE])
def test_a_fault_of_chance_is_named_by_record_rank_and_step(kind: str, apart: Apart, tmp_path: Path) -> None:
    fault = Fault(kind=kind, rank=1, step=STEP)  # type: ignore[arg-type]
    finding = hunted(apart, fault, tmp_path)
    assert_is_the_planted(finding, load(tmp_path / "1" / "candidate").certified)
    assert finding.symptom == SYMPTOMS[kind]
    assert finding.step == STEP
    assert [origin.ranks for origin in finding.origins] == ["1"]
    assert finding.before is not None
    assert finding.before.operations > 0 or kind == "hash-shuffle"


def assert_is_the_planted(finding: Finding, candidate: Certified | None) -> None:
    assert candidate is not None
    (note,) = candidate.manifest.planted
    assert finding.status == "found", finding.sentence
    assert finding.cause is not None
    assert (finding.cause.kind, finding.cause.name, finding.cause.scope) == (note.kind, note.name, note.scope)
    assert (finding.cause.phase == "backward") == (note.fault in ("scatter-order", "backward-order"))


def test_a_message_that_changes_on_its_way_is_named_and_not_what_reads_it(small: Arms) -> None:
    recipe = small_recipe(
        name="piped",
        parallel={"expert": 1, "pipeline": 2, "data": 1},
        model={"layers": 2, "hidden": 32, "heads": 4, "ffn_hidden": 64, "sequence_length": 16, "vocabulary": 128},
    )
    reference = small.run(recipe, "reference", "reference")
    candidate = small.run(recipe, "twin-1", "chance-message", Fault(kind="message", rank=1, step=STEP))
    _, finding = of_arms(reference.folder, candidate.folder, LocalizeOptions())
    assert finding is not None
    assert_is_the_planted(finding, load(candidate.folder).certified)
    assert (finding.symptom, finding.origins[0].ranks, finding.receivers) == (Symptom.COLLECTIVE, "1", "0")


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_a_fault_that_strikes_now_and_then_is_found_or_said_not_to_be_reproduced(
    probability: float, apart: Apart, tmp_path: Path
) -> None:
    """The arms differ for sure; in the runs of each pair the fault is a matter of chance, in both."""
    fault = Fault(kind="unstable-gemm", rank=1, step=STEP, probability=probability)
    hunt = Hunt(folder=tmp_path, echo=Echo(io.StringIO()), tries=2)
    finding = localize(*apart.with_fault(fault, both=True), apart.subject, hunt)
    if finding.status == "found":
        assert probability
        assert_is_the_planted(finding, apart.candidate)
    else:
        assert (finding.status, finding.tries, finding.agreed, finding.cause) == ("not reproduced", 2, 2, None)


def test_the_pipeline_ends_in_a_report_whose_first_line_is_the_cause(tmp_path: Path) -> None:
    """Both arms have the fault, as a recipe that is not deterministic has it in every run."""
    path = builders.recipe_file(tmp_path, **SMALL, gates=["repeatability"])
    recipe = load_recipe(path)
    own = Arms(tmp_path / "results")
    for arm in ("reference", "twin-1"):
        own.run(recipe, arm, arm, Fault(kind="random-split", rank=1, step=STEP))
    (finding,), _ = of_recipe(path, own.results, LocalizeOptions())
    assert_is_the_planted(finding, load(own.results / "small" / "arms" / "twin-1").certified)
    assert of_recipe(path, own.results, LocalizeOptions()) == ([finding], "fail"), "kept, not hunted again"
    judgement = judge(recipe, own.results)
    assert (judgement.verdict, judgement.findings) == ("fail", (finding,))
    assert f"call SplitGemm.forward in {finding.cause and finding.cause.scope}" in judgement.headline
    page = report_html(judgement)
    assert page.index("What made them differ") < page.index("Gates")
    assert json_report.report_json(judgement)


def test_every_kind_of_traced_record_but_those_of_one_rung_is_planted_somewhere() -> None:
    assert {kind for _, _, kind, _ in OUTPUTS.values()} == {Kind.OP, Kind.CALL, Kind.GIVEN, Kind.MODULE}
    assert len(KINDS) >= 12
    assert set(KINDS) == BY_CHANCE
