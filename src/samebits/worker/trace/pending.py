"""Collectives and messages in flight: tensors that are still to be filled.

Nothing in flight is read: its bytes depend on timing. The output of an asynchronous launch is read when the program
itself waits for the launch's Work, right after that wait returns. No wait is added, since that would change the timing
of the run that is traced: what the program does not wait for inside the step is counted, and not read.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from samebits.worker.patches import Patches
from samebits.worker.trace.trace import quiet

Landed = Callable[[Any], None]
"""Callback on arrival. Gets the Work, or None where the launch was synchronous and had none."""

_OBJECTS = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)
"""Functions of torch.distributed that send pickled Python objects, whose bytes may differ between equal runs."""


class Landings:
    """Callbacks of launches in flight, between `start` and `stop`.

    The methods by which a program learns that a Work is done are patched. Launches inside a coalescing block of NCCL
    have no Work of their own: they are held back per group until the block ends, and arrive with the Work of the whole.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._waiting: weakref.WeakKeyDictionary[Any, list[Landed]] = weakref.WeakKeyDictionary()
        self._together: dict[Any, list[tuple[str, Landed]]] = {}
        self._aloft: Counter[str] = Counter()

    def start(self) -> None:
        for name in ("wait", "synchronize", "block_current_stream"):
            if original := getattr(dist.Work, name, None):
                self._patches.replace(dist.Work, name, self._waited(original))
        self._patches.replace(dist.Work, "is_completed", self._asked(dist.Work.is_completed))
        self._patches.replace(dist.ProcessGroup, "_start_coalescing", self._begun(dist.ProcessGroup._start_coalescing))
        self._patches.replace(dist.ProcessGroup, "_end_coalescing", self._ended(dist.ProcessGroup._end_coalescing))
        for module in (dist, dist.distributed_c10d):
            for name in _OBJECTS:
                if original := getattr(module, name, None):
                    self._patches.replace(module, name, _unseen(original))

    def stop(self) -> dict[str, int]:
        """Undo the patches and return how many launches were not waited for, by the name given to `add`."""
        self._patches.restore()
        self._waiting.clear()
        self._together.clear()
        left = dict(+self._aloft)
        self._aloft.clear()
        return left

    def add(self, group: Any, work: Any, name: str, landed: Landed) -> None:
        """Register a launch. landed: called once on arrival; at once where there is nothing to wait for."""
        self._aloft[name] += 1
        if group in self._together:
            self._together[group].append((name, landed))
        else:
            self._attach(work, name, landed)

    def _attach(self, work: Any, name: str, landed: Landed) -> None:
        def once(found: Any) -> None:
            self._aloft[name] -= 1
            landed(found)

        if work is None:
            once(None)
        else:
            self._waiting.setdefault(work, []).append(once)

    def _land(self, work: Any) -> None:
        for landed in self._waiting.pop(work, ()):
            landed(work)

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            self._land(work)
            return result

        return wait

    def _asked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Patch `is_completed`: a program that is told so reads the tensors without a wait."""

        def is_completed(work: Any) -> Any:
            result = original(work)
            if result:
                self._land(work)
            return result

        return is_completed

    def _begun(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(group: Any, *args: Any) -> Any:
            self._together[group] = []
            return original(group, *args)

        return start

    def _ended(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(group: Any, *args: Any) -> Any:
            work = original(group, *args)
            for name, landed in self._together.pop(group, ()):
                self._attach(work, name, landed)
            return work

        return end


def _unseen(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with quiet():
            return original(*args, **kwargs)

    return call
