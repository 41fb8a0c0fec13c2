"""Parts of judgements: comparisons, divergences, curves, arms and pins of the recipe `smoke`."""

from __future__ import annotations

import dataclasses
import hashlib
import math

from samebits.compare.results import (
    Comparison,
    Curve,
    Difference,
    Divergence,
    GateResult,
    RankDivergence,
    RankGroup,
    RecordView,
    Scope,
    Symptom,
    WaivedItem,
)
from samebits.fingerprint.format import ranks_text
from samebits.gates.judgement import ArmSummary, PinRow
from samebits.spec.verdicts import Verdict

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
        allocation="one allocation",
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
            nodes="gpu-node-000",
            job="4711",
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
        PinRow(pin="placement.node", values={"gpu-node-000": "0", "gpu-node-001": "1"}, declared=None),
    ]
    return tuple(rows)
