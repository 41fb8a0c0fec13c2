"""Hunting: where pairs start, what they trace, when they aim again and when they give up. Runs are synthetic."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pytest

import artifacts
import evidence
from samebits.compare.certify import Certified, load
from samebits.compare.compare import compare
from samebits.compare.results import Finding
from samebits.fingerprint.format import Coordinates
from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.job_state import ArmOutcome, LaunchError
from samebits.localize import search as hunting
from samebits.localize.finding import Subject
from samebits.localize.search import Aim, Hunt, localize, pair, with_peers
from samebits.spec.plan import Plan
from traced import collective, given, op, other, recorded

MM, ADD = op("aten.mm.default", key=1, source=1), op("aten.add.Tensor", key=2, source=2)
Recorded = Callable[[Plan, int], list]
"""What a rank of a run records in the step that is traced."""


class Machine:
    """Runs any plan at once: what it records is a function of the plan."""

    def __init__(self, records: Recorded, monkeypatch: pytest.MonkeyPatch, *, low: bool = False) -> None:
        """low: records stand in the first step of the window, not in the last."""
        self.plans: list[Plan] = []
        self._records = records
        self._low = low
        monkeypatch.setattr(hunting, "run_arms", lambda arms, **options: self.run(*arms[0], **options))

    def run(self, plan: Plan, artifact: Artifact, **_: object) -> ArmOutcome:
        self.plans.append(plan)
        windows = plan.recipe.capture.windows or ()
        step = windows[0][0] if self._low else plan.last_step
        change = recorded(lambda rank: self._records(plan, rank), step)
        artifacts.write_artifact(
            artifact.folder, plan=plan, change=change, pins=evidence.pins, launch=f"{plan.arm}-{len(self.plans)}"
        )
        return ArmOutcome(ok=True, message="", launch="", ended="", seconds=0.0)

    @property
    def aims(self) -> list[tuple[tuple[tuple[int, int], ...] | None, tuple[int, ...] | None]]:
        return [(plan.recipe.capture.windows, plan.recipe.capture.ranks) for plan in self.plans[::2]]


def differing(*changes: artifacts.Change, world: int = 3, **arm: object) -> tuple[Certified, Certified, Subject]:
    """A reference, a candidate that differs so, and what there is to hunt down."""
    folder = evidence.scratch()
    made = (
        evidence.written(folder / "reference", world=world, steps=6),
        evidence.written(folder / "twin-1", **{"arm": "twin-1", "world": world, "steps": 6, "change": changes, **arm}),
    )
    divergence = compare(*made).divergence
    assert divergence is not None
    found = [load(artifact.folder).certified for artifact in made]
    assert found[0] is not None
    assert found[1] is not None
    subject = Subject(reference="reference", candidate="twin-1", launches=("a", "b"), divergence=divergence)
    return found[0], found[1], subject


GRADIENT = artifacts.altered("gradient:w0", rank=1, step=5)


def hunted(machine: Machine, differ: tuple[Certified, Certified, Subject], folder: Path, tries: int = 3) -> Finding:
    finding = localize(*differ, Hunt(folder=folder, echo=Echo(io.StringIO()), tries=tries))
    assert len(machine.plans) == 2 * finding.tries
    return finding


def is_candidate(plan: Plan) -> bool:
    return plan.arm.endswith("candidate")


def test_the_step_is_traced_in_both_and_the_cause_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda plan, rank: [other(MM) if is_candidate(plan) and rank == 1 else MM, ADD], monkeypatch)
    finding = hunted(machine, differing(GRADIENT), tmp_path)
    assert (finding.status, finding.step, finding.tries, finding.agreed) == ("found", 5, 1, 0)
    assert finding.cause is not None
    assert finding.cause.name == "aten.mm.default"
    assert machine.aims == [(((4, 5),), (0, 1, 2))]
    assert [plan.last_step for plan in machine.plans] == [5, 5]
    assert {plan.recipe.capture.rung for plan in machine.plans} == {"op"}


def test_a_pair_starts_from_the_last_checkpoint_before_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(lambda _plan, _rank: [MM], monkeypatch)
    differ = differing(GRADIENT)
    for step in (2, 4, 6):
        differ[0].artifact.checkpoint(step).mkdir(parents=True)
    hunted(machine, differ, tmp_path, tries=1)
    assert [(plan.first_step, Path(plan.restore or "").name) for plan in machine.plans] == [(5, "step-000004")] * 2


def test_without_a_checkpoint_a_pair_starts_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda _plan, _rank: [MM], monkeypatch)
    hunted(machine, differing(GRADIENT), tmp_path, tries=1)
    assert [(plan.first_step, plan.restore) for plan in machine.plans] == [(1, None)] * 2


def test_a_resumed_arm_is_restored_again_and_its_reference_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(lambda _plan, _rank: [MM], monkeypatch)
    differ = differing(GRADIENT, arm="resumed", restored=2)
    differ[0].artifact.checkpoint(4).mkdir(parents=True)
    hunted(machine, differ, tmp_path, tries=1)
    reference, candidate = machine.plans
    assert (reference.first_step, reference.restore) == (1, None)
    assert (candidate.first_step, candidate.restore) == (3, differ[1].manifest.plan.restore)


def test_what_was_restored_wrong_needs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda _plan, _rank: [], monkeypatch)
    wrong = artifacts.altered("rng:torch", rank=1, step=2, moment=artifacts.Moment.RESTORED)
    finding = hunted(machine, differing(wrong, arm="resumed", restored=2), tmp_path)
    assert (finding.status, finding.tries, finding.symptom) == ("found", 0, "RNG")
    assert finding.cause is not None
    assert (finding.cause.kind, finding.cause.name) == ("rng", "torch")


def test_what_differs_behind_the_last_step_is_not_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda _plan, _rank: [], monkeypatch)
    behind = artifacts.altered("parameter:w0", rank=1, step=6, moment=artifacts.Moment.FINAL)
    finding = hunted(machine, differing(behind), tmp_path)
    assert (finding.status, finding.cause) == ("not traced", None)
    assert "final state of step 6" in finding.sentence


def test_pairs_that_agree_are_not_reproduced_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda _plan, _rank: [MM, ADD], monkeypatch)
    finding = hunted(machine, differing(GRADIENT), tmp_path)
    assert (finding.status, finding.tries, finding.agreed, finding.cause) == ("not reproduced", 3, 3, None)
    assert "3 times" in finding.sentence


def test_a_pair_that_agrees_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda plan, _: [other(MM) if plan.arm == "localize-2-candidate" else MM], monkeypatch)
    finding = hunted(machine, differing(GRADIENT), tmp_path)
    assert (finding.status, finding.tries, finding.agreed) == ("found", 2, 1)


def test_a_pair_that_parts_in_another_step_is_aimed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance it strikes earlier than it did in the arms."""

    def early(at: artifacts.At, entries: list) -> list:
        return artifacts.altered("metric:lm loss", rank=1, step=3)(at, entries)

    machine = Machine(lambda plan, _: [other(MM) if is_candidate(plan) else MM], monkeypatch)
    inner = machine.run

    def run(plan: Plan, artifact: Artifact, **options: object) -> ArmOutcome:
        if not is_candidate(plan) or plan.last_step == 3:
            return inner(plan, artifact, **options)
        machine.plans.append(plan)
        artifacts.write_artifact(artifact.folder, plan=plan, change=early, pins=evidence.pins)
        return ArmOutcome(ok=True, message="", launch="", ended="", seconds=0.0)

    monkeypatch.setattr(hunting, "run_arms", lambda arms, **options: run(*arms[0], **options))
    finding = hunted(machine, differing(GRADIENT), tmp_path)
    assert [aim[0] for aim in machine.aims] == [((4, 5),), ((2, 3),)]
    assert (finding.status, finding.step, finding.tries) == ("found", 3, 2)


