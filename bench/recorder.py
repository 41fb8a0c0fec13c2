"""What recording, verifying and comparing cost, against their bars.

    python bench/recorder.py            # prints a table, writes bench/results/recorder.json, exit status 1 below a bar

Times are processor time of this thread, medians: on a shared machine wall time measures the neighbours. Wall time is
printed beside it. A busy sibling of a hyper-thread still doubles processor time, so small steps are measured in
rounds: the quietest is held against the bar, the others are printed. Verifying is also given as a share of sha256's
speed in the same run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from artifacts import coordinates, make_pins, make_plan
from samebits.fingerprint.format import Header
from samebits.fingerprint.manifest import (
    BlockName,
    Manifest,
    RankFile,
    read_manifest,
    read_table,
    run_fingerprint,
    write_table,
)
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.reader import read
from samebits.fingerprint.records import Form, Kind, Moment, Phase, Site
from samebits.fingerprint.writer import Recorder

RESULTS = Path(__file__).parent / "results" / "recorder.json"
RANKS, BLOCKS = 2432, 100


@dataclass(frozen=True)
class Measured:
    """bar: the limit, None where there is none; `least`: whether it is a lower one."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    least: bool = False
    wall: float | None = None

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.least else self.value <= self.bar


def open_recorder(path: Path) -> Recorder:
    place, plan = coordinates(0, 2), make_plan()
    return Recorder(path, Header(digest="bench", launch="bench", coordinates=place, plan=plan, pins=make_pins()))


@dataclass
class Steps:
    """Microseconds of a step's calls to the recorder."""

    processor: float
    wall: float


def record_steps(recorder: Recorder, records: int, steps: int) -> Steps:
    """Numbers of sites and forms are asked for once, as capture does; digests are at hand."""
    names = [f"decoder.layers.{number}.mlp.linear_fc1.weight" for number in range(records)]
    sites = [recorder.site(Site(Phase.STATE, Kind.PARAMETER, name, "optimizer0")) for name in names]
    forms = [recorder.form(Form("float32", (number % 9, 64))) for number in range(records)]
    words = np.random.default_rng(1).integers(0, 1 << 63, (records, 2)).tolist()
    processor, wall = [], []
    for step in range(steps):
        outputs = [(first ^ step, second) for first, second in words]
        begun, started = time.perf_counter_ns(), time.thread_time_ns()
        recorder.begin(Moment.STEP, step, "state")
        for site, form, output in zip(sites, forms, outputs, strict=True):
            recorder.record(site, form, output)
        recorder.end(1, 2)
        processor.append(time.thread_time_ns() - started)
        wall.append(time.perf_counter_ns() - begun)
    return Steps(statistics.median(processor) / 1e3, statistics.median(wall) / 1e3)


