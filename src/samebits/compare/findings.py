"""Findings on disk: `RESULTS/NAME/localize/ARM/finding.json`, one for each arm that was hunted down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samebits.compare.results import FINDING_FORMAT, Finding
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.spec.plan import PlanError, decode

FILE = "finding.json"


def read_finding(path: Path) -> Finding | None:
    """None where there is none that this samebits reads."""
    try:
        return revived(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, PlanError):
        return None


def revived(body: Any) -> Finding:
    """From what `encode.plain` made of it. Raises PlanError or ValueError."""
    if not isinstance(body, dict) or body.get("format") != FINDING_FORMAT:
        raise ValueError(f"not a finding of format {FINDING_FORMAT}")
    return decode(Finding, body)


def standing(results: Path) -> list[Finding]:
    """results: of one recipe. Those whose two arms are still the runs that they speak of, by the candidate's name."""
    found = [read_finding(path) for path in sorted(results.glob(f"localize/*/{FILE}"))]
    return [finding for finding in found if finding is not None and _stands(finding, results)]


def _stands(finding: Finding, results: Path) -> bool:
    arms = (finding.reference, finding.candidate)
    try:
        launches = tuple(read_manifest(Artifact(results / "arms" / arm)).launch for arm in arms)
    except ArtifactError:
        return False
    return launches == finding.launches


def exit_status(finding: Finding) -> int:
    """1 where the difference is there, 3 where it did not come back or cannot be traced."""
    return 1 if finding.status in ("found", "unnamed") else 3
