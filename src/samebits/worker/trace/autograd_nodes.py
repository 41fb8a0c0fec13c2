"""From a node of the backward pass to the operation of the forward pass that made it, by autograd's sequence numbers.

Each thread counts its own nodes. An operation is met after its own node took its number, so that it is the last one
taken; what is numbered between two operations (writes into views) belongs to the one before.
"""

from __future__ import annotations

import bisect
import threading

import torch

from samebits.fingerprint.records import Site

_UNNUMBERED = 1 << 63
"""Numbers from here on are not counted: that of a gradient's accumulation."""


class _Numbers:
    """Sites of the operations of one thread, by the sequence number of the autograd node that each made."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.sites: list[Site] = []

    def add(self, number: int, site: Site) -> None:
        if not self.numbers or number > self.numbers[-1]:
            self.numbers.append(number)
            self.sites.append(site)

    def find(self, number: int) -> Site | None:
        at = bisect.bisect_right(self.numbers, number) - 1
        return self.sites[at] if at >= 0 else None


class Nodes:
    """Sites of the autograd nodes of one step. parameters: id of each parameter -> scope of its module."""

    def __init__(self, parameters: dict[int, str]) -> None:
        self._parameters = parameters
        self._first = _Numbers()
        self._here = threading.local()
        self._here.numbers, self._here.next = self._first, next_number()

    def met(self, site: Site) -> None:
        """Note that an operation is about to run; its node, if it makes one, is seen by the number at the next call."""
        number = next_number()
        if number != getattr(self._here, "next", number):
            self._numbers().add(number - 1, site)
        self._here.next = number

    def begun(self, site: Site) -> None:
        """A function of autograd is about to run here, whose node took its number last."""
        number = next_number()
        self._numbers().add(number - 1, site)
        self._here.next = number

    def site(self) -> Site | None:
        """Return the site of the operation that made the node this thread runs; None where it is not known."""
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = int(node._sequence_nr())
        if number >= _UNNUMBERED:
            return None
        ours = self._numbers()
        found = ours.find(number)
        if ours is self._first or (found is not None and made(found, node.name())):
            return found
        # On a device a thread of its own runs the pass; what was computed again there counted from there.
        return self._first.find(number)

    def scope(self) -> str:
        """Return the scope of the operation that made the node this thread runs, else the node's own name."""
        found = self.site()
        if found is not None:
            return found.scope
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        variable = getattr(node, "variable", None)
        return self._parameters.get(id(variable), str(node.name()).rpartition("::")[2])

    def _numbers(self) -> _Numbers:
        if not hasattr(self._here, "numbers"):
            self._here.numbers = _Numbers()
        numbers: _Numbers = self._here.numbers
        return numbers


def next_number() -> int:
    """Return the sequence number that this thread's next node takes."""
    return int(torch._C._autograd._get_sequence_nr())


def made(site: Site, node: str) -> bool:
    """Return whether an operation makes nodes of that name: `aten._to_copy.default` makes `ToCopyBackward0`."""
    name = site.name.removeprefix("aten.").partition(".")[0].replace("_", "").lower()
    return node.rpartition("::")[2].lower().startswith(f"{name}backward")
