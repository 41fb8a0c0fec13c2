"""`samebits run RECIPE ARM`: from a recipe's file to an exit status."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from samebits import arms, recipe
from samebits.artifact.folder import Artifact, write_whole
from samebits.launch.arm import CancelledError, run_arm
from samebits.launch.echo import Echo
from samebits.launch.job import LaunchError, Outcome
from samebits.launch.local import RANK_COMMAND
from samebits.plan import Plan
from samebits.sections import Control, Fault

BAD_INPUT = 2
TROUBLE = 4
"""Exit status where there is no finished arm."""


def run(
    path: Path,
    arm: str,
    results: Path,
    *,
    stamp: Path | None = None,
    log: Path | None = None,
    fault: Fault | None = None,
    command: Sequence[str] = RANK_COMMAND,
) -> int:
    """Runs the arm if need be. Returns 0 where it is finished, TROUBLE where not, BAD_INPUT for a bad recipe, 128 +
    signal where cancelled.

    stamp: written where it is finished; its content changes exactly when the arm has run again. log: gets all lines.
    fault: planted besides those of the arm. command: starts one rank.
    """
    try:
        echo = Echo(sys.stderr, log)
    except OSError as error:
        print(f"arm {arm}: {error.filename}: {error.strerror}; the log must be writable", file=sys.stderr)
        return TROUBLE
    try:
        outcome = _run(_plan(path, arm, results, fault), results, echo, command)
        if outcome.ok and stamp is not None:
            _stamp(stamp, outcome)
    except CancelledError as cancelled:
        echo.line(str(cancelled))
        return cancelled.status
    except recipe.RecipeError as error:
        echo.line(str(error))
        return BAD_INPUT
    except LaunchError as error:
        echo.line(str(error))
        return TROUBLE
    if not outcome.ok:
        echo.line(outcome.message)
        return TROUBLE
    return 0


def _plan(path: Path, arm: str, results: Path, fault: Fault | None) -> Plan:
    loaded = recipe.load(path)
    plan = arms.plan(loaded, arm, results)
    if fault is None:
        return plan
    # As of a control, so that `arms` fills in where it strikes.
    control = dataclasses.replace(loaded, gates=("control",), controls=(Control(name="planted", fault=fault),))
    return dataclasses.replace(plan, faults=(*plan.faults, *arms.plan(control, "control-planted", results).faults))


def _run(plan: Plan, results: Path, echo: Echo, command: Sequence[str]) -> Outcome:
    artifact = Artifact(arms.artifact_folder(results, plan.recipe.name, plan.arm))
    return run_arm(plan, artifact, echo=echo, command=command)


def _stamp(path: Path, outcome: Outcome) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{outcome.launch} ended {outcome.ended}\n".encode())
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written ({error.strerror}); the arm itself is finished") from error
