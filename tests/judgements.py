"""Judgements as a pipeline might write them, small and large, good and bad, for the tests of the presenters."""

from __future__ import annotations

import dataclasses
import json

import judgement_costs
from judgement_parts import RECIPE, SCOPE, WAIVED, arms, comparison, curve, curves, divergence, gate, gates, pins, scope
from samebits.compare.results import Vote, WaivedItem
from samebits.gates.judgement import Judgement
from samebits.gates.statement import headline, scope_text
from samebits.overhead.gate import judge_overhead
from samebits.overhead.results import Cost
from samebits.spec.pins import Deviation
from samebits.spec.sections import Recipe


def passing(**changes: object) -> Judgement:
    judgement = Judgement(
        format=4,
        samebits="0.1.0",
        recipe="smoke",
        verdict="pass",
        headline="smoke computed the same bits in every run: 2 ranks, 12 steps, rung state, within one node.",
        scope=SCOPE,
        gates=gates(),
        findings=(),
        costs=(),
        vote=None,
        curves=curves(),
        arms=arms(),
        pins=pins(),
        recipe_text=RECIPE,
    )
    return dataclasses.replace(judgement, **changes)


def failing() -> Judgement:
    """One of 64 ranks computes something else; a vote names its arm and node."""
    found = divergence(
        origins=(17,), receivers=tuple(rank for rank in range(64) if rank not in (17, 63)), agreeing="63"
    )
    broken = WaivedItem(item="rng:numpy", reason="only the tokenizer's tests draw from it", holds=False, seen=True)
    diverged = comparison(
        verdict="fail",
        candidate_fingerprint="sb1-0d9ee1f4a1d24f6c8f4de9d0a95c61aa",
        divergence=found,
        waived=(WAIVED, broken),
        scope=scope(64),
    )
    vote = Vote(
        arms=("reference", "twin-1", "twin-2"),
        moment="step",
        step=5,
        ranks="17",
        odd="twin-1",
        hosts=("gpu-node-002",),
        explanation="Two of three arms agree; twin-1 is odd, on rank 17, node gpu-node-002.",
    )
    failed = gate(
        "repeatability",
        "fail",
        "twin-1 differs from the reference from step 5 on, first on rank 17.",
        diverged,
        comparison("twin-2", scope=scope(64)),
    )
    return passing(
        verdict="fail",
        headline="repeatability failed: at step 5, rank 17 computed another gradient from equal inputs.",
        scope=SCOPE.replace("2 ranks on one node", "64 ranks on eight nodes"),
        gates=(failed, *gates()[1:]),
        vote=vote,
        curves=curves(apart_from=5)[:4],
        arms=(*arms(), dataclasses.replace(arms()[1], arm="twin-2", folder="results/smoke/arms/twin-2")),
    )


def invalid() -> Judgement:
    deviations = (
        Deviation("runtime.torch threads", "1", "2", (*range(40), 63)),
        Deviation("software.torch", "2.13.0+cpu", "2.12.1+cpu", (0, 1)),
    )
    message = "twin-1 and resumed ran with other pins than the reference: run them again in the pinned image"
    unlike = {"verdict": "invalid", "deviations": deviations, "problems": (message,), "scope": None}
    results = (
        gate(
            "repeatability",
            "invalid",
            "twin-1 ran with torch 2.12.1+cpu where the reference ran with 2.13.0+cpu.",
            comparison(**unlike),
        ),
        gate(
            "resume", "invalid", "The resumed arm ran with another version of torch.", comparison("resumed", **unlike)
        ),
        *gates()[2:],
    )
    headline = "Not comparable: twin-1 ran with torch 2.12.1+cpu where the reference ran with 2.13.0+cpu (ranks 0-1)."
    return passing(
        verdict="invalid",
        headline=headline,
        scope="Nothing is proven: 2 of 4 gates could not be judged.",
        gates=results,
        curves=curves()[:3],
    )


