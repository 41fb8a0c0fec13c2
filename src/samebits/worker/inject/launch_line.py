"""Entry point that becomes a recipe's launch line, once a rank or once a node.

    python -m samebits.worker.inject.launch_line ARTIFACT

Fills in the placeholders, checks the inputs, and sets what capture needs in the environment. Standard library only:
nothing of this process is left when the line runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import samebits
from samebits.fingerprint.paths import Artifact
from samebits.spec.command import Command, filled
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe
from samebits.worker import rendezvous

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class StartError(ValueError):
    """A line that cannot be started."""


def main(folder: Path) -> None:
    """Replace this process by the launch line of the plan in the folder."""
    artifact = Artifact(folder)
    plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
    recipe = plan.recipe
    if not isinstance(recipe, CommandRecipe):
        raise StartError(f"{recipe.name}: workload is {recipe.workload}, must be command")
    check_inputs(recipe.command)
    if recipe.command.launcher == "ours":
        rendezvous.complete(os.environ)
    words = filled(line(recipe.command, plan), values(artifact, plan, os.environ))
    variables = environment(artifact, recipe.command, os.environ)
    for made in (artifact.own_checkpoints, artifact.own_logs):
        made.mkdir(parents=True, exist_ok=True)
    os.chdir(recipe.command.folder)
    program = shutil.which(words[0], path=variables.get("PATH"))
    if program is None:
        raise StartError(f"command: {words[0]!r} is not on PATH ({variables.get('PATH')}); give its path")
    sys.stdout.flush()
    os.execve(program, words, variables)


def line(command: Command, plan: Plan) -> str:
    """Return the arm's launch line. Raises StartError where it restores and the recipe has no line for that."""
    if plan.restore is None:
        return command.full
    if command.resumed is None:
        raise StartError(f"arm {plan.arm}: restores a checkpoint, and command.resumed is absent; add it to the recipe")
    return command.resumed


def values(artifact: Artifact, plan: Plan, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the value of every placeholder of a launch line."""
    each = int(variables["LOCAL_WORLD_SIZE"])
    return {
        "save": str(artifact.own_checkpoints),
        "checkpoint": plan.restore or "",
        "step": str(plan.first_step - 1),
        "stop": str(plan.last_step),
        "logs": str(artifact.own_logs),
        "world": str(plan.world),
        "nodes": str(plan.world // each),
        "node": variables.get("SLURM_NODEID", "0"),
        "ranks_per_node": str(each),
        "master_address": variables["MASTER_ADDR"],
        "master_port": variables["MASTER_PORT"],
    }


def environment(artifact: Artifact, command: Command, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the launch line: the recipe's variables and what switches capture on."""
    ranked = command.launcher == "ours"
    found = {name: value for name, value in inherited.items() if ranked or name not in _OF_A_RANK}
    found |= command.environment
    code = artifact.launch / "code"
    source = code if code.is_dir() else Path(samebits.__file__).parent.parent
    own = (str(source / "samebits" / "worker" / "inject" / "site"), str(source))
    rest = [entry for entry in found.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in own]
    return {
        **found,
        "PYTHONPATH": os.pathsep.join([*own, *rest]),
        # Behind all others: a line that says `python` or `torchrun` finds them where nothing else on PATH has them.
        "PATH": os.pathsep.join([*filter(None, [found.get("PATH")]), str(Path(sys.executable).parent)]),
        "SAMEBITS_INJECT": "1",
        "SAMEBITS_ARTIFACT": str(artifact.folder),
    }


def check_inputs(command: Command) -> None:
    """Check the inputs. Raises StartError for a missing file, or one whose digest differs from the recipe's."""
    for path, digest in command.inputs.items():
        file = Path(command.folder) / path
        try:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise StartError(f"command.inputs: {file}: {error.strerror}; give its path from command.folder") from error
        if found != digest:
            raise StartError(
                f"command.inputs: {file} has sha256 {found}, must be {digest}; put it back, or give the new digest"
            )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (StartError, rendezvous.RendezvousError) as error:
        sys.exit(f"samebits: {error}")
