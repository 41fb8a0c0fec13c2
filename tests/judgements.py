"""Judgements as a pipeline might write them, small and large, good and bad, for the tests of the presenters."""

from __future__ import annotations

import dataclasses
import hashlib
import math

from samebits.judge.judgement import (
    ArmSummary,
    Comparison,
    Curve,
    Difference,
    Divergence,
    GateResult,
    Judgement,
    PinRow,
    RankDivergence,
    RankGroup,
    RecordView,
    Scope,
    Symptom,
    Verdict,
    Vote,
    WaivedItem,
)
from samebits.pins import Deviation
from samebits.report.words import ranks_text

RECIPE = (
    "name: smoke\nsteps: 12\nparallel:\n  world: 2\n  expert: 2\nprecision: bf16\ncheckpoint:\n  every: 6\nseed: 1234\n"
)
SCOPE = (
    "2 ranks on one node, steps 1 to 12, rung state, every record fingerprinted (100 %). The resumed arm started from "
    "the checkpoint of step 6. Not tested: other nodes, more ranks, longer runs, operations inside a step."
)
WAIVED = WaivedItem(item="rng:python", reason="training draws nothing from it", holds=True, seen=False)
FINGERPRINT = "sb1-6c1f0a52d3b94e7799d0e4c41b7a2f38"


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def scope(ranks: int = 2, first_step: int = 1, restart: int | None = None) -> Scope:
    blocks = ranks * (13 - first_step)
    return Scope(
        ranks=ranks,
        first_step=first_step,
        last_step=12,
        rung="state",
        blocks=blocks,
        full_blocks=blocks,
        records=blocks * 412,
        skipped=0,
        share=1.0,
        placement="one node",
        restart=restart,
    )


def comparison(candidate_arm: str = "twin-1", **changes: object) -> Comparison:
    identical = Comparison(
        reference="results/smoke/arms/reference",
        candidate=f"results/smoke/arms/{candidate_arm}",
        reference_arm="reference",
        candidate_arm=candidate_arm,
        verdict="pass",
        reference_fingerprint=FINGERPRINT,
        candidate_fingerprint=FINGERPRINT,
        deviations=(),
        problems=(),
        divergence=None,
        waived=(WAIVED,),
        scope=scope(),
    )
    return dataclasses.replace(identical, **changes)


def difference(rank: int = 1) -> Difference:
    return Difference(
        phase="update",
        kind="metric",
        name="grad norm",
        scope="",
        occurrence=0,
        reference=RecordView(form="float32 ()", digest=digest(f"r{rank}"), value="1.8734214305877686", skipped=False),
        candidate=RecordView(form="float32 ()", digest=digest(f"c{rank}"), value="1.8734215497970581", skipped=False),
    )


def divergence(origins: tuple[int, ...] = (1,), receivers: tuple[int, ...] = (0,), agreeing: str = "") -> Divergence:
    spelled = [_rank(rank, "origin") for rank in origins] + [_rank(rank, "receiver") for rank in receivers]
    groups = [
        RankGroup(
            ranks=_ranks(origins),
            count=len(origins),
            moment="step",
            step=5,
            item="gradient:decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight",
            role="origin",
        ),
        RankGroup(
            ranks=_ranks(receivers),
            count=len(receivers),
            moment="step",
            step=5,
            item="metric:grad norm",
            role="receiver",
        ),
    ]
    return Divergence(
        moment="step",
        step=5,
        symptom=Symptom.KERNEL,
        explanation=f"At step 5 rank {origins[0]} computed another gradient from equal inputs; every other rank "
        "received the difference through the gradient norm.",
        ranks=tuple(spelled[:64]),
        groups=tuple(group for group in groups if group.count),
        agreeing=agreeing,
        identical_before=3721,
        differing_blocks=16,
    )


