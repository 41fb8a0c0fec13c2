"""What capture costs a step, beside two peers, on a hidden-512, 4-layer model: `python bench/capture.py [--json FILE]`.

One rank, one thread. Steps alternate off, the rungs, debug-mode, msprobe, and back, inside one process, so that
noise of the machine meets all alike; msprobe has one level a process, its other levels alternate with off in processes
of their own. `bench/README.md` says what each figure is, and what each kind records.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.install import install
from samebits.spec.plan import Plan
from samebits.spec.questions import Capture, Rung
from samebits.spec.sections import (
    Checkpoint,
    Determinism,
    Launch,
    MegatronRecipe,
    Model,
    Optimizer,
    Parallel,
    StreamData,
)

RUNGS: tuple[str, ...] = typing.get_args(Rung)
PEERS = ("debug-mode", "msprobe-L1")
ALONE = ("msprobe-L0", "msprobe-mix")
"""Each in a process of its own, beside `off`."""
WARM_UP_ROUNDS = 2
TWIN_ROUNDS = 2
GOALS = {"metrics": 0.01, "state": 0.10}
TRACED_GOALS = {"boundary": 1.25, "op": 4.0}
"""Processor time of a step over that of one with capture off: what they cost is spread over the step."""
BYTES_GOAL = 48
"""A record, once a window's sites and stacks are written."""
_MEASURED = slice(WARM_UP_ROUNDS, -1)
"""The last round looks at the state."""
RESULTS = Path(__file__).parent / "results" / "capture.json"


def recipe(steps: int) -> MegatronRecipe:
    """Dense, fp32, 4 x 256 tokens a step."""
    return MegatronRecipe(
        name="bench-capture",
        workload="megatron-core",
        model=Model(
            layers=4,
            hidden=512,
            heads=8,
            ffn_hidden=2048,
            sequence_length=256,
            vocabulary=1024,
            normalization="RMSNorm",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            tied_embeddings=False,
        ),
        parallel=Parallel(world=1, tensor=1, sequence=False, pipeline=1, context=1, data=1, expert=1),
        precision="fp32",
        data=StreamData(source="stream", stream_seed=1, micro_batch=4, global_batch=4),
        optimizer=Optimizer(
            kind="adam",
            lr=1e-4,
            min_lr=1e-4,
            lr_warmup_steps=0,
            lr_decay_style="constant",
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
            clip_grad=1.0,
            distributed=False,
        ),
        steps=steps,
        checkpoint=Checkpoint(every=steps + 1, resume_from=1),
        seed=1,
        determinism=Determinism(deterministic_algorithms=True, fill_uninitialized_memory=True),
        capture=Capture(rung="state"),
        launch=Launch(time_minutes=30, threads=1),
        gates=("repeatability",),
    )


def write_plans(folder: Path, steps: int) -> None:
    """One plan for each rung and for off, all of the same steps: the rank swaps them from step to step."""
    full = recipe(steps)
    plan = Plan(
        arm="reference", recipe=full, first_step=1, last_step=steps, restore=None, capture=True, keep_checkpoints=False
    )
    plans = {
        name: dataclasses.replace(plan, recipe=dataclasses.replace(full, capture=Capture(rung=typing.cast(Rung, name))))
        for name in RUNGS
    }
    plans["off"] = dataclasses.replace(plan, capture=False)
    (folder / "plans.json").write_text(json.dumps({name: entry.to_json() for name, entry in plans.items()}))


