"""Progress of an arm, as rank 0 writes it: lines of `STEP FIRST LAST SECONDS` in the artifact's `progress`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reached:
    """step: done; first - 1 before the first. left: estimated seconds to the last step; None: no step is done."""

    step: int
    last: int
    left: float | None


def read(path: Path) -> Reached | None:
    """Return how far the arm is; None before rank 0 has written."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    # Behind the last newline a line is still being written.
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    rows = [
        (int(step), int(last), float(seconds)) for step, _, last, seconds in (line for line in lines if len(line) == 4)
    ]
    if not rows:
        return None
    (start, _, began), (step, last, ended) = rows[0], rows[-1]
    left = (ended - began) / (step - start) * (last - step) if step > start else None
    return Reached(step, last, left)


def describe(arm: str, ranks: int, progress: Reached | None, seconds: float) -> str:
    """Return one line: arm, step, elapsed, time left. seconds: since the arm was submitted, or re-attached."""
    if progress is None:
        return f"arm {arm}: starting {ranks} rank{'s' if ranks > 1 else ''}, {clock(seconds)}"
    text = f"arm {arm}: step {progress.step}/{progress.last}, {clock(seconds)}"
    return text if progress.left is None else f"{text}, about {clock(progress.left)} left"


def clock(seconds: float) -> str:
    """Return a duration as `m:ss`, or as `h:mm:ss` from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
