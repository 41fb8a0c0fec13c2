"""What comparing costs at scale: `python bench/compare.py [--ranks N] [--steps N] [--json FILE]`.

Synthetic artifacts: records of a few sites, real files, real manifests. Four comparisons: equal arms (tables only),
the same with their tables repeated to 200 blocks and more, one step that differs on one rank, and one that differs on
every rank. Then two steps of rung `op`, 75,000 records each, record by record: equal, one record changed, every record
from the middle on changed. Certifying is timed apart: it reads every file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the builders of synthetic artifacts

import numpy as np

import artifacts
import evidence
import traced
from samebits.compare import records
from samebits.compare.certify import Arm, load
from samebits.compare.compare import Excuses, compare_arms
from samebits.compare.results import Comparison
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Moment

ROUNDS = 5
BLOCKS = 200
GOAL_SECONDS = 1.0
"""For equal arms that are certified."""
RECORDS = 75_000
"""Of a step at rung `op`; from so many sites:"""
SITES = 3_000
RECORDS_GOAL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """seconds: median. opened: fingerprint files that the comparison opened."""

    name: str
    seconds: float
    opened: int
    verdict: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2432)
    parser.add_argument("--steps", type=int, default=12, help="each has a step and a saved block")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "compare.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=_memory()) as scratch:
        body = _bench(Path(scratch), options.ranks, options.steps)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _bench(scratch: Path, ranks: int, steps: int) -> dict[str, Any]:
    arms, certified = {}, {}
    for name, change in _changes(ranks, steps // 2):
        _say(f"writing {name}")
        arms[name] = _written(scratch / name, name, change, ranks, steps)
        _say(f"certifying {name}")
        started = time.perf_counter()
        certified[name] = load(arms[name].folder)
        certified_seconds = time.perf_counter() - started
    steps_of = _compare_records(scratch / "records")
    measured = [_measure(name, certified["reference"], certified[name]) for name in arms if name != "reference"]
    measured.append(_measure("equal, long", _longer(certified["reference"]), _longer(certified["equal"])))
    return {
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()},
        "ranks": ranks,
        "blocks": 2 * steps + 1,
        "bytes": sum(path.stat().st_size for path in arms["reference"].folder.glob("*.fp")),
        "certify_seconds": round(certified_seconds, 3),
        "measured": [dataclasses.asdict(entry) for entry in measured],
        "goal_seconds": GOAL_SECONDS,
        "records": RECORDS,
        "record_by_record_seconds": steps_of,
        "record_by_record_goal_seconds": RECORDS_GOAL_SECONDS,
        "record_by_record_holds": max(steps_of.values()) <= RECORDS_GOAL_SECONDS,
        "holds": measured[-1].seconds <= GOAL_SECONDS and measured[-1].opened == 0,
    }


def _compare_records(scratch: Path) -> dict[str, float]:
    """Median seconds of the processor, with the opening of both files, for the steps of two ranks at rung `op`."""
    usual = [
        traced.op(f"aten.op{number % 100}.default", f"decoder.layers.{number % SITES // 100}", key=number)
        for number in range(RECORDS)
    ]
    found = {}
    for name, first in (("equal", RECORDS), ("one", RECORDS - 1), ("from the middle on", RECORDS // 2)):
        _say(f"writing two steps of {RECORDS} records, {name}")
        changed = [*usual[:first], *map(traced.other, usual[first:])]
        if name == "one":
            changed = [*usual[: first // 2], traced.other(usual[first // 2]), *usual[first // 2 + 1 :]]
        pairing = traced.pairing(lambda _: usual, lambda _, changed=changed: changed, world=1)
        pair = next(one for one in pairing.pairs if (one.moment, one.step) == (Moment.STEP, traced.STEP))
        times = []
        for _ in range(ROUNDS):
            # Of the processor: reading two files of 3 MB waits for nothing but neighbours.
            started = time.process_time()
            difference = records.RankRecords(pairing, 0).compare(pair)
            times.append(time.process_time() - started)
        expected = {"equal": 0, "one": 1}.get(name, RECORDS - RECORDS // 2)
        if (len(difference.items), difference.compared >= RECORDS) != (expected, True):
            sys.exit(f"{name}: {len(difference.items)} of {difference.compared} records differ, must be {expected}")
        found[name] = round(statistics.median(times), 4)
    return found


def _changes(ranks: int, step: int) -> Iterator[tuple[str, artifacts.Change]]:
    yield "reference", _few
    yield "equal", _few
    yield "one-rank", _struck({ranks - 1}, step)
    yield "every-rank", _struck(set(range(ranks)), step)


def _few(at: artifacts.At, entries: list[Any]) -> list[Any]:
    """Four records a block: the cost at hand is that of ranks and blocks."""
    return entries[-4:]


def _struck(hits: set[int], step: int) -> artifacts.Change:
    def change(at: artifacts.At, entries: list[Any]) -> list[Any]:
        few = _few(at, entries)
        if (at.moment, at.step) == (Moment.STEP, step) and at.rank in hits:
            few = artifacts.altered("rng:torch", rank=at.rank, step=step)(at, few)
        return few

    return change


def _written(folder: Path, name: str, change: artifacts.Change, ranks: int, steps: int) -> Artifact:
    return evidence.written(folder, arm=name, world=ranks, steps=steps, every=1, change=change)


def _measure(name: str, reference: Arm, candidate: Arm) -> Measured:
    _say(f"comparing {name}")
    opened = 0
    usual = records.opened

    def counting(*arguments: Any) -> Any:
        nonlocal opened
        opened += 1
        return usual(*arguments)

    records.opened = counting
    seconds, comparison = _timed(reference, candidate, ROUNDS if name.startswith("equal") else 1)
    records.opened = usual
    return Measured(name=name, seconds=round(seconds, 4), opened=opened, verdict=comparison.verdict)


def _longer(arm: Arm) -> Arm:
    """The arm with its blocks repeated to 200 or more, at later steps; there are no files for those."""
    if arm.certified is None:
        raise ValueError(arm.problem)
    manifest, table = arm.certified.manifest, arm.certified.table
    times = -(-BLOCKS // len(manifest.blocks))
    blocks = tuple(
        dataclasses.replace(block, step=block.step + turn * 1000) for turn in range(times) for block in manifest.blocks
    )
    longer = dataclasses.replace(
        arm.certified,
        manifest=dataclasses.replace(manifest, blocks=blocks),
        table=np.tile(table, (1, times, 1)),
    )
    return dataclasses.replace(arm, certified=longer)


def _timed(reference: Arm, candidate: Arm, rounds: int) -> tuple[float, Comparison]:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        comparison = compare_arms(reference, candidate, Excuses())
        times.append(time.perf_counter() - started)
    return statistics.median(times), comparison


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