def _rank(rank: int, role: str) -> RankDivergence:
    first = difference(rank)
    if role == "origin":
        tensor = [
            RecordView(form="bfloat16 (256, 128)", digest=digest(f"{side}{rank}"), value=None, skipped=False)
            for side in "rc"
        ]
        name = "decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight"
        first = dataclasses.replace(
            first,
            phase="backward",
            kind="gradient",
            name=name,
            scope="chunk 0",
            reference=tensor[0],
            candidate=tensor[1],
        )
    return RankDivergence(
        rank=rank,
        moment="step",
        step=5,
        first=first,
        differing=118,
        compared=412,
        role=role,
        host=f"gpu-node-{rank // 8:03d}",
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    return ranks_text(ranks)


def curve(name: str, arm: str, start: int = 1, apart_from: int | None = None, nan_at: tuple[int, ...] = ()) -> Curve:
    steps = tuple(range(start, 13))
    scale = {"grad norm": 0.4, "lr": 1e-4}.get(name, 1.0)
    ours = [scale * (5.5 + 3 * math.exp(-step / 5) + 0.05 * math.sin(step * 2.7)) for step in steps]
    ulps = [0 if apart_from is None or step < apart_from else int(1.6 ** (step - apart_from) ** 1.35) for step in steps]
    theirs = [value * (1 + 4e-3 * math.log1p(apart)) for value, apart in zip(ours, ulps, strict=True)]
    lost = [step in nan_at for step in steps]
    return Curve(
        name=name,
        steps=steps,
        reference=tuple(None if gone else value for gone, value in zip(lost, ours, strict=True)),
        candidate=tuple(math.nan if gone else value for gone, value in zip(lost, theirs, strict=True)),
        ulps=tuple(None if gone else apart for gone, apart in zip(lost, ulps, strict=True)),
        candidate_arm=arm,
    )


def curves(apart_from: int | None = None) -> tuple[Curve, ...]:
    names = ("lm loss", "load balancing loss", "z loss", "mtp loss 1", "grad norm", "params norm", "lr")
    twin = [curve(name, "twin-1", apart_from=None if name == "lr" else apart_from) for name in names]
    resumed = [curve(name, "resumed", start=7) for name in names[:5]]
    control = [curve(name, "control-ulp", apart_from=5) for name in names[:5]]
    return (*twin, *resumed, *control)


def gate(name: str, verdict: Verdict, explanation: str, *comparisons: Comparison) -> GateResult:
    return GateResult(gate=name, verdict=verdict, explanation=explanation, comparisons=comparisons)


def planted() -> Comparison:
    return comparison(
        "control-ulp",
        verdict="fail",
        candidate_fingerprint="sb1-ffb0c2d1e0a94a1b8a1f3f6d0a7be901",
        divergence=dataclasses.replace(
            divergence(),
            explanation="At step 5 one parameter of rank 1 changed by one unit in the last place, as planted.",
        ),
        waived=(),
    )


def gates() -> tuple[GateResult, ...]:
    return (
        gate(
            "repeatability",
            "pass",
            "Reference and twin-1 have the same bits in all 12 steps on both ranks.",
            comparison(),
        ),
        gate(
            "resume",
            "pass",
            "The state after the restore equals the state that was saved, and steps 7 to 12 follow with the same bits.",
            comparison("resumed", scope=scope(first_step=7, restart=6)),
        ),
        gate(
            "control", "pass", "Both planted faults were found at exactly the planted rank, step and item.", planted()
        ),
        gate(
            "observer",
            "pass",
            "Training without capture ends in the same state, so capture does not disturb it.",
            comparison("bare"),
        ),
    )


def arms() -> tuple[ArmSummary, ...]:
    names = ("reference", "twin-1", "resumed", "control-ulp", "bare")
    return tuple(
        ArmSummary(
            arm=name,
            folder=f"results/smoke/arms/{name}",
            run_fingerprint="sb1-ffb0c2d1e0a94a1b8a1f3f6d0a7be901" if name == "control-ulp" else FINGERPRINT,
            ranks=2,
            steps="7-12" if name == "resumed" else "1-12",
            records=9888,
            bytes=412_345,
            seconds=11.25,
            step_seconds=0.4321,
            problem=None,
        )
        for name in names
    )


def pins() -> tuple[PinRow, ...]:
    rows = [
        PinRow(pin="software.torch", values={"2.13.0+cpu": "0-1"}, declared="2.13.0+cpu"),
        PinRow(pin="software.megatron-core", values={"0.16.1": "0-1"}, declared=None),
        *(PinRow(pin=f"software.package-{n}", values={f"{n}.1.0": "0-1"}, declared=None) for n in range(20)),
        PinRow(pin="hardware.cpu", values={"Intel(R) Xeon(R) Platinum 8481C": "0-1"}, declared=None),
        PinRow(pin="runtime.torch threads", values={"1": "0-1"}, declared="1"),
        PinRow(pin="environment.PYTHONHASHSEED", values={"0": "0-1"}, declared="0"),
        PinRow(pin="placement.host", values={"gpu-node-000": "0", "gpu-node-001": "1"}, declared=None),
    ]
    return tuple(rows)


def passing(**changes: object) -> Judgement:
    judgement = Judgement(
        format=1,
        samebits="0.1.0",
        recipe="smoke",
        verdict="pass",
        headline="smoke computed the same bits in every run: 2 ranks, 12 steps, rung state, within one node.",
        scope=SCOPE,
        gates=gates(),
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


HOSTILE = "<script>alert(1)</script> [bold]x[/bold] ]]> & \"'\x00\x1b[31m\u202e {{ 7*7 }} $\\frac{ \ud800 "
HOSTILE += "naïve 漢字 <!-- --> </style></pre>"


def hostile(judgement: Judgement | None = None) -> Judgement:
    """Every free text of a failing judgement replaced by what breaks careless presenters."""
    found = judgement or failing()
    return _hostile(dataclasses.replace(found, curves=found.curves[:2]))


def _hostile(value: object) -> object:
    kept = {"verdict", "role", "samebits", "gate", "symptom", "moment", "candidate_arm"}
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
