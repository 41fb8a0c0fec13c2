"""What a peer does around a step, and what it left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from samebits.worker.hooks import Training


@dataclass(frozen=True)
class Recorded:
    """Of one step. records: rows of the peer's log; one row (a call) may hold several tensors. digests: of each tensor,
    in order, under its place in the log. size: bytes on disk, or of the rendered text."""

    records: int
    digests: list[tuple[str, Any]]
    size: int

    @property
    def distinct(self) -> set[Any]:
        return {digest for _, digest in self.digests}


class Peer(Protocol):
    """One way to record a step. `begin` and `end` are timed, `prepare` and `recorded` are not."""

    version: str

    def prepare(self) -> None:
        """Before the clock starts."""

    def begin(self, training: Training) -> None: ...

    def end(self) -> None: ...

    def recorded(self) -> Recorded:
        """After the clock has stopped: what the step left; undoes `prepare` and throws the record away."""

    def digest(self, tensor: torch.Tensor) -> Any:
        """As the peer would record it."""
