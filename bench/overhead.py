"""Whether what measures the cost of determinism can be believed: `python bench/overhead.py [--json FILE]`.

Real runs of a CPU recipe, each experiment in a results folder of its own: baseline against itself, six times, must
contain 0 in its interval at least five times; baseline against itself slowed down by 2 and by 5 % must contain that.
Blocks and steps are fixed here, before anything is measured. Twenty minutes on a quiet machine with 2 cores; exit
status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "overhead.json"
RECIPE = ROOT / "recipes" / "overhead.yaml"
SHORT = {"blocks": 4, "steps": 20, "warm_up": 4}
REPETITIONS = 6
SLOWDOWNS = (2.0, 5.0)
MUST_CONTAIN = 5


@dataclass(frozen=True)
class Found:
    """Percent. planted: true cost. low, high: of the 95 % interval. spread: of the block ratios. seconds: a step."""

    planted: float
    percent: float
    low: float
    high: float
    detectable: float
    spread: float
    seconds: float
    drift: float
    load: float

    @property
    def contains(self) -> bool:
        return self.low <= self.planted <= self.high


def recipe(folder: Path) -> Path:
    """The recipe with short experiments."""
    body: dict[str, Any] = yaml.safe_load(RECIPE.read_text().replace("1e-", "1.0e-"))
    body["overhead"] |= SHORT
    path = folder / RECIPE.name
    path.write_text(yaml.safe_dump(body))
    return path


def measure(path: Path, planted: float) -> Found:
    """One experiment in fresh processes. Raises CalledProcessError where a run fails."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as results:
        verb = [str(Path(sys.executable).parent / "samebits"), "overhead", str(path), "--null", "--json"]
        command = [*verb, "--results", results, "--slowdown", str(planted)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    findings = json.loads(done.stdout)["findings"]
    median = findings["effects"][0]["median"]
    return Found(
        planted=planted,
        percent=median["percent"],
        **{name: median["interval"][name] for name in ("low", "high", "detectable", "spread")},
        seconds=findings["settings"][0]["median"],
        drift=findings["checks"]["drift"],
        load=load,
    )


def measured(repetitions: int) -> Iterator[Found]:
    with tempfile.TemporaryDirectory() as folder:
        path = recipe(Path(folder))
        for planted in (*[0.0] * repetitions, *SLOWDOWNS):
            found = measure(path, planted)
            inside = "inside" if found.contains else "OUTSIDE"
            print(
                f"planted {planted:g} %: {found.percent:+.2f} % ({found.low:+.2f} to {found.high:+.2f} %), {inside}; "
                f"step {1e3 * found.seconds:.1f} ms, drift {found.drift:+.1f} %, load {found.load:.1f}",
                flush=True,
            )
            yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of baseline against itself")
    given = parser.parse_args()
    found = list(measured(given.repetitions))
    null = [one.contains for one in found if not one.planted]
    slowed = [one.contains for one in found if one.planted]
    held = sum(null) >= MUST_CONTAIN * len(null) / REPETITIONS and all(slowed)
    print(
        f"{sum(null)} of {len(null)} contain 0, {sum(slowed)} of {len(slowed)} the slowdown: "
        f"{'held' if held else 'MISSED'}"
    )
    body = {
        "experiment": SHORT,
        "found": [{**asdict(one), "contains": one.contains} for one in found],
        "held": held,
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "date": datetime.date.today().isoformat(),
    }
    given.json.write_text(json.dumps(body, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
