"""Runs the built-in workload in local rank processes and reads back what their final state hashes to.

    python tests/workload.py PLAN CHECKPOINTS OUT

is one rank; the tests start those through `launch`. The heavy imports wait until then, because saving a checkpoint
starts a process that imports this file again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from samebits.spec.plan import Plan
from samebits.spec.questions import Capture, Fault
from samebits.spec.sections import (
    Checkpoint,
    Determinism,
    Launch,
    MegatronRecipe,
    Model,
    Moe,
    Mtp,
    Optimizer,
    Parallel,
    TokenData,
)

TIMEOUT_S = 150.0

MODEL = Model(
    layers=2,
    hidden=32,
    heads=4,
    ffn_hidden=64,
    sequence_length=16,
    vocabulary=256,
    normalization="RMSNorm",
    hidden_dropout=0.1,
    attention_dropout=0.1,
    tied_embeddings=False,
)
MOE = Moe(
    experts=4,
    top_k=2,
    ffn_hidden=32,
    load_balancing="aux_loss",
    load_balancing_coefficient=0.01,
    z_loss_coefficient=0.001,
    dispatcher="alltoall",
)
MTP = Mtp(layers=1, loss_scaling=0.1)
PARALLEL = Parallel(world=2, tensor=1, sequence=False, pipeline=1, context=1, data=2, expert=1)
DATA = TokenData(
    source="tokens",
    path=str(Path(__file__).parents[1] / "data" / "tiny-corpus.txt"),
    dtype="uint8",
    sha256="2cd002a442a469c09586d3a6b6fca1b68cf049479b7b4b914327f31640b56e64",
    shuffle_seed=1,
    micro_batch=4,
    global_batch=16,
)
OPTIMIZER = Optimizer(
    kind="adam",
    lr=0.005,
    min_lr=0.001,
    lr_warmup_steps=1,
    lr_decay_style="cosine",
    weight_decay=0.01,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    clip_grad=1.0,
    distributed=False,
)


def recipe(**changes: Any) -> MegatronRecipe:
    """A small dense recipe of 12 steps with a checkpoint at step 6; `changes` replace sections."""
    sections: dict[str, Any] = {
        "name": "test",
        "workload": "megatron-core",
        "model": MODEL,
        "parallel": PARALLEL,
        "precision": "fp32",
        "data": DATA,
        "optimizer": OPTIMIZER,
        "steps": 12,
        "checkpoint": Checkpoint(every=6, resume_from=6),
        "seed": 1234,
        "determinism": Determinism(deterministic_algorithms=True, fill_uninitialized_memory=True),
        "capture": Capture(rung="state"),
        "launch": Launch(time_minutes=5, threads=1),
        "gates": ("repeatability", "resume"),
    }
    return MegatronRecipe(**(sections | changes))


def plan(of: MegatronRecipe, restore: Path | None = None, faults: tuple[Fault, ...] = ()) -> Plan:
    """All steps from scratch, or those after the checkpoint `restore` of step `checkpoint.resume_from`."""
    return Plan(
        arm="test",
        recipe=of,
        first_step=of.checkpoint.resume_from + 1 if restore else 1,
        last_step=of.steps,
        restore=str(restore) if restore else None,
        capture=True,
        keep_checkpoints=True,
        faults=faults,
    )


@dataclasses.dataclass(frozen=True)
class Result:
    """What one rank left: hex digest of each state item and metrics (hex of the float) of each step."""

    state: dict[str, str]
    restored: dict[str, str]
    saved: dict[str, dict[str, str]]
    metrics: dict[str, dict[str, str]]


class RanksError(RuntimeError):
    """A rank ended with an error or ran too long; the message holds the end of its output."""


def launch(of: Plan, folder: Path) -> list[Result]:
    """Runs all ranks of a plan on loopback, checkpoints under `folder`/checkpoints; returns their results by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(of.to_json())
    ranks = [_start(rank, of.world, _free_port_of(folder), folder) for rank in range(of.world)]
    try:
        _wait(ranks, folder)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [Result(**json.loads((folder / f"rank-{rank}.json").read_text())) for rank in range(of.world)]


def _free_port_of(folder: Path) -> int:
    """One free port a folder."""
    note = folder / "port"
    if not note.exists():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            note.write_text(str(probe.getsockname()[1]))
    return int(note.read_text())


def _start(rank: int, world: int, port: int, folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, __file__, str(folder / "plan.json"), str(folder / "checkpoints"), str(folder)]
    with (folder / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path) -> None:
    end = time.monotonic() + TIMEOUT_S
    while any(rank.poll() is None for rank in ranks):
        failed = [number for number, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
        if failed or time.monotonic() > end:
            break
        time.sleep(0.05)
    for number, rank in enumerate(ranks):
        if rank.poll() != 0:
            log = (folder / f"rank-{number}.log").read_text()
            raise RanksError(f"rank {number} ended with {rank.poll()}\n{log[-3000:]}")


def _run_rank(plan_file: Path, checkpoints: Path, out: Path) -> None:
    import workload_rank

    workload_rank.run(Plan.from_json(plan_file.read_text()), checkpoints, out)


if __name__ == "__main__":
    _run_rank(*(Path(argument) for argument in sys.argv[1:4]))
