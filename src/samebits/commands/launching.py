"""`samebits run RECIPE ARM` and `samebits overhead RECIPE`: from a recipe's file to an exit status."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from samebits.fingerprint.paths import Artifact, write_whole
from samebits.launch.arm import CancelledError, run_arm
from samebits.launch.console import Echo
from samebits.launch.job_state import LaunchError, Outcome
from samebits.launch.slurm import SlurmExecutor
from samebits.launch.submit import LocalExecutor
from samebits.launch.whole import run_whole
from samebits.plan import arms, overhead_runs
from samebits.recipe import determinism
from samebits.recipe import load as recipe
from samebits.recipe.cluster import ClusterError, load
from samebits.recipe.image import ImageError
from samebits.spec.plan import Plan
from samebits.spec.questions import Control, Fault
from samebits.spec.sections import Recipe

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
    cluster: Path | None = None,
    command: Sequence[str] | None = None,
) -> int:
    """Runs the arm if need be. Returns 0 where it is finished, TROUBLE where not, BAD_INPUT for a bad recipe, 128 +
    signal where cancelled.

    stamp: written where it is finished; its content changes exactly when the arm has run again. log: gets all lines.
    fault: planted besides those of the arm. cluster: the cluster file; None: on this machine. command: starts one rank.
    """

    def one(echo: Echo) -> Outcome:
        return _run(_wanted(path, arm, results, fault), results, cluster, command, echo)

    return _told(one, f"arm {arm}", stamp, log)


def _told(make: Callable[[Echo], Outcome], what: str, stamp: Path | None, log: Path | None) -> int:
    try:
        echo = Echo(sys.stderr, log)
    except OSError as error:
        print(f"{what}: {error.filename}: {error.strerror}; the log must be writable", file=sys.stderr)
        return TROUBLE
    try:
        outcome = make(echo)
        if outcome.ok and stamp is not None:
            _stamp(stamp, outcome)
    except CancelledError as cancelled:
        echo.line(str(cancelled))
        return cancelled.status
    except (recipe.RecipeError, ClusterError, ImageError) as error:
        echo.line(str(error))
        return BAD_INPUT
    except LaunchError as error:
        echo.line(str(error))
        return TROUBLE
    if not outcome.ok:
        echo.line(outcome.message)
        return TROUBLE
    return 0


def run_experiment(
    path: Path,
    plans: Callable[[Recipe], Sequence[Plan]],
    results: Path,
    *,
    stamp: Path | None = None,
    log: Path | None = None,
    cluster: Path | None = None,
    again: bool = False,
    command: Sequence[str] | None = None,
) -> int:
    """Makes all runs of an experiment of the recipe, if need be; the rest is as of `run`. plans: its runs. again: they
    are made though all stand."""

    def experiment(echo: Echo) -> Outcome:
        wanted = list(plans(recipe.load(path)))
        _warn(wanted[0], echo)
        timing = wanted[0].timing
        if timing is None:
            raise LaunchError(f"arm {wanted[0].arm}: measures no time, must be a run of an experiment")
        folder = overhead_runs.folder(results, wanted[0].recipe.name, timing.experiment)
        executor = LocalExecutor() if cluster is None else SlurmExecutor(load(cluster))
        return run_whole(wanted, folder, echo=echo, executor=executor, command=command, again=again)

    return _told(experiment, path.stem, stamp, log)


def _wanted(path: Path, arm: str, results: Path, fault: Fault | None) -> list[Plan]:
    """The arm's plan, and behind it those of all arms that are to run in one allocation with it, itself among them."""
    loaded = recipe.load(path)
    plan = arms.plan(loaded, arm, results)
    if fault is None:
        together = loaded.cluster is not None and loaded.cluster.placement == "same-nodes"
        return [plan, *(arms.plans(loaded, results) if together else [])]
    # As of a control, so that `arms` fills in where it strikes.
    control = dataclasses.replace(loaded, gates=("control",), controls=(Control(name="planted", fault=fault),))
    planted = arms.plan(control, "control-planted", results).faults
    return [dataclasses.replace(plan, faults=(*plan.faults, *planted))]


def _run(wanted: list[Plan], results: Path, cluster: Path | None, command: Sequence[str] | None, echo: Echo) -> Outcome:
    plan, *together = wanted
    _warn(plan, echo)
    artifact = Artifact(arms.artifact_folder(results, plan.recipe.name, plan.arm))
    if cluster is None:
        return run_arm(plan, artifact, echo=echo, command=command)
    return run_arm(plan, artifact, echo=echo, executor=SlurmExecutor(load(cluster)), command=command, together=together)


def _warn(plan: Plan, echo: Echo) -> None:
    for warning in determinism.warnings(determinism.environment(plan.recipe.determinism)):
        echo.line(f"warning: {warning}")


def _stamp(path: Path, outcome: Outcome) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{outcome.launch} ended {outcome.ended}\n".encode())
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written ({error.strerror}); the arm itself is finished") from error
