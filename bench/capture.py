"""What capture costs a step, by rung, on a hidden-512, 4-layer model: `python bench/capture.py [--json FILE]`.

One rank, one thread. Steps alternate off, metrics, state, off, ... inside one process, so that noise of the machine
meets all three alike. Two figures: the time spent inside capture, over the median step with capture off (precise: on
a CPU nothing of capture runs elsewhere), and the median step time over the median step with capture off (noisy).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samebits.plan import Plan
from samebits.sections import (
    Capture,
    Checkpoint,
    Determinism,
    Launch,
    Model,
    Optimizer,
    Parallel,
    Recipe,
    StreamData,
)

RUNGS = ("off", "metrics", "state")
WARM_UP_ROUNDS = 2
GOALS = {"metrics": 0.01, "state": 0.10}


def recipe(steps: int) -> Recipe:
    """Dense, fp32, 4 x 256 tokens a step."""
    return Recipe(
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


def rank(folder: Path, rounds: int) -> None:
    """Trains in this process and writes the step times of each rung to `folder/times.json`."""
    import torch  # noqa: PLC0415 - the parent process needs none of these

    from samebits.run.capture import Capture as Recording  # noqa: PLC0415
    from samebits.run.observe import observe  # noqa: PLC0415
    from samebits.run.train import train  # noqa: PLC0415
    from samebits.run.watch import Training, Watcher  # noqa: PLC0415

    steps = rounds * len(RUNGS)
    full = recipe(steps)
    light = dataclasses.replace(full, capture=Capture(rung="metrics"))
    plan = Plan(
        arm="reference", recipe=full, first_step=1, last_step=steps, restore=None, capture=True, keep_checkpoints=False
    )
    plans = {
        "off": dataclasses.replace(plan, capture=False),
        "metrics": dataclasses.replace(plan, recipe=light),
        "state": plan,
    }
    capture = Recording(folder / "rank-00000.fp", "bench", observe)
    times: dict[str, list[float]] = {rung: [] for rung in RUNGS}
    inside: dict[str, list[float]] = {rung: [] for rung in RUNGS}
    sizes: dict[str, int] = {}

    class Alternating(Watcher):
        """Captures each step at another rung, and takes its time from before the first look to after the last."""

        def on_start(self, training: Training) -> None:
            capture.on_start(training)

        def on_step_begin(self, training: Training) -> None:
            self.rung = RUNGS[training.step % len(RUNGS)]
            self.inside = 0.0
            training.plan = plans[self.rung]
            self.started = time.perf_counter()
            self._timed(capture.on_step_begin, training)

        def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
            self._timed(capture.on_batch, training, micro_batch, batch)

        def on_gradients(self, training: Training) -> None:
            self._timed(capture.on_gradients, training)

        def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
            before = capture.recorder.path.stat().st_size
            self._timed(capture.on_step_end, training, metrics)
            times[self.rung].append(time.perf_counter() - self.started)
            inside[self.rung].append(self.inside)
            sizes[self.rung] = capture.recorder.path.stat().st_size - before

        def _timed(self, point: Callable[..., None], *arguments: object) -> None:
            started = time.perf_counter()
            point(*arguments)
            self.inside += time.perf_counter() - started

    train(plan, folder / "checkpoints", [Alternating()])
    capture.recorder.seal()
    (folder / "times.json").write_text(json.dumps({"times": times, "inside": inside, "bytes": sizes}))


def measure(rounds: int) -> dict[str, Any]:
    """Runs the rank in a process of its own and sums its times up."""
    with tempfile.TemporaryDirectory() as name:
        environment = {
            **os.environ,
            **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417"},
            **{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"},
        }
        command = [sys.executable, __file__, "--rank", name, "--rounds", str(rounds)]
        subprocess.run(command, env=environment, check=True)
        found = json.loads((Path(name) / "times.json").read_text())
    medians = {rung: statistics.median(values[WARM_UP_ROUNDS:]) for rung, values in found["times"].items()}
    inside = {rung: statistics.median(values[WARM_UP_ROUNDS:]) for rung, values in found["inside"].items()}
    return {
        "seconds": {rung: round(value, 5) for rung, value in medians.items()},
        "inside_capture": {rung: round(inside[rung] / medians["off"], 5) for rung in GOALS},
        "step_over_off": {rung: round(medians[rung] / medians["off"] - 1, 4) for rung in GOALS},
        "bytes_a_step": found["bytes"],
        "rounds": rounds - WARM_UP_ROUNDS,
        "goals": GOALS,
        "machine": platform.processor() or platform.machine(),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "capture.json")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank(arguments.rank, arguments.rounds)
        return
    result = measure(arguments.rounds)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    for rung in RUNGS:
        line = f"{rung:8} {1e3 * result['seconds'][rung]:9.1f} ms a step {result['bytes_a_step'][rung]:9} bytes"
        if rung in GOALS:
            share = result["inside_capture"][rung]
            verdict = "met" if share <= GOALS[rung] else "missed"
            line += f"  inside capture {100 * share:.3f} % (goal {100 * GOALS[rung]:.0f} %: {verdict})"
            line += f"  step over off {100 * result['step_over_off'][rung]:+.1f} %"
        print(line)


if __name__ == "__main__":
    main()
