"""Rules on a launch line of one's own: what it must say, and what only the built-in trainer can do."""

from __future__ import annotations

import itertools
import re
import shlex
import string
from collections.abc import Callable, Iterator

from samebits.recipe import determinism
from samebits.recipe.evidence_rules import RESTORE_FAULTS
from samebits.recipe.problem import MISSING, Problem, listed
from samebits.spec.command import FAULTS, PLACEHOLDERS
from samebits.spec.sections import CommandRecipe

_SHELL = frozenset(("|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"))
_ISOLATED = re.compile(r"-[A-Za-z]*[IES][A-Za-z]*")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_RESERVED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def lines(recipe: CommandRecipe) -> Iterator[tuple[str, str]]:
    yield "command.full", recipe.command.full
    if recipe.command.resumed is not None:
        yield "command.resumed", recipe.command.resumed


def words(line: str) -> list[str]:
    """As a shell splits them; empty where a quote is not closed, which a rule of its own tells."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def text(recipe: CommandRecipe) -> Iterator[Problem]:
    for key, line in lines(recipe):
        if not (found := words(line)):
            yield Problem(key, line, "must hold words, every quote closed", "write the line as in a shell")
        plain = [
            word for word in found if word in _SHELL or word.startswith(("$", "`")) or "$(" in word or "${" in word
        ]
        for word in plain[:1]:
            rule = f"must hold no {word!r}: no shell runs it, so nothing is piped, redirected or expanded"
            yield Problem(key, line, rule, "put it in a script, and write `bash SCRIPT` here")


def placeholders(recipe: CommandRecipe) -> Iterator[Problem]:
    for key, line in lines(recipe):
        try:
            named = [name for _, name, _, _ in string.Formatter().parse(line) if name is not None]
        except ValueError:
            yield Problem(key, line, "must close its braces", "write {{ and }} for braces of its own")
            continue
        for name in named:
            if name not in PLACEHOLDERS:
                rule = f"must hold placeholders out of {listed([f'{{{known}}}' for known in PLACEHOLDERS])}"
                yield Problem(key, f"{{{name}}}", rule, f"use one of them, or write {{{{{name}}}}} for braces")
            elif name == "checkpoint" and key == "command.full":
                rule = "must not hold {checkpoint}: an arm from scratch has none"
                yield Problem(key, line, rule, "use {save} for the folder that checkpoints are saved to")


def restoring(recipe: CommandRecipe) -> Iterator[Problem]:
    wanted = _restores(recipe)
    if not wanted:
        return
    if recipe.command.resumed is None:
        rule = f"must be there for {wanted}, which starts from a checkpoint"
        yield Problem("command.resumed", MISSING, rule, "add the line of a resumed run, with {checkpoint} and {step}")
    elif "{checkpoint}" not in recipe.command.resumed:
        rule = f"must hold {{checkpoint}} for {wanted}: the folder that the reference saved to"
        yield Problem("command.resumed", recipe.command.resumed, rule, "name it where the line loads from")
    for key, line in lines(recipe):
        if "{save}" not in line:
            rule = "must hold {save}: every arm saves to a folder of its own"
            yield Problem(key, line, rule, "name it where the line saves to")


def _restores(recipe: CommandRecipe) -> str:
    if "resume" in recipe.gates:
        return "gate resume"
    restored = [control.name for control in recipe.controls if control.fault.kind in RESTORE_FAULTS]
    return f"control {restored[0]}" if restored and "control" in recipe.gates else ""


def isolated(recipe: CommandRecipe) -> Iterator[Problem]:
    """`python -I`, `-E` and `-S` read neither PYTHONPATH nor sitecustomize."""
    for key, line in lines(recipe):
        found = words(line)
        for before, word in itertools.pairwise(found):
            if _PYTHON.fullmatch(before) and _ISOLATED.fullmatch(word):
                rule = f"must not start Python with {word}: it reads no PYTHONPATH then, and nothing is captured"
                yield Problem(key, line, rule, "leave I, E and S out")


def launcher(recipe: CommandRecipe) -> Iterator[Problem]:
    for key, line in lines(recipe):
        found = words(line)
        runs = any(word.rpartition("/")[2] in ("torchrun", "torch.distributed.run") for word in found)
        if recipe.command.launcher == "torchrun":
            yield from _torchrun(recipe, key, found, runs)
        elif recipe.command.launcher == "ours" and runs:
            rule = "must not run torchrun with launcher ours: each rank would start ranks"
            yield Problem(key, line, rule, "set command.launcher to torchrun")


def _torchrun(recipe: CommandRecipe, key: str, found: list[str], runs: bool) -> Iterator[Problem]:
    if not runs:
        rule = "must run torchrun (or `python -m torch.distributed.run`) with launcher torchrun"
        yield Problem(key, " ".join(found), rule, "set command.launcher to own, if a script does")
        return
    each = _option(found, "nproc-per-node")
    known = _ranks_of_node(recipe)
    if each not in ("{ranks_per_node}", str(known)):
        rule = f"must be given, as {{ranks_per_node}}{f' or {known}' if known else ''}"
        yield Problem(f"{key} --nproc-per-node", each or MISSING, rule, "write --nproc-per-node {ranks_per_node}")
    if _option(found, "max-restarts") not in (None, "0"):
        rule = "must be 0 or left out: an arm must be uninterrupted"
        yield Problem(f"{key} --max-restarts", _option(found, "max-restarts"), rule, "leave it out")
    if recipe.cluster and recipe.cluster.nodes > 1 and not any("{master_address}" in word for word in found):
        rule = "must hold {master_address} on several nodes, else each node trains by itself"
        way_out = "add --nnodes {nodes} --node-rank {node} --master-addr {master_address} --master-port {master_port}"
        yield Problem(key, " ".join(found), rule, way_out)


def _option(found: list[str], name: str) -> str | None:
    """Value of an option, which torchrun takes with dashes or underscores, after a space or `=`."""
    for index, word in enumerate(found):
        own, equals, value = word.partition("=")
        if own.startswith("--") and own[2:].replace("_", "-") == name:
            return value if equals else "".join(found[index + 1 : index + 2])
    return None


def _ranks_of_node(recipe: CommandRecipe) -> int | None:
    """Of a recipe without cluster the machine at hand runs all ranks, unless a cluster file says otherwise."""
    return recipe.cluster.ranks_per_node if recipe.cluster else None


def controls(recipe: CommandRecipe) -> Iterator[Problem]:
    for index, control in enumerate(recipe.controls):
        if control.fault.kind not in FAULTS:
            rule = f"must be {listed(list(FAULTS))} with workload command: others need the built-in trainer"
            yield Problem(f"controls[{index}].fault.kind", control.fault.kind, rule, "use one of them")


def overhead(recipe: CommandRecipe) -> Iterator[Problem]:
    """What a line sets by itself cannot be relaxed from outside; a baseline with less than half of determinism off
    would understate the cost."""
    way_out = "take it out; measure a recipe of workload megatron-core"
    if recipe.overhead is not None:
        yield Problem("overhead", "given", "must be left out with workload command, whose baseline is unknown", way_out)
    if "overhead" in recipe.gates:
        rule = "must not hold overhead with workload command, whose baseline is unknown"
        yield Problem("gates", list(recipe.gates), rule, way_out)


def inputs(recipe: CommandRecipe) -> Iterator[Problem]:
    for path, digest in recipe.command.inputs.items():
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            rule = "must be 64 hexadecimal digits in lower case"
            yield Problem(f"command.inputs.{path}", digest, rule, f"paste what `sha256sum {path}` prints")


def environment(recipe: CommandRecipe) -> Iterator[Problem]:
    of_table = {variable.name for variable in determinism.ACCEPTED} | {*determinism.RECORDED}
    for name, value in recipe.command.environment.items():
        key = f"command.environment.{name}"
        if name.startswith("SAMEBITS_") or name in _RESERVED:
            yield Problem(key, value, "must be left out: the launcher sets it", "delete it")
        elif name in of_table or name.startswith(determinism.RECORDED_PREFIX):
            yield Problem(key, value, "must stand in determinism.environment: it bears on bits", "move it there")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem(key, value, "must be named by letters, digits and _", "mend the name")


RULES: dict[str, Callable[[CommandRecipe], Iterator[Problem]]] = {
    "text": text,
    "placeholders": placeholders,
    "restoring": restoring,
    "isolated": isolated,
    "launcher": launcher,
    "controls": controls,
    "overhead": overhead,
    "inputs": inputs,
    "environment": environment,
}
