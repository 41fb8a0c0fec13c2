"""A stub rank that first says what it sees: `python stressed_rank.py MODE ARTIFACT`; MODE is one of `stub_rank`."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

import stub_rank


def seen() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "hash": hash("samebits"),
        "host": socket.gethostname(),
        "personality": ctypes.CDLL(None).personality(0xFFFFFFFF),
        "cores": sorted(os.sched_getaffinity(0)),
        "environment": dict(os.environ),
        "children": children(os.getpid()),
        "cached": cached(Path(os.environ.get("TRITON_CACHE_DIR", "/nowhere"))),
    }


def cached(folder: Path) -> list[str] | None:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else None


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


if __name__ == "__main__":
    _, mode, folder = sys.argv
    rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
    (Path(folder) / f"seen-{rank}.json").write_text(json.dumps(seen()))
    stub_rank.main(mode, Path(folder))
