"""`samebits run RECIPE ARM` and `samebits overhead RECIPE`: from a recipe's file to an exit status."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from samebits.commands.status import BAD_INPUT, TROUBLE
from samebits.fingerprint.paths import Artifact, write_whole
from samebits.launch.console import Echo
from samebits.launch.job_state import ArmOutcome, LaunchError
from samebits.launch.local import LocalExecutor
from samebits.launch.run_arms import CancelledError, PlannedArm, run_arms
from samebits.launch.slurm import SlurmExecutor
from samebits.plan import arms, overhead_runs
from samebits.recipe import determinism, planting
from samebits.recipe import load as recipe
from samebits.recipe.cluster import ClusterError, load
from samebits.recipe.image import ImageError
from samebits.spec.plan import Plan
from samebits.spec.questions import Control, Fault
from samebits.spec.sections import Recipe


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
    """Run an arm if need be.

    stamp: written where the arm is finished; its content changes exactly when it has run again. log: gets all lines.
    fault: planted besides those of the arm. cluster: the cluster file; None: on this machine. command: starts one rank.

    Returns 0 where the arm is finished, TROUBLE where not, BAD_INPUT for a bad recipe, 128 + signal where cancelled.
    """

    def launch(echo: Echo) -> ArmOutcome:
        loaded = recipe.load(path)
        plan = arms.plan(loaded, arm, results)
        if fault is not None:
            # As the fault of a control, so that `arms` fills in where it strikes.
            control = dataclasses.replace(loaded, gates=("control",), controls=(Control(name="planted", fault=fault),))
            planting.check(loaded, fault)
            planted = arms.plan(control, "control-planted", results).faults
            plan = dataclasses.replace(plan, faults=(*plan.faults, *planted))
        share = cluster is not None and loaded.cluster is not None and loaded.cluster.placement == "same-nodes"
        beside = arms.plans(loaded, results) if share and fault is None else []

        def placed(plan: Plan) -> PlannedArm:
            return plan, Artifact(arms.artifact_folder(results, loaded.name, plan.arm))

        return _launch([placed(plan)], echo, cluster, command, allocation=[placed(other) for other in beside])

    return _exit_status(launch, f"arm {arm}", stamp, log)


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
    """Make all runs of an experiment of a recipe if need be; further parameters and the result are those of `run`.

    plans: returns the experiment's runs. again: they are made though all stand.
    """

    def launch(echo: Echo) -> ArmOutcome:
        wanted = list(plans(recipe.load(path)))
        timing = wanted[0].timing
        if timing is None:
            raise LaunchError(f"arm {wanted[0].arm}: measures no time, must be a run of an experiment")
        folder = overhead_runs.folder(results, wanted[0].recipe.name, timing.experiment)
        return _launch([(plan, Artifact(folder / plan.arm)) for plan in wanted], echo, cluster, command, again=again)

    return _exit_status(launch, path.stem, stamp, log)


def _launch(
    wanted: Sequence[PlannedArm],
    echo: Echo,
    cluster: Path | None,
    command: Sequence[str] | None,
    *,
    allocation: Sequence[PlannedArm] = (),
    again: bool = False,
) -> ArmOutcome:
    """Run arms on this machine, or on the cluster of a cluster file; warn of settings of determinism first."""
    for warning in determinism.warnings(determinism.environment(wanted[0][0].recipe.determinism)):
        echo.line(f"warning: {warning}")
    executor = LocalExecutor() if cluster is None else SlurmExecutor(load(cluster))
    return run_arms(wanted, echo=echo, executor=executor, command=command, allocation=allocation, again=again)


def _exit_status(launch: Callable[[Echo], ArmOutcome], what: str, stamp: Path | None, log: Path | None) -> int:
    """Launch, say what went wrong, and stamp what is finished; return the exit status."""
    try:
        echo = Echo(sys.stderr, log)
    except OSError as error:
        print(f"{what}: {error.filename}: {error.strerror}; the log must be writable", file=sys.stderr)
        return TROUBLE
    try:
        outcome = launch(echo)
        if outcome.ok and stamp is not None:
            _write_stamp(stamp, outcome)
    except CancelledError as cancelled:
        message, status = str(cancelled), cancelled.status
    except (recipe.RecipeError, ClusterError, ImageError) as error:
        message, status = str(error), BAD_INPUT
    except LaunchError as error:
        message, status = str(error), TROUBLE
    else:
        if outcome.ok:
            return 0
        message, status = outcome.message, TROUBLE
    echo.line(message)
    return status


def _write_stamp(path: Path, outcome: ArmOutcome) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{outcome.launch} ended {outcome.ended}\n".encode())
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written ({error.strerror}); the arm itself is finished") from error
