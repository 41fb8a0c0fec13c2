"""msprobe's PrecisionDebugger, task `statistics` with `summary_mode` md5 (a CRC-32 in fact), over one whole step.

It replaces functions of torch for the life of the process. With its own registry they are put back before every step
of another kind, outside the clock. One process holds one debugger, and so one level.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from peers.recording import Recorded
from samebits.worker.hooks import Training

LEVELS = ("L1", "L0", "mix")
"""Functions of torch, modules, both."""


class MsprobePeer:
    """`debugger.start(model)`, the step, `debugger.stop()`, `debugger.step()`."""

    def __init__(self, level: str, packages: Path, scratch: Path) -> None:
        os.environ["MSPROBE_LOG_LEVEL"] = "3"
        sys.path.append(str(packages))
        from msprobe.pytorch import PrecisionDebugger  # noqa: PLC0415 - not there before the line above

        scratch.mkdir()
        self._dump = scratch / "dump"
        config = scratch / "config.json"
        statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "md5"}
        body = {"task": "statistics", "level": level, "dump_path": str(self._dump), "rank": [], "step": []}
        config.write_text(json.dumps({**body, "statistics": statistics}))
        self.version = f"mindstudio-probe {importlib.metadata.version('mindstudio-probe')}"
        self._debugger = PrecisionDebugger(config_path=str(config))
        self._functions = self._debugger.service.api_register if level != "L0" else None
        self._restore()

    def prepare(self) -> None:
        if self._functions is not None:
            self._functions.register_all_api()

    def begin(self, training: Training) -> None:
        self._debugger.start(model=training.chunks)

    def end(self) -> None:
        self._debugger.stop()
        self._debugger.step()

    def recorded(self) -> Recorded:
        self._restore()
        size = sum(path.stat().st_size for path in self._dump.rglob("*") if path.is_file())
        calls = {}
        for path in self._dump.rglob("dump.json"):
            calls |= json.loads(path.read_text())["data"]
        digests = {name: list(_digests(name, call)) for name, call in calls.items()}
        shutil.rmtree(self._dump, ignore_errors=True)
        flat = [entry for call in digests.values() for entry in call]
        return Recorded(sum(map(bool, digests.values())), flat, size)

    def digest(self, tensor: torch.Tensor) -> Any:
        return f"{zlib.crc32(tensor.detach().contiguous().numpy().tobytes()):08x}"

    def _restore(self) -> None:
        if self._functions is not None:
            self._functions.restore_all_api()
            if torch.nn.functional.linear is not _LINEAR:
                raise RuntimeError("msprobe did not give torch.nn.functional.linear back")


_LINEAR = torch.nn.functional.linear


def _digests(place: str, entry: Any) -> Iterator[tuple[str, str]]:
    """Of every tensor below `entry`."""
    if isinstance(entry, dict):
        if entry.get("md5") and entry.get("type") == "torch.Tensor":
            yield place, entry["md5"]
        for key, value in entry.items():
            yield from _digests(f"{place} {key}", value)
    if isinstance(entry, list):
        for index, value in enumerate(entry):
            yield from _digests(f"{place} {index}", value)
