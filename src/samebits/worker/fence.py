"""Ends a rank whose start is no longer the one that its folder was given to.

A node that the scheduler takes for lost may live on, and its ranks with it, while the arm begins again elsewhere in
the same folder. Rank 0 looks; without it the others end.
"""

from __future__ import annotations

import json
from pathlib import Path

from samebits.worker.hooks import Training, Watcher


class SupersededError(RuntimeError):
    """Another start of this arm has the folder now."""


class Fence(Watcher):
    """record: what the launcher wrote of the latest start. launch: of this one."""

    def __init__(self, record: Path, launch: str) -> None:
        self._record = record
        self._launch = launch

    def on_step_begin(self, training: Training) -> None:
        self._check()

    def on_save(self, training: Training) -> None:
        self._check()

    def on_final(self, training: Training) -> None:
        self._check()

    def _check(self) -> None:
        try:
            latest = json.loads(self._record.read_text(encoding="utf-8"))["launch"]
        except (OSError, ValueError, KeyError, TypeError):
            # Not there, or being replaced: nothing says that another start has the folder.
            return
        if latest != self._launch:
            raise SupersededError(
                f"this is start {self._launch}, and {self._record} names {latest}: it has the folder now"
            )
