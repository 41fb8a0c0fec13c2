"""Messages from one rank to another: what is sent, when it is sent; what is received, once it is waited for.

Both sides give a message the same number as they launch it, which is its input: receives are recorded in the order in
which they are waited for, and that may be another one.

Seen in the methods of ProcessGroup: `isend` and `irecv` themselves must stay what they are, P2POp compares them by
identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from samebits.fingerprint.records import Kind, Site
from samebits.worker.patches import Patches
from samebits.worker.trace.collectives import ranks_of
from samebits.worker.trace.pending import Landings
from samebits.worker.trace.tensors import numbered, tensors_of
from samebits.worker.trace.trace import Sources, Trace, is_quiet, quiet

_Lane = tuple[str, str, int, int]
"""Direction, group, peer and tag: what keeps its order."""


class Messages:
    """A tracer."""

    def __init__(self, landings: Landings) -> None:
        self._landings = landings
        self._patches = Patches()
        self._launched: Counter[_Lane] = Counter()
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        self._launched.clear()
        group = dist.ProcessGroup
        self._patches.replace(group, "send", self._sending(group.send))
        self._patches.replace(group, "recv", self._receiving(group.recv))
        self._patches.replace(group, "recv_anysource", self._receiving(group.recv_anysource))

    def stop(self) -> None:
        self._patches.restore()

    def _sending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(group: Any, tensors: Sequence[torch.Tensor], peer: int, *args: Any, **kwargs: Any) -> Any:
            if not is_quiet():
                sources = self._number("send", group, peer, args)
                for name, tensor in numbered("send", tensors_of(tensors)):
                    scope = f"to {ranks_of(group)[peer]}"
                    self._trace.record(Site(self._trace.phase, Kind.SEND, name, scope), tensor, sources)
            with quiet():
                return original(group, tensors, peer, *args, **kwargs)

        return send

    def _receiving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """peer: the first argument behind the tensors; of `recv_anysource` that is a tag, and the Work knows."""
        known = original.__name__ == "recv"

        def receive(group: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            if is_quiet():
                return original(group, tensors, *args, **kwargs)
            phase, trace, peer = self._trace.phase, self._trace, args[0] if known else None
            sources = self._number("recv", group, peer, args[1:]) if peer is not None else None

            def landed(work: Any) -> None:
                source = work._source_rank() if peer is None else peer
                for name, tensor in numbered("recv", tensors_of(tensors)):
                    trace.record(Site(phase, Kind.RECEIVE, name, f"from {ranks_of(group)[source]}"), tensor, sources)
                    trace.wrote(tensor)

            with quiet():
                work = original(group, tensors, *args, **kwargs)
            self._landings.add(group, work, "recv", landed)
            return work

        return receive

    def _number(self, direction: str, group: Any, peer: int, arguments: Sequence[Any]) -> Sources:
        """Return the message's number in its lane (direction, group, peer, tag) and step, as an input of its record."""
        lane = direction, str(group.group_name), ranks_of(group)[peer], int(arguments[0]) if arguments else 0
        self._launched[lane] += 1
        _, name, _, tag = lane
        return self._trace.sources([], [f"message {self._launched[lane]} of group {name}, tag {tag}".encode()])