def test_bytes_that_were_there_before_the_first_traced_step_are_hunted_one_step_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arms recorded of a step may be too little to see a difference in it."""
    there = given("before aten.mm.default", key=3)

    def records(plan: Plan, _rank: int) -> list:
        window = plan.recipe.capture.windows
        assert window is not None
        if not is_candidate(plan):
            return [there, MM]
        return [other(there), other(MM)] if window[0][0] > 2 else [there, other(MM)]

    machine = Machine(records, monkeypatch, low=True)
    finding = hunted(machine, differing(GRADIENT), tmp_path)
    assert [aim[0] for aim in machine.aims] == [((4, 5),), ((3, 4),), ((2, 3),)]
    assert finding.cause is not None
    assert (finding.cause.name, finding.step) == ("aten.mm.default", 2)


def test_pairs_that_agree_beside_pairs_that_part_untraced_are_not_told_to_have_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(lambda _plan, _rank: [MM], monkeypatch)
    inner = machine.run

    def run(plan: Plan, artifact: Artifact, **options: object) -> ArmOutcome:
        if plan.arm != "localize-1-candidate":
            return inner(plan, artifact, **options)
        machine.plans.append(plan)
        part = artifacts.altered("metric:lm loss", rank=1, step=2)
        artifacts.write_artifact(artifact.folder, plan=plan, change=part, pins=evidence.pins)
        return ArmOutcome(ok=True, message="", launch="", ended="", seconds=0.0)

    monkeypatch.setattr(hunting, "run_arms", lambda arms, **options: run(*arms[0], **options))
    finding = hunted(machine, differing(GRADIENT), tmp_path)
    assert finding.status == "not traced"
    assert "2 of 3 pairs agreed" in finding.sentence


def test_where_only_receivers_were_traced_the_next_pair_traces_who_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hunting, "with_peers", lambda ranks, _places: tuple(sorted(set(ranks))))
    fed, spoiled = collective("0-2", key=1, source=1), collective("0-2", key=2, source=2)

    def records(plan: Plan, rank: int) -> list:
        if not is_candidate(plan):
            return [MM, fed]
        return [other(MM), spoiled] if rank == 2 else [MM, other(fed)]

    machine = Machine(records, monkeypatch)
    finding = hunted(machine, differing(artifacts.altered("gradient:w0", rank=1, step=5)), tmp_path)
    assert [aim[1] for aim in machine.aims] == [(1,), (0, 1, 2)]
    assert finding.cause is not None
    assert (finding.cause.name, finding.origins[0].ranks, finding.receivers) == ("aten.mm.default", "2", "0-1")


def test_a_pair_that_cannot_be_run_raises_the_ranks_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ArmOutcome(ok=False, message="rank 1 says no", launch="", ended="", seconds=0.0)
    monkeypatch.setattr(hunting, "run_arms", lambda *_args, **_options: failed)
    with pytest.raises(LaunchError, match="rank 1 says no"):
        localize(*differing(GRADIENT), Hunt(folder=tmp_path, echo=Echo(io.StringIO())))


def test_a_pair_that_is_not_comparable_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda plan, _: [other(MM) if is_candidate(plan) else MM], monkeypatch)
    threads = {"runtime": {"threads": "2"}}
    monkeypatch.setattr(
        evidence,
        "pins",
        lambda rank=0, _plain=evidence.pins: _plain(rank, **(threads if len(machine.plans) % 2 else {})),
    )
    finding = localize(*differing(GRADIENT), Hunt(folder=tmp_path, echo=Echo(io.StringIO())))
    assert (finding.status, finding.cause) == ("not traced", None)
    assert "runtime.threads" in finding.sentence


# peers


def places(tensor: int, pipeline: int, data: int) -> dict[int, Coordinates]:
    world = tensor * pipeline * data
    return {
        rank: Coordinates(
            rank=rank,
            world=world,
            tensor=rank % tensor,
            pipeline=rank // (tensor * data),
            data=rank // tensor % data,
            expert=0,
            context=0,
        )
        for rank in range(world)
    }


def test_peers_are_ranks_in_which_one_coordinate_is_another() -> None:
    everywhere = places(4, 2, 4)
    found = with_peers([0], everywhere)
    assert found == (0, 1, 2, 3, 4, 8, 12, 16)


def test_of_few_ranks_all_are_traced() -> None:
    assert with_peers([3], places(2, 2, 4)) == tuple(range(hunting.ALL_RANKS))


def test_tensors_of_any_size_are_traced(tmp_path: Path) -> None:
    plan = evidence.limited(world=2, max_tensor_bytes=4096)
    legs = pair(plan, dataclasses.replace(plan, arm="twin-1"), Artifact(tmp_path), Aim(2, (0, 1)), 1)
    assert {leg.recipe.capture.max_tensor_bytes for leg in legs} == {None}
    assert [leg.keep_checkpoints for leg in legs] == [False, False]
