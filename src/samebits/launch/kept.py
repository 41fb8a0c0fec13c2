"""Whether what lies in an arm's folder can stand, or the arm must run."""

from __future__ import annotations

from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.ranks import ranks_text
from samebits.launch import traces
from samebits.launch.job_state import read_outcome, read_record
from samebits.plan import arms
from samebits.spec.plan import Plan, PlanError


def reasons_to_run(plan: Plan, artifact: Artifact, place: str) -> list[str]:
    """Why what lies in the folder cannot stand for this plan, a line each; empty: it can. place: where it would run."""
    outcome, record = read_outcome(artifact), read_record(artifact)
    if outcome is None or (record is not None and record.launch != outcome.launch):
        return ["its last start did not finish" if artifact.plan.exists() else "it has not run yet"]
    if not outcome.ok:
        return [f"its last start failed: {outcome.message.splitlines()[0]}"]
    return plan_changes(plan, artifact) or _losses(plan, artifact) or surrounding_changes(plan, artifact, place)


def launch_restored(plan: Plan) -> str | None:
    """Launch id of the arm whose checkpoint the plan starts from."""
    if plan.restore is None:
        return None
    outcome = read_outcome(Artifact(Path(plan.restore).parent.parent))
    return outcome.launch if outcome else None


def _launch_of_origin(plan: Plan) -> str | None:
    """Of the arm that it restores from, as it runs or is about to run in the same job."""
    if plan.restore is None:
        return None
    record = read_record(Artifact(Path(plan.restore).parent.parent))
    return record.launch if record else None


def plan_changes(plan: Plan, artifact: Artifact) -> list[str]:
    try:
        return arms.explain_change(Plan.from_json(artifact.plan.read_text(encoding="utf-8")), plan)
    except (OSError, PlanError) as error:
        return [f"its plan cannot be read: {error}"]


def _losses(plan: Plan, artifact: Artifact) -> list[str]:
    ranks = traces.missing(artifact, plan.world)
    step = plan.recipe.checkpoint.resume_from
    return [
        *([f"its fingerprint files of ranks {ranks_text(ranks)} are gone"] if ranks else []),
        *(
            [f"its checkpoint of step {step} is gone"]
            if plan.keep_checkpoints and not arms.checkpoint(plan.recipe, artifact).exists()
            else []
        ),
    ]


def surrounding_changes(plan: Plan, artifact: Artifact, place: str) -> list[str]:
    record = read_record(artifact)
    if record is None or record.key != arms.key(plan):
        return ["the software, or samebits itself, is not what it ran with"]
    if record.place != place:
        return [f"it ran on {record.place}, and is to run on {place}"]
    if record.restored not in (launch_restored(plan), _launch_of_origin(plan)):
        return [f"arm {arms.needs(plan)[0]} has run again, and with it the checkpoint that this arm starts from"]
    return []