def small_steps(folder: Path) -> list[Measured]:
    path = folder / "small.fp"
    recorder = open_recorder(path)
    record_steps(recorder, 20, 1)
    before, steps, rounds = path.stat().st_size, 1500, 7
    costs = sorted((record_steps(recorder, 20, steps) for _ in range(rounds)), key=lambda cost: cost.processor)
    overhead = (path.stat().st_size - before) / (steps * rounds) - 20 * 40
    return [
        Measured("20-record step, quietest round", costs[0].processor, "µs", 60, wall=costs[0].wall),
        Measured("20-record step, median round", costs[rounds // 2].processor, "µs", wall=costs[rounds // 2].wall),
        Measured("20-record step, busiest round", costs[-1].processor, "µs", wall=costs[-1].wall),
        Measured("frames of a step", overhead, "bytes"),
    ]


def large_steps(folder: Path) -> list[Measured]:
    path, records, steps = folder / "large.fp", 5000, 200
    recorder = open_recorder(path)
    cost = record_steps(recorder, records, steps)
    recorder.seal()
    size = path.stat().st_size
    processor, wall = cheapest(lambda: verify(path))
    light, light_wall = cheapest(lambda: read(path, deep=False))
    speed = sha256_speed()
    return [
        Measured("record", cost.processor / records, "µs", 1.5, wall=cost.wall / records),
        Measured("bytes a record", size / (records * steps), "bytes", 41),
        Measured("verify", size / processor / 1e6, "MB/s", 300, least=True, wall=size / wall / 1e6),
        Measured("verify, of sha256", size / processor / speed, "share"),
        Measured("read tables only", light * 1e3, "ms", wall=light_wall * 1e3),
    ]


def verify(path: Path) -> None:
    if fault := read(path, deep=True).fault:
        raise RuntimeError(fault)


def sha256_speed() -> float:
    data = bytes(50_000_000)
    return len(data) / cheapest(lambda: hashlib.sha256(data))[0]


def cheapest(call: Callable[[], object], times: int = 9) -> tuple[float, float]:
    """Median seconds: of this thread's processor time, and of wall time."""
    processor, wall = [], []
    for _ in range(times):
        begun, started = time.perf_counter(), time.thread_time()
        call()
        processor.append(time.thread_time() - started)
        wall.append(time.perf_counter() - begun)
    return statistics.median(processor), statistics.median(wall)


def many_ranks(folder: Path) -> list[Measured]:
    """Two collected arms of 2,432 ranks and 100 blocks: from the two folders to the first difference of each rank."""
    arms = [collected(folder / name) for name in ("reference", "twin-1")]
    found = first_differences(arms)
    if (found >= 0).any():
        raise RuntimeError("equal arms differ")
    processor, wall = cheapest(lambda: first_differences(arms), 3)
    size = arms[0].manifest.stat().st_size
    return [
        Measured(f"compare tables, {RANKS} ranks x {BLOCKS} blocks", processor * 1e3, "ms", wall=wall * 1e3),
        Measured(f"manifest of {RANKS} ranks", size / 1e6, "MB"),
    ]


def collected(folder: Path) -> Artifact:
    """Manifest and table without the rank files."""
    folder.mkdir()
    artifact, random = Artifact(folder), np.random.default_rng(7)
    table = random.integers(0, 256, (RANKS, BLOCKS, 32), dtype=np.uint8)
    libraries = {f"lib{number}.so": f"{number:040x}" for number in range(60)}
    ranks = [
        RankFile(
            rank=rank,
            bytes=10**8,
            check=f"{rank:032x}",
            records=5000 * BLOCKS,
            skipped=0,
            deep=False,
            coordinates=coordinates(rank, RANKS),
            pins=make_pins(rank, libraries=libraries),
        )
        for rank in range(RANKS)
    ]
    Manifest(
        digest="bench",
        launch=folder.name,
        plan=make_plan(world=RANKS, steps=BLOCKS, arm=folder.name),
        blocks=tuple(BlockName(moment="step", step=step, rungs=(("state", RANKS),)) for step in range(BLOCKS)),
        ranks=tuple(ranks),
        planted=(),
        unhealthy=(),
        table=write_table(artifact, table),
        run_fingerprint=run_fingerprint("bench", [bytes(row[-1, 16:]) for row in table]),
    ).write(artifact)
    return artifact


def first_differences(arms: list[Artifact]) -> np.ndarray:
    """Per rank, index of the first block that differs, -1: none."""
    reference, candidate = (read_table(arm, read_manifest(arm)) for arm in arms)
    differs = (reference[:, :, :16] != candidate[:, :, :16]).any(axis=2)
    return np.where(differs.any(axis=1), differs.argmax(axis=1), -1)


def show(measured: list[Measured]) -> None:
    words = {True: "holds", False: "MISSED", None: ""}
    for entry in measured:
        bar = "" if entry.bar is None else f"{'>=' if entry.least else '<='} {entry.bar:g}"
        wall = "" if entry.wall is None else f"wall {entry.wall:,.3g}"
        print(f"{entry.name:44}{entry.value:>10,.3g} {entry.unit:6} {wall:14} {bar:>8} {words[entry.holds]}")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        measured = small_steps(Path(name)) + large_steps(Path(name)) + many_ranks(Path(name))
    show(measured)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }
    body = {"machine": machine, "measured": [{**asdict(entry), "holds": entry.holds} for entry in measured]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return int(any(entry.holds is False for entry in measured))


if __name__ == "__main__":
    sys.exit(main())
