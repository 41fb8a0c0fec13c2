"""How long a start of an arm may take in all, and without a step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from samebits.spec.sections import Recipe

_STOPPED_SECONDS = 10.0


class Patience:
    """progress: the file that rank 0 appends to at every step; its size is what moves."""

    def __init__(self, recipe: Recipe, progress: Path) -> None:
        self._limit = 60 * recipe.launch.time_minutes
        self._hang = 60 * recipe.launch.hang_minutes
        self._progress = progress
        self._started = self._moved = self._looked = time.monotonic()
        self._size = 0

    def exceeded(self) -> Literal["time", "hang"] | None:
        now, size = time.monotonic(), self._bytes()
        if (gap := now - self._looked) > _STOPPED_SECONDS:
            # Whoever looks is looking all the time, unless it was stopped, and its ranks with it.
            self._started, self._moved = self._started + gap, self._moved + gap
        self._looked = now
        if size != self._size:
            self._size, self._moved = size, now
        if now - self._started > self._limit:
            return "time"
        return "hang" if now - self._moved > self._hang else None

    def _bytes(self) -> int:
        try:
            return self._progress.stat().st_size
        except OSError:
            return 0
