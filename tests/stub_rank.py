"""A rank that trains nothing: `python stub_rank.py MODE ARTIFACT`, with the environment and the files of a real one.

MODE: `ok`, `slow` (a step takes 0.5 s), `hang` (after the first step), `kill`, `raise`, `silent`, `environment`,
`port` (rank 0 finds its port taken, once), `helper` (leaves a child behind), `stuck` (rank 1 stands still, the others
wait for it as if in a collective), `memory` (rank 1 takes 2 GB), `wait` (in step 1, until the file `go` lies beside the
artifact).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(mode: str, folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
    first, last, every = plan["first_step"], plan["last_step"], plan["recipe"]["checkpoint"]["every"]
    with (folder / "starts").open("a") as stream:
        stream.write(f"{rank} {os.getpid()} {os.environ['SAMEBITS_LAUNCH']} {os.environ['MASTER_PORT']}\n")
    begin(mode, folder, rank)
    print(f"rank {rank} starts", flush=True)
    for step in range(first - 1, last + 1):
        if rank == 0:
            with (folder / "progress").open("a") as stream:
                stream.write(f"{step} {first} {last} {step / 10:.3f}\n")
            if plan["keep_checkpoints"] and step and step % every == 0:
                (folder / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        at_step(mode, folder, rank, step)
    if mode != "silent":
        (folder / f"rank-{rank:05d}.fp").write_bytes(b"stub")


def begin(mode: str, folder: Path, rank: int) -> None:
    if mode == "environment":
        (folder / f"environment-{rank}.json").write_text(json.dumps(dict(os.environ)))
    if mode == "port" and rank == 0 and len((folder / "starts").read_text().splitlines()) <= plan_world(folder):
        raise RuntimeError("The server socket has failed to listen: [errno: 98 - Address already in use].")
    if mode == "port" and rank != 0 and len((folder / "starts").read_text().splitlines()) <= plan_world(folder):
        time.sleep(60)
    if mode == "helper":
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / f"helper-{rank}").write_text(str(helper.pid))


def stand_still(folder: Path) -> None:
    (folder / "standing").touch()
    time.sleep(600)


def wait_for_others(folder: Path) -> None:
    """Its innermost frame is one of torch's collectives, as far as a stack tells.

    Until the other stands it moves: how long that takes to start is no part of the time without a step.
    """
    while not (folder / "standing").exists():
        with (folder / "progress").open("a") as stream:
            stream.write("2 1 4 0.200\n")
        time.sleep(0.1)
    code = compile("def all_reduce():\n    time.sleep(600)\nall_reduce()", "/site/torch/distributed/c10d.py", "exec")
    exec(code, {"time": time})


def wait_for_the_end_of(rank: int, folder: Path) -> None:
    """However late it started: what this rank says then is for want of the other."""
    while len(started := dict(line.split()[:2] for line in (folder / "starts").read_text().splitlines())) < 2:
        time.sleep(0.05)
    with contextlib.suppress(OSError):
        while Path(f"/proc/{started[str(rank)]}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.05)


def plan_world(folder: Path) -> int:
    return int(json.loads((folder / "plan.json").read_text())["recipe"]["parallel"]["world"])


def at_step(mode: str, folder: Path, rank: int, step: int) -> None:
    while mode == "wait" and step == 1 and not (folder.parent / "go").exists():
        time.sleep(0.1)
    if mode == "slow":
        time.sleep(0.5)
    if mode == "hang" and step == 1:
        time.sleep(600)
    if mode == "stuck" and step == 2:
        stand_still(folder) if rank == 1 else wait_for_others(folder)
    if mode == "memory" and step == 1 and rank == 1:
        taken = bytearray(2_000_000_000)
        taken[::4096] = b"1" * len(taken[::4096])
        time.sleep(30)
    if step == 3 and rank == 1 and mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 3 and rank == 1 and mode == "raise":
        raise ValueError("the loss is a teapot")
    if mode in ("kill", "raise") and step == 3:
        wait_for_the_end_of(1, folder)
        time.sleep(0.5)
        raise ConnectionError("peer went away")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
