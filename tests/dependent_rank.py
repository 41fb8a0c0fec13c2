"""A rank that trains nothing and leaves a whole fingerprint file: `python dependent_rank.py MODE ARTIFACT`.

MODE says when rank 1 has other bits from step 3 on: `never`, `always` (with every start), `with:A+B` (where it sees all
of these variations), `at-times:A` (where it sees A, but not in a second run of the arm); or what goes wrong where it
sees A: `fails:A`, `waits:A` (until it is ended), `nan:A`, `pin:A` (a library deviates).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import artifacts
import evidence
from samebits.fingerprint import conditions
from samebits.fingerprint.format import Header
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.writer import Recorder
from samebits.spec.plan import Plan

SEEN = {
    "hash-seed": lambda: os.environ["PYTHONHASHSEED"] != "0",
    "addresses": lambda: "MALLOC_TOP_PAD_" in os.environ,
    "host-name": lambda: socket.gethostname().startswith("stress-"),
    "contention": lambda: bool(Path(f"/proc/self/task/{os.getpid()}/children").read_text()),
    "cold-caches": lambda: "TORCHINDUCTOR_CACHE_DIR" in os.environ,
    "batch-of-environment": lambda: "STRESS_1" in os.environ,
}
"""How a rank sees a variation that is in force."""
OWN = ("delayed-rank", "loader-threads")
"""Brought about inside a real rank."""


def main(mode: str, folder: Path) -> None:
    artifact, rank = Artifact(folder), int(os.environ["RANK"])
    plan = Plan.from_json(artifact.plan.read_text())
    for name in set(OWN) & set(plan.stress):
        conditions.note(folder, conditions.Condition(name, rank, True, "as the plan says"))
    if plan.keep_checkpoints and rank == 0:
        artifact.checkpoint(plan.recipe.checkpoint.resume_from).mkdir(parents=True)
    kind, _, wanted = mode.partition(":")
    strikes = all(sees(name, plan) for name in wanted.split("+")) if wanted else kind != "never"
    if kind == "fails" and strikes:
        raise ValueError("the loss is a teapot")
    if kind == "waits" and strikes:
        wait(folder / f"pids-{rank}.json")
    record(artifact, plan, rank, kind if strikes else "never")


def wait(path: Path) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    path.write_text(json.dumps([os.getpid(), *map(int, children)]))
    time.sleep(600)


def sees(name: str, plan: Plan) -> bool:
    return SEEN[name]() if name in SEEN else name in plan.stress


def record(artifact: Artifact, plan: Plan, rank: int, kind: str) -> None:
    launch = os.environ["SAMEBITS_LAUNCH"]
    variables = {name: os.environ[name] for name in ("PYTHONHASHSEED", "TRITON_CACHE_DIR") if name in os.environ}
    libraries = {"libm.so": "another"} if kind == "pin" else {}
    pins = evidence.pins(rank, environment=variables, libraries=libraries)
    header = Header(
        digest=artifacts.DIGEST,
        launch=launch,
        coordinates=artifacts.coordinates(rank, plan.world),
        plan=plan,
        pins=pins,
    )
    recorder = Recorder(artifact.fingerprint(rank), header)
    artifacts.record_rank(recorder, plan, rank, changes(kind, plan, launch), notes(kind, rank))
    recorder.seal()


def changes(kind: str, plan: Plan, launch: str) -> list[artifacts.Change]:
    bits = {"with": 1, "at-times": not plan.arm.endswith("-2"), "always": int(launch[:4], 16)}.get(kind, 0)
    return [artifacts.altered("parameter:w0", rank=1, step=3, bit=bit) for bit in range(16) if bits >> bit & 1]


def notes(kind: str, rank: int) -> list[dict[str, object]]:
    return [artifacts.unhealthy(rank=rank, step=3)] if kind == "nan" else []


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