def inconclusive() -> Judgement:
    message = "reference: rank-00001.fp ends at step 7 of 12 without a seal (the rank was killed?); run this arm again"
    results = (
        gate(
            "repeatability",
            "inconclusive",
            "The reference is incomplete: rank 1 stops at step 7.",
            comparison(verdict="inconclusive", problems=(message,), scope=None),
        ),
        gate(
            "resume",
            "inconclusive",
            "There is no resumed arm.",
        ),
    )
    gone = dataclasses.replace(arms()[0], run_fingerprint=None, problem=message, seconds=None, step_seconds=None)
    gone = dataclasses.replace(gone, nodes="", job="")
    lost = curve("lm loss", "twin-1", nan_at=(4, 5, 9))
    return passing(
        verdict="inconclusive",
        headline="Not enough evidence: the reference is incomplete, rank 1 stops at step 7.",
        scope="Nothing is proven.",
        gates=results,
        arms=(gone, *arms()[1:]),
        curves=(lost,),
        pins=(),
    )


def priced(first: Cost, *others: Cost, wanted: Recipe | None = None) -> Judgement:
    """Of a recipe whose only gate is `overhead`: no arms, no comparisons."""
    recipe = wanted or judgement_costs.recipe()
    assert recipe.overhead is not None
    result = judge_overhead(first, recipe.overhead)
    costs = (first, *others)
    return passing(
        recipe=recipe.name,
        verdict=result.verdict,
        headline=headline(recipe, result.verdict, (result,)),
        scope=scope_text(recipe, (result,), costs),
        gates=(result,),
        findings=(),
        costs=costs,
        curves=(),
        arms=(),
        recipe_text=json.dumps(dataclasses.asdict(recipe), indent=2),
    )


def cheap() -> Judgement:
    """Every experiment, and a cost within the limit."""
    others = (judgement_costs.attribution(), judgement_costs.capture(), judgement_costs.null())
    return priced(judgement_costs.passing(), *others)


def dear() -> Judgement:
    return priced(judgement_costs.dear())


def undecided() -> Judgement:
    return priced(judgement_costs.straddling())


def too_short() -> Judgement:
    return priced(judgement_costs.too_short())


def unpriced() -> Judgement:
    """A run is missing."""
    return priced(judgement_costs.gone())


def not_deterministic() -> Judgement:
    return priced(judgement_costs.not_deterministic())


def elsewhere() -> Judgement:
    """A run was made on another node."""
    return priced(judgement_costs.elsewhere())


def costly_and_failing() -> Judgement:
    """Bits and time in one recipe."""
    cost = judgement_costs.passing()
    gate = priced(cost).gates[0]
    base = failing()
    return dataclasses.replace(base, gates=(*base.gates, gate), costs=(cost,))


HOSTILE = "<script>alert(1)</script> [bold]x[/bold] ]]> & \"'\x00\x1b[31m\u202e {{ 7*7 }} $\\frac{ \ud800 "
HOSTILE += "naïve 漢字 <!-- --> </style></pre>"


def hostile(judgement: Judgement | None = None) -> Judgement:
    """Every free text of a failing judgement replaced by what breaks careless presenters."""
    found = judgement or failing()
    return _hostile(dataclasses.replace(found, curves=found.curves[:2]))


def _hostile(value: object) -> object:
    kept = {"verdict", "role", "samebits", "gate", "symptom", "moment", "candidate_arm", "placement", "allocation"}
    kept |= {"experiment", "clock"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
        return dataclasses.replace(
            value, **{name: item if name in kept else _hostile(item) for name, item in fields.items()}
        )
    if isinstance(value, tuple):
        return tuple(_hostile(item) for item in value)
    if isinstance(value, dict):
        return {_hostile(key): _hostile(item) for key, item in value.items()}
    return f"{HOSTILE} {value} {'long-name-' * 30}" if type(value) is str else value


def large() -> Judgement:
    """40 comparisons in four gates and 64 rank rows in each divergence."""
    base = failing()
    diverged = base.gates[0].comparisons[0]
    many = [
        gate(
            name,
            "fail",
            f"{name}: 10 arms differ.",
            *(dataclasses.replace(diverged, candidate_arm=f"twin-{name}-{n}") for n in range(10)),
        )
        for name in ("repeatability", "resume", "control", "observer")
    ]
    return dataclasses.replace(base, gates=tuple(many), curves=())


ALL = {"pass": passing, "fail": failing, "invalid": invalid, "inconclusive": inconclusive}
PRICED = {
    "cheap": cheap,
    "dear": dear,
    "undecided": undecided,
    "too short": too_short,
    "unpriced": unpriced,
    "not deterministic": not_deterministic,
    "elsewhere": elsewhere,
    "bits and time": costly_and_failing,
}
