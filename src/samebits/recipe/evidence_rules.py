"""Rules on names, capture, gates, planted faults, waivers and pins."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from samebits.recipe.problem import MISSING, Problem, listed
from samebits.spec.questions import Fault, FaultKind
from samebits.spec.sections import MegatronRecipe, Recipe

RESTORE_FAULTS: frozenset[FaultKind] = frozenset(("moment-drop", "rng-skip", "position-skip", "upstream"))
"""They strike when a checkpoint is restored."""

EVERY_RANK: frozenset[FaultKind] = frozenset(("nan-loss", "upstream"))
"""They strike on all ranks."""

_AT_MODULES: tuple[FaultKind, ...] = (
    *("reduction-order", "scatter-order", "uninitialised", "combine-order", "random-split", "wrong-stream", "branch"),
    *("hidden-write", "hidden-call", "unstable-gemm", "backward-order"),
)
BY_CHANCE: frozenset[FaultKind] = frozenset(
    (*_AT_MODULES, "collective-output", "message", "hash-shuffle", "update-order")
)
"""Another result in every run (samebits.worker.disorder)."""

TARGETS: dict[FaultKind, str] = {
    "ulp": "a parameter",
    "gradient": "a parameter",
    "loss-logging": "a metric",
    "moment-drop": "a parameter",
    "rng-skip": "an RNG stream",
    "upstream": "an upstream workaround",
    **dict.fromkeys(_AT_MODULES, "a module"),
    "hash-shuffle": "`text`, to shuffle by what PYTHONHASHSEED decides",
}
"""What `target` names; the other kinds take none."""

WAIVER_KINDS = ("buffer", "optimizer", "position", "rng", "scheduler")
"""What training computes from (batches, parameters) and what it computes (losses, gradients) cannot be waived."""

KNOWN_PINS = (
    "apex",
    "causal-conv1d",
    "cuda",
    "cudnn",
    "driver",
    "flash-attn",
    "libc",
    "mamba-ssm",
    "megatron-core",
    "nccl",
    "numpy",
    "nvidia-modelopt",
    "psutil",
    "python",
    "samebits",
    "torch",
    "torch-build",
    "transformer-engine",
    "transformer-engine-torch",
    "triton",
)
"""The software that a rank observes (samebits.worker.pins)."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def name(recipe: Recipe) -> Iterator[Problem]:
    yield from _unsafe("name", recipe.name)


def windows(recipe: Recipe) -> Iterator[Problem]:
    limits = recipe.capture.windows
    if limits is not None and not limits:
        yield Problem("capture.windows", [], "must hold an interval", "delete it to capture all steps")
    for index, (low, high) in enumerate(limits or ()):
        if not 1 <= low <= high <= recipe.steps:
            rule = f"must be [first, last] with 1 <= first <= last <= steps ({recipe.steps})"
            way_out = f"use [{min(max(low, 1), recipe.steps)}, {recipe.steps}], for example"
            yield Problem(f"capture.windows[{index}]", [low, high], rule, way_out)


def capture_ranks(recipe: Recipe) -> Iterator[Problem]:
    ranks, world = recipe.capture.ranks, recipe.parallel.world
    if ranks is not None and not ranks:
        yield Problem("capture.ranks", [], "must hold a rank", "delete it to capture all ranks")
    for index, rank in enumerate(ranks or ()):
        if not 0 <= rank < world:
            rule = f"must be from 0 to {world - 1} (parallel.world is {world})"
            yield Problem(f"capture.ranks[{index}]", rank, rule, f"use {world - 1} for the last rank")
        elif rank in (ranks or ())[:index]:
            yield Problem(f"capture.ranks[{index}]", rank, "must be given once", "delete it")