def alternate(kinds: list[str], rounds: int, packages: Path | None) -> dict[str, Any]:
    """Samples of a rank in a process of its own. Raises CalledProcessError where a kind recorded nothing."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        write_plans(Path(name), (rounds + 1) * len(kinds))
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        environment = {
            **os.environ,
            **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            **{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"},
        }
        command = [sys.executable, "-m", "peers.alternate", name, "--rounds", str(rounds), "--kinds", *kinds]
        command += ["--packages", str(packages)] if packages else []
        subprocess.run(command, cwd=Path(__file__).parent, env=environment, check=True)
        return json.loads((Path(name) / "samples.json").read_text())


def spread(values: list[float], base: list[float]) -> dict[str, float]:
    """Ratios to the step with capture off of the same round: median, quartiles and extremes."""
    ratios = [value / off for value, off in zip(values, base, strict=True)]
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    found = {"median": middle, "lower": lower, "upper": upper, "least": min(ratios), "most": max(ratios)}
    return {name: round(value, 4) for name, value in found.items()}


def kind_of(samples: dict[str, Any], kind: str) -> dict[str, Any]:
    """What one kind costs and leaves behind."""
    wall, processor = ({name: entry[_MEASURED] for name, entry in samples[key].items()} for key in _CLOCKS)
    found = {
        "seconds": round(statistics.median(wall[kind]), 5),
        "seconds_off": round(statistics.median(wall["off"]), 5),
        "wall_over_off": spread(wall[kind], wall["off"]),
        "processor_over_off": spread(processor[kind], processor["off"]),
        "rounds": len(wall[kind]),
    }
    for key in ("bytes", "records", "digests"):
        found[f"{key}_a_step"] = statistics.median_low(samples[key][kind][_MEASURED])
    if kind in samples["covered"]:
        found |= {"state_found": samples["covered"][kind], "version": samples["versions"][kind]}
    return found


_CLOCKS = ("wall", "processor")


def summed(samples: dict[str, Any]) -> dict[str, Any]:
    """The figures of capture itself, held against the goals."""
    medians = {kind: statistics.median(values[_MEASURED]) for kind, values in samples["wall"].items()}
    inside = {kind: statistics.median(values[_MEASURED]) for kind, values in samples["inside"].items()}
    return {
        "seconds": {kind: round(medians[kind], 5) for kind in ("off", *RUNGS)},
        "inside_capture": {rung: round(inside[rung] / medians["off"], 5) for rung in RUNGS},
        "step_over_off": {rung: round(medians[rung] / medians["off"] - 1, 4) for rung in RUNGS},
        "bytes_a_step": {kind: samples["bytes"][kind][-1] for kind in ("off", *RUNGS)},
        "goals": GOALS,
        "goals_met": {rung: inside[rung] / medians["off"] <= goal for rung, goal in GOALS.items()},
        "traced_goals": TRACED_GOALS,
        "bytes_a_record": {
            rung: round(samples["bytes"][rung][-1] / samples["records"][rung][-1], 1) for rung in TRACED_GOALS
        },
        "bytes_a_record_of_the_first_step": {
            rung: round(samples["bytes"][rung][0] / samples["records"][rung][0], 1) for rung in TRACED_GOALS
        },
    }


def measure(rounds: int, rounds_alone: int, peers: bool) -> dict[str, Any]:
    packages = install() if peers else None
    before = os.getloadavg()
    samples = alternate(["off", *RUNGS, *(PEERS if peers else ())], rounds, packages)
    kinds = {kind: kind_of(samples, kind) for kind in samples["wall"] if kind != "off"}
    for kind in ALONE if peers else ():
        kinds[kind] = kind_of(alternate(["off", kind], rounds_alone, packages), kind)
    return {
        **summed(samples),
        "twins": twins([*RUNGS, *(PEERS if peers else ())], packages),
        "rounds": rounds - WARM_UP_ROUNDS,
        "kinds": kinds,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load_before": before},
        "date": datetime.date.today().isoformat(),
    }


def twins(kinds: Sequence[str], packages: Path | None) -> dict[str, Any]:
    """The same run twice, each in a process of its own, and once more with nothing recorded in any step.

    Gives the digests that differ between the first two, of a kind's last step, and whether all three end in one state.
    """
    runs = [alternate(list(names), TWIN_ROUNDS, packages) for names in (kinds, kinds, ["off"] * len(kinds))]
    if runs[0]["final"] != runs[1]["final"]:
        sys.exit("two equal runs ended in different states: their records cannot be compared")
    found = {}
    for kind in kinds:
        first, second = (run["last"][kind] for run in runs[:2])
        if [name for name, _ in first] != [name for name, _ in second]:
            sys.exit(f"{kind}: two equal runs recorded different calls")
        differ = [name for (name, digest), (_, other) in zip(first, second, strict=True) if digest != other]
        found[kind] = {"digests": len(first), "differ": len(differ), "first": differ[:3]}
    return {"kinds": found, "final_state_as_off": runs[0]["final"] == runs[2]["final"]}


def show(result: dict[str, Any]) -> None:
    print(f"off {1e3 * result['seconds']['off']:.0f} ms a step; below: x off of the same round, median (quartiles)")
    for kind, found in result["kinds"].items():
        clocks = [found[f"{clock}_over_off"] for clock in _CLOCKS]
        texts = [f"{entry['median']:6.3f} ({entry['lower']:.3f}-{entry['upper']:.3f})" for entry in clocks]
        left = (
            f"{found['records_a_step']:6} records {found['digests_a_step']:6} digests {found['bytes_a_step']:9} bytes"
        )
        print(f"{kind:12} wall {texts[0]}  processor {texts[1]} {left}")
        if "state_found" in found:
            parts = [f"{kind} {seen}/{of}" for kind, (seen, of) in found["state_found"].items()]
            print(f"{'':12} of the state its digests hold: {', '.join(parts)}")
    print(f"recorded or not, the same final state: {result['twins']['final_state_as_off']}")
    for kind, found in result["twins"]["kinds"].items():
        print(f"{kind:12} same run twice, same final state: {found['differ']} of {found['digests']} digests differ")
    for rung, goal in GOALS.items():
        share, verdict = result["inside_capture"][rung], "met" if result["goals_met"][rung] else "missed"
        print(f"{rung:12} inside capture {100 * share:.3f} % of a step (goal {100 * goal:.0f} %: {verdict})")
    for rung, goal in TRACED_GOALS.items():
        share = result["kinds"][rung]["processor_over_off"]["median"]
        print(f"{rung:12} {share:.2f} x a step of the processor (goal {goal}: {'met' if share <= goal else 'missed'})")
    for rung, size in result["bytes_a_record"].items():
        first = result["bytes_a_record_of_the_first_step"][rung]
        verdict = "met" if size <= BYTES_GOAL else "missed"
        print(f"{rung:12} {size} bytes a record, {first} in the first step (goal {BYTES_GOAL}: {verdict})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=9, help=f"the first {WARM_UP_ROUNDS} are dropped")
    parser.add_argument("--rounds-alone", type=int, default=7, help="of the kinds with a process of their own")
    parser.add_argument("--no-peers", action="store_true", help="installs nothing; measures the rungs alone")
    options = parser.parse_args()
    result = measure(options.rounds, options.rounds_alone, not options.no_peers)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
