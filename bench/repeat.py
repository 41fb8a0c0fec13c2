"""No false fail: one recipe again and again, one run fingerprint: `python bench/repeat.py [--runs 50]`.

Two ranks, four steps, MoE over EP 2 with MTP, distributed optimizer, bf16 and dropout; each run in fresh processes
through the same launcher as the pipeline. Exit status 1 where two runs differ.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import io
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

from samebits.compare.collect import collect
from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.run_arms import run_arms
from samebits.plan import arms
from samebits.recipe import load
from samebits.spec.questions import Capture
from samebits.spec.sections import Checkpoint, Recipe

SMOKE = Path(__file__).resolve().parent.parent / "recipes" / "smoke.yaml"


def small() -> Recipe:
    """The smoke recipe with half of its width, a quarter of its length and four steps, without a checkpoint."""
    smoke = load.load(SMOKE)
    model = dataclasses.replace(smoke.model, hidden=32, ffn_hidden=64, sequence_length=16)
    return dataclasses.replace(
        smoke,
        name="repeat",
        model=model,
        steps=4,
        checkpoint=Checkpoint(every=100, resume_from=100),
        capture=Capture(rung="state"),
    )


def fingerprint(number: int, results: Path) -> str:
    """Runs the arm once and returns its run fingerprint."""
    plan = arms.plan(small(), "reference", results)
    artifact = Artifact(results / str(number))
    said = io.StringIO()
    outcome = run_arms([(plan, artifact)], echo=Echo(said))
    if not outcome.ok:
        sys.exit(f"run {number}: {outcome.message}\n{said.getvalue()}")
    return collect(artifact.folder, deep=True).run_fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "repeat.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        found = collections.Counter(fingerprint(number, Path(name)) for number in range(arguments.runs))
    result = {
        "runs": arguments.runs,
        "fingerprints": dict(found),
        "seconds": round(time.monotonic() - started, 1),
        "machine": platform.processor() or platform.machine(),
        "date": datetime.date.today().isoformat(),
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{arguments.runs} runs, {len(found)} run fingerprint(s), {result['seconds']} s: {', '.join(found)}")
    sys.exit(len(found) != 1)


if __name__ == "__main__":
    main()
