"""Output of a long verb: finished lines, and one line that changes while work goes on."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import IO

EVERY_SECONDS = 10.0
"""At most so often does the changing line appear where it cannot be redrawn."""


class Echo:
    """Lines for a person. stream: for example sys.stderr. log: a file that gets every line too, made new."""

    def __init__(self, stream: IO[str], log: Path | None = None) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._drawn = ""
        self._last = float("-inf")
        self._log = log
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("", encoding="utf-8")

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._clear()
        self._say(f"{text}\n")
        self._note(text)

    def update(self, text: str) -> None:
        """Write the line that changes: redrawn on a terminal, elsewhere written now and then."""
        due = time.monotonic() - self._last >= EVERY_SECONDS
        if self._redraws and text != self._drawn:
            self._clear()
            self._say(text[: shutil.get_terminal_size().columns - 1])
            self._drawn = text
        elif due and not self._redraws:
            self._say(f"{text}\n")
        if due:
            self._last = time.monotonic()
            self._note(text)

    def _clear(self) -> None:
        if self._drawn:
            self._say("\r\x1b[K")
            self._drawn = ""

    def _say(self, text: str) -> None:
        # Whoever listened may be gone; the work goes on.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _note(self, text: str) -> None:
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as stream:
                stream.write(f"{text}\n")
