"""From where the program called what was recorded: notes beside the records of a fingerprint file, in no digest.

A note of type `stacks` holds what its step brought anew: {"type": "stacks", "data": text}. The text is base64
of zlib of the JSON {"frames": [[file, line, function], ...], "stacks": [[phase, kind, name, scope, numbers], ...]}.
Frames are numbered through the whole file, in order of first use; a stack names its frames from the innermost outwards.
A site has the stack of its first record; further outputs (`NAME#1`) have that of the first, and are not listed.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from samebits.fingerprint.records import Kind, Phase, Site

TYPE = "stacks"
_FURTHER = re.compile(r"#\d+$")


class Frame(NamedTuple):
    """file: relative to its package's parent. function: by qualified name."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


Stack = tuple[Frame, ...]
"""From the innermost call outwards."""


class Stacks:
    """Collects the stacks of one file, as its note of each step wants them."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._known: dict[Site, tuple[int, ...]] = {}
        self._noted_frames = 0
        self._noted_sites = 0

    def __contains__(self, site: Site) -> bool:
        return site in self._known

    def add(self, site: Site, stack: Iterable[Frame]) -> None:
        self._known[site] = tuple(self._frames.setdefault(frame, len(self._frames)) for frame in stack)

    def share(self, site: Site, other: Site) -> None:
        """Gives it the stack of the other."""
        self._known[site] = self._known.get(other, ())

    def notes(self) -> Iterator[dict[str, Any]]:
        """Yield a note of the stacks added since the last call; nothing where there are none."""
        frames, sites = list(self._frames)[self._noted_frames :], list(self._known)[self._noted_sites :]
        self._noted_frames, self._noted_sites = len(self._frames), len(self._known)
        if sites:
            stacks = [[one.phase, one.kind, one.name, one.scope, self._known[one]] for one in sites]
            text = json.dumps({"frames": frames, "stacks": stacks}, separators=(",", ":"))
            yield {"type": TYPE, "data": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}


def read_stacks(notes: Iterable[Mapping[str, Any]]) -> dict[Site, Stack]:
    """Return the call stack of each site in a file's notes. Raises ValueError where a note of stacks is malformed."""
    frames: list[Frame] = []
    found: dict[Site, Stack] = {}
    for note in notes:
        if note.get("type") != TYPE:
            continue
        try:
            body = json.loads(zlib.decompress(base64.b64decode(note["data"])))
            frames += [Frame(*frame) for frame in body["frames"]]
            for phase, kind, name, scope, numbers in body["stacks"]:
                found[Site(Phase(phase), Kind(kind), name, scope)] = tuple(frames[number] for number in numbers)
        except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
            raise ValueError(f"a note of stacks cannot be read: {error}") from error
    return found


def stack_of(stacks: Mapping[Site, Stack], site: Site) -> Stack:
    """Return the call stack of a record's site; empty where none is known."""
    first = Site(site.phase, site.kind, _FURTHER.sub("", site.name), site.scope)
    return stacks.get(site) or stacks.get(first, ())
