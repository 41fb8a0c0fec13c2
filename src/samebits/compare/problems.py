"""All that is wrong with one artifact, told together: a line each, equal ones of several ranks as one."""

from __future__ import annotations

from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.ranks import ranks_text

LINES = 20
"""At most; thousands of ranks may have as many different problems."""


class Problems:
    """Of the artifact as a whole, and of its ranks."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._whole: list[str] = []
        self._ranks: dict[str, list[int]] = {}

    def add(self, what: str) -> None:
        """what: names its file or ranks itself."""
        self._whole.append(what)

    def of_rank(self, rank: int, what: str) -> None:
        self._ranks.setdefault(what, []).append(rank)

    @property
    def ranks(self) -> set[int]:
        """Those that have one of their own."""
        return {rank for ranks in self._ranks.values() for rank in ranks}

    def lines(self) -> list[str]:
        return self._whole + [
            f"{self._subject(ranks)}: {what}" for what, ranks in sorted(self._ranks.items(), key=lambda item: item[1])
        ]

    def _subject(self, ranks: list[int]) -> str:
        if len(ranks) == 1:
            return f"rank {ranks[0]}, {self._artifact.fingerprint(ranks[0]).name}"
        return f"ranks {ranks_text(ranks)} ({self._artifact.fingerprint(ranks[0]).name} and so on)"

    def refuse(self) -> None:
        """Raises ArtifactError with all of them, if there are any."""
        lines = self.lines()
        if len(lines) == 1:
            raise ArtifactError(f"{self._artifact.folder}: {lines[0]}")
        if lines:
            more = [f"and {len(lines) - LINES} more"] if len(lines) > LINES else []
            told = "\n".join(f"- {line}" for line in lines[:LINES] + more)
            raise ArtifactError(f"{self._artifact.folder}: {len(lines)} problems\n{told}")
