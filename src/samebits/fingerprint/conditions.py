"""Which variations of a stress run were in force on each rank, in that rank's own words: `stress/rank-00000.jsonl`.

A variation that was asked for and is in force nowhere was not tested. Lines are appended by whoever brings it about:
what starts the rank, and the rank itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Condition:
    """how: what was done, or why it could not be done."""

    stressor: str
    rank: int
    in_force: bool
    how: str


def folder(artifact: Path) -> Path:
    """artifact: folder of an arm."""
    return artifact / "stress"


def note(artifact: Path, condition: Condition) -> None:
    """One line more; earlier ones stay."""
    folder(artifact).mkdir(exist_ok=True)
    with (folder(artifact) / f"rank-{condition.rank:05d}.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(condition)) + "\n")


def read(artifact: Path) -> list[Condition]:
    """By rank, then in the order of time. Raises ValueError for a file that is no such notes."""
    return list(_read(artifact))


def _read(artifact: Path) -> Iterator[Condition]:
    for path in sorted(folder(artifact).glob("rank-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield Condition(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}: is damaged ({error}); run the arm again") from error
