"""Collectives: what each rank gave when it launched one, and what it had when it waited for it.

Seen where all of Python's ways to a collective meet, in the methods of ProcessGroup: functions of torch.distributed
under any name that a library has bound, coalesced ones too. Not seen: those that C++ starts by itself (torch's DDP
reducer) and functional ones (`torch.ops._c10d_functional`), which are operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from samebits.fingerprint.ranks import ranks_text
from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.patches import Patches
from samebits.worker.trace.pending import Landings
from samebits.worker.trace.tensors import numbered, tensors_of
from samebits.worker.trace.trace import Sources, Trace, is_quiet, quiet


@dataclass(frozen=True)
class Method:
    """A method of ProcessGroup that starts a collective.

    name: function of torch.distributed. given: position of the argument with the inputs; the outputs are argument 0.
    one_each: the call makes several collectives, one for each tensor.
    """

    name: str
    given: int = 1
    one_each: bool = False


METHODS = {
    "allreduce": Method("all_reduce", given=0),
    "allreduce_coalesced": Method("all_reduce", given=0, one_each=True),
    "broadcast": Method("broadcast", given=0),
    "reduce": Method("reduce", given=0),
    "allgather": Method("all_gather"),
    "allgather_coalesced": Method("all_gather", one_each=True),
    "_allgather_base": Method("all_gather_into_tensor"),
    "all_gather_single": Method("all_gather_into_tensor"),
    "allgather_into_tensor_coalesced": Method("all_gather_into_tensor", one_each=True),
    "all_gather_single_coalesced": Method("all_gather_into_tensor", one_each=True),
    "gather": Method("gather"),
    "scatter": Method("scatter"),
    "reduce_scatter": Method("reduce_scatter"),
    "_reduce_scatter_base": Method("reduce_scatter_tensor"),
    "reduce_scatter_single": Method("reduce_scatter_tensor"),
    "reduce_scatter_tensor_coalesced": Method("reduce_scatter_tensor", one_each=True),
    "reduce_scatter_single_coalesced": Method("reduce_scatter_tensor", one_each=True),
    "alltoall": Method("all_to_all"),
    "alltoall_base": Method("all_to_all_single"),
    "all_to_all_single": Method("all_to_all_single"),
}
"""Methods of ProcessGroup by name, of all versions of torch from 2.4 on; each version has some of them."""

_FROM_ROOT = frozenset({"broadcast", "scatter"})
_TO_ROOT = frozenset({"reduce", "gather"})


class Collectives:
    """A tracer. A group of one rank moves nothing and is not recorded."""

    def __init__(self, landings: Landings) -> None:
        self._landings = landings
        self._patches = Patches()
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        for name, method in METHODS.items():
            if original := getattr(dist.ProcessGroup, name, None):
                self._patches.replace(dist.ProcessGroup, name, self._seen(original, method))

    def stop(self) -> None:
        self._patches.restore()

    def _seen(self, original: Callable[..., Any], method: Method) -> Callable[..., Any]:
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if is_quiet():
                return original(group, *args, **kwargs)
            launches = [*self._launches(method, group, [*args, *kwargs.values()])]
            with quiet():
                work = original(group, *args, **kwargs)
            for launch in launches:
                self._landings.add(group, work, f"{method.name} [{launch.scope}]", launch.landed)
            return work

        return call

    def _launches(self, method: Method, group: Any, arguments: Sequence[Any]) -> Iterator[_Launch]:
        ranks = ranks_of(group)
        scope = f"ranks {ranks_text(ranks)}"
        gives, gets = _roles(method.name, group, arguments)
        for given, made in _parts(method, arguments):
            inputs = tensors_of(given) if gives else []
            sources = self._trace.sources(inputs) if inputs and len(ranks) > 1 else None
            launch = _Launch(self._trace, self._trace.phase, method.name, scope, sources)
            if gets:
                launch.outputs = tensors_of(made)
            elif len(ranks) > 1:
                # What a rank gave is known by its launch alone.
                launch.record(inputs)
            launch.is_recorded = len(ranks) > 1
            yield launch


@dataclass
class _Launch:
    trace: Trace
    phase: Phase
    name: str
    scope: str
    sources: Sources | None
    outputs: Sequence[torch.Tensor] = ()
    is_recorded: bool = True

    def landed(self, _work: Any) -> None:
        """Bytes of a group of one are explained by no record: if they change, who reads them finds that."""
        if self.is_recorded:
            self.record(self.outputs)
            for output in self.outputs:
                self.trace.wrote(output)

    def record(self, tensors: Sequence[torch.Tensor]) -> None:
        for name, tensor in numbered(self.name, tensors):
            self.trace.record(Site(self.phase, Kind.COLLECTIVE, name, self.scope), tensor, self.sources)


def _roles(name: str, group: Any, arguments: Sequence[Any]) -> tuple[bool, bool]:
    """Return whether this rank gives inputs to the collective, and whether it gets outputs."""
    if name not in _FROM_ROOT | _TO_ROOT:
        return True, True
    at_root = _root(arguments) == group.rank()
    return (at_root, True) if name in _FROM_ROOT else (True, at_root)


def _root(arguments: Sequence[Any]) -> int:
    """Return the root's rank in the group: a field of the options, or a plain argument after the tensors."""
    found = (value if isinstance(value, int) else getattr(value, "rootRank", None) for value in arguments)
    return next((number for number in found if number is not None), 0)


def _parts(method: Method, arguments: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the inputs and the outputs of each collective that the call makes."""
    made, given = arguments[0], arguments[method.given]
    if method.one_each:
        yield from zip(given, made, strict=True)
    else:
        yield given, made


_RANKS: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()


def ranks_of(group: Any) -> tuple[int, ...]:
    """Return a group's global ranks in its order; its own numbers where torch.distributed did not make the group."""
    if group not in _RANKS:
        try:
            _RANKS[group] = tuple(dist.get_process_group_ranks(group))
        except KeyError:
            _RANKS[group] = tuple(range(group.size()))
    return _RANKS[group]
