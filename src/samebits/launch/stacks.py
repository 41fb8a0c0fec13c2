"""Where the ranks of an arm stand that no longer moves: from the stacks that faulthandler wrote into their logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_LOG_END = 262_144
_WAITING = re.compile(
    r"torch/distributed/|torch/autograd/graph\.py|megatron/core/(distributed|tensor_parallel|pipeline_parallel)/"
)
"""Innermost frames of a rank that waits for others; some wait inside a call that has no frame of its own."""


@dataclass(frozen=True)
class Stack:
    """Of the main thread at one moment. frames: innermost first, such as `loop.py:88 in run`."""

    frames: tuple[str, ...]
    waits: bool
    """Whether it stands inside a collective, or cannot tell from one."""


def read(log: Path) -> Stack | None:
    """The last one in the log; None: the rank wrote none, so that its interpreter does not answer either."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LOG_END))
            text = stream.read().decode(errors="replace")
    except OSError:
        return None
    current = text.rfind("\nCurrent thread ")
    if current < 0 and not text.startswith("Current thread "):
        return None
    frames = []
    for line in text[max(current, 0) :].lstrip("\n").splitlines()[1:]:
        if not (found := _FRAME.match(line)):
            break
        frames.append((found["file"], f"{Path(found['file']).name}:{found['line']} in {found['function']}"))
    if not frames:
        return None
    return Stack(tuple(shown for _, shown in frames), waits=bool(_WAITING.search(frames[0][0])))


def suspects(steps: Mapping[int, int], stacks: Mapping[int, Stack | None]) -> tuple[list[int], str]:
    """Ranks that the others wait for, and how that is known. steps: last recorded step by rank.

    Those that stand outside every collective while others wait inside one; else those that are behind; else nobody.
    """
    outside = [rank for rank in sorted(steps) if (stack := stacks.get(rank)) is None or not stack.waits]
    if outside and len(outside) < len(steps):
        return outside, "does not wait for the others"
    lowest = min(steps.values())
    behind = [rank for rank in sorted(steps) if steps[rank] == lowest]
    if len(behind) < len(steps):
        return behind, "is behind the others"
    return [], ""


def grouped(stacks: Mapping[int, Stack | None]) -> list[tuple[str, Sequence[int]]]:
    """(where they stand, ranks), the smallest group first."""
    found: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        place = " < ".join(stack.frames[:3]) if stack else "wrote no stack"
        found.setdefault(place, []).append(rank)
    return sorted(found.items(), key=lambda entry: (len(entry[1]), entry[1]))