def gates(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.gates:
        rule = "must hold a gate: without one there is no verdict"
        yield Problem("gates", [], rule, "use [repeatability, resume, control, observer]")
    for index, gate in enumerate(recipe.gates):
        if gate in recipe.gates[:index]:
            yield Problem(f"gates[{index}]", gate, "must be given once", "delete it")


def evidence_gate(recipe: Recipe) -> Iterator[Problem]:
    if "control" in recipe.gates and not {"repeatability", "resume", "observer"} & set(recipe.gates):
        rule = "must hold another gate on bits beside control: controls show that one would find a fault, and no more"
        yield Problem("gates", list(recipe.gates), rule, "add repeatability, resume or observer")


def overhead_gate(recipe: Recipe) -> Iterator[Problem]:
    if "overhead" in recipe.gates and recipe.overhead is None:
        rule = "must be there where gates has overhead: it says how time is measured"
        way_out = "add it with limit_percent, blocks, steps and warm_up, or take overhead out of gates"
        yield Problem("overhead", MISSING, rule, way_out)
    if recipe.overhead and round(recipe.overhead.limit_percent, 2) != recipe.overhead.limit_percent:
        rule = "must have two decimals at most: reports write intervals with no more"
        way_out = f"use {round(recipe.overhead.limit_percent, 2):g}"
        yield Problem("overhead.limit_percent", recipe.overhead.limit_percent, rule, way_out)
    also = recipe.overhead.also if recipe.overhead else ()
    for index, further in enumerate(also):
        if further in also[:index]:
            yield Problem(f"overhead.also[{index}]", further, "must be given once", "delete it")


def control_gate(recipe: Recipe) -> Iterator[Problem]:
    if "control" in recipe.gates and not recipe.controls:
        rule = "must hold a control where gates has control"
        yield Problem("controls", [], rule, "delete the key to get the default controls, or take control out of gates")


def control_names(recipe: Recipe) -> Iterator[Problem]:
    names = [control.name for control in recipe.controls]
    for index, control in enumerate(names):
        yield from _unsafe(f"controls[{index}].name", control)
        if control in names[:index]:
            rule = f"must be unique, controls[{names.index(control)}] has it"
            yield Problem(f"controls[{index}].name", control, rule, f"use {control}-2, for example")


def fault_rank(recipe: Recipe) -> Iterator[Problem]:
    for key, fault in _faults(recipe, "rank"):
        if fault.rank is None:
            continue
        first, world = _first_rank(recipe, fault), recipe.parallel.world
        if fault.kind in EVERY_RANK:
            yield Problem(key, fault.rank, f"must be left out: {fault.kind} strikes every rank", "delete it")
        elif not first <= fault.rank < world:
            stage = ", the last pipeline stage, which computes the loss" if first else ""
            rule = f"must be from {first} to {world - 1}{stage} (parallel.world is {world})"
            yield Problem(key, fault.rank, rule, f"use {world - 1}, or leave it out (the last rank)")


def fault_step(recipe: Recipe) -> Iterator[Problem]:
    for key, fault in _faults(recipe, "step"):
        if fault.step is None:
            continue
        if fault.kind in RESTORE_FAULTS:
            yield Problem(key, fault.step, f"must be left out: {fault.kind} strikes at the restore", "delete it")
        elif fault.step > recipe.steps:
            rule = f"must be at most steps ({recipe.steps})"
            yield Problem(key, fault.step, rule, "leave it out (the step after checkpoint.resume_from)")


def fault_target(recipe: Recipe) -> Iterator[Problem]:
    """Names are compared with what a rank has in the run."""
    for key, fault in _faults(recipe, "target"):
        if fault.target is not None and fault.kind not in TARGETS:
            yield Problem(key, fault.target, f"must be left out: {fault.kind} takes no target", "delete it")
        elif fault.target is not None and not fault.target.strip():
            rule = f"must name {TARGETS[fault.kind]}"
            yield Problem(key, fault.target, rule, "leave it out (the first one of the rank)")


def fault_chance(recipe: Recipe) -> Iterator[Problem]:
    """What strikes otherwise in every run shows first where a rung below `op` does not look."""
    for key, fault in _faults(recipe, "kind"):
        if fault.kind in BY_CHANCE:
            rule = "must do the same in every run: a control is to be found at exactly its place"
            yield Problem(key, fault.kind, rule, "use ulp, for example; `samebits run --plant` plants the others")
    for key, fault in _faults(recipe, "probability"):
        if fault.probability != 1.0:
            rule = "must be 1.0 in a control: it is to be found for sure"
            yield Problem(key, fault.probability, rule, "delete it")


def fault_batch(recipe: MegatronRecipe) -> Iterator[Problem]:
    for key, fault in _faults(recipe, "kind"):
        if fault.kind == "batch-swap" and recipe.data.micro_batch < 2:
            rule = f"must not be batch-swap where data.micro_batch is {recipe.data.micro_batch}: it swaps two samples"
            yield Problem(key, fault.kind, rule, "use data.micro_batch of 2 or more, or another kind")


def waivers(recipe: Recipe) -> Iterator[Problem]:
    for index, waiver in enumerate(recipe.waivers):
        kind, colon, item = waiver.item.partition(":")
        if kind not in WAIVER_KINDS or not colon or not item.strip():
            rule = f"must be KIND:NAME, KIND one of {listed(list(WAIVER_KINDS))}"
            near = difflib.get_close_matches(kind, WAIVER_KINDS, n=1)
            way_out = f"use {near[0] if near else 'rng'}:{item or 'NAME'}"
            yield Problem(f"waivers[{index}].item", waiver.item, rule, way_out)
        elif any(mark in item for mark in "*?["):
            rule = "must name one item, without *, ? or [: a pattern could cover all that was compared"
            yield Problem(f"waivers[{index}].item", waiver.item, rule, "name the item itself, one waiver each")
        if not waiver.reason.strip():
            rule = "must say why the difference may stand: the report prints it"
            yield Problem(f"waivers[{index}].reason", waiver.reason, rule, "write a reason, or delete the waiver")


def pins(recipe: Recipe) -> Iterator[Problem]:
    for pin, version in recipe.pins.items():
        if pin not in KNOWN_PINS:
            near = difflib.get_close_matches(pin, KNOWN_PINS, n=1)
            way_out = f"did you mean {near[0]}?" if near else "delete it"
            yield Problem(f"pins.{pin}", version, f"must be a known pin: {listed(list(KNOWN_PINS))}", way_out)
        elif not version.strip():
            yield Problem(f"pins.{pin}", version, "must be a version", "give the version, or delete it")


def _unsafe(key: str, text: str) -> Iterator[Problem]:
    if not _SAFE_NAME.fullmatch(text):
        cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:40]
        rule = "must be 1 to 100 letters, digits, '-', '_' or '.', the first not '.': it names a folder"
        yield Problem(key, text, rule, f"use {cleaned or 'another name'}")


def _faults(recipe: Recipe, key: str) -> Iterator[tuple[str, Fault]]:
    for index, control in enumerate(recipe.controls):
        yield f"controls[{index}].fault.{key}", control.fault


def _first_rank(recipe: Recipe, fault: Fault) -> int:
    """Megatron gives the last pipeline stage, which alone logs losses, the last ranks (order tp-cp-ep-dp-pp)."""
    world = recipe.parallel.world
    logs_loss = fault.kind == "loss-logging" and fault.target is None
    return world - world // recipe.parallel.pipeline if logs_loss else 0
