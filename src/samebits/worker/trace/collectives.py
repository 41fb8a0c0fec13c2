"""Collectives: what each rank gave when it launched one, and what it had when it waited for it.

Seen where all of Python's ways to a collective meet, in the methods of ProcessGroup: functions of torch.distributed
under any name that a library has bound, coalesced ones too. Not seen: those that C++ starts by itself (torch's DDP
reducer) and functional ones (`torch.ops._c10d_functional`), which are operations.

Collectives and messages in flight: tensors that are still to be filled.

Nothing in flight is read: its bytes depend on timing. The output of an asynchronous launch is read when the program
itself waits for the launch's Work, right after that wait returns. No wait is added, since that would change the timing
of the run that is traced: what the program does not wait for inside the step is counted, and not read.

Messages from one rank to another: what is sent, when it is sent; what is received, once it is waited for.

Both sides give a message the same number as they launch it, which is its input: receives are recorded in the order in
which they are waited for, and that may be another one.

Seen in the methods of ProcessGroup: `isend` and `irecv` themselves must stay what they are, P2POp compares them by
identity.

Where tokens go to experts and come back: Megatron's token dispatchers, of any kind.

`dispatch`: from the hidden states and their routing, before anything is permuted, to what the local experts get.
`combine`: from what the local experts return to the hidden states in their old order.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.patches import Patches
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.tensors import numbered, tensors_of
from samebits.worker.trace.trace import Sources, Trace, is_quiet, quiet

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


_DISPATCHERS = "megatron.core.transformer.moe.token_dispatcher"
_ENTRIES = {"dispatch_preprocess": "dispatch", "combine_preprocess": "combine"}
_EXITS = {"dispatch_postprocess": "dispatch", "combine_postprocess": "combine"}

_Key = tuple[int, str]


class Experts:
    """A tracer."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._patches = Patches()
        self._entered: dict[_Key, Sources] = {}
        self._inside: set[_Key] = set()
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        base = getattr(sys.modules.get(_DISPATCHERS), "MoETokenDispatcher", None)
        for dispatcher in _family(base) if base else ():
            for names, wrapped in ((_ENTRIES, self._entry), (_EXITS, self._exit)):
                for method, name in names.items():
                    if method in vars(dispatcher):
                        self._patches.replace(dispatcher, method, wrapped(getattr(dispatcher, method), name))

    def stop(self) -> None:
        self._patches.restore()
        self._entered.clear()
        self._inside.clear()

    def _entry(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def preprocess(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
            key = id(dispatcher), name
            if not is_quiet() and key not in self._inside:
                self._entered[key] = self._trace.sources(tensors_of((args, kwargs)))
            return self._within(key, original, dispatcher, *args, **kwargs)

        return preprocess

    def _exit(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def postprocess(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
            key = id(dispatcher), name
            nested = key in self._inside
            output = self._within(key, original, dispatcher, *args, **kwargs)
            if not is_quiet() and not nested:
                sources = self._entered.pop(key, None)
                for own, tensor in numbered(name, tensors_of(output)):
                    self._trace.record(Site(self._trace.phase, Kind.CALL, own, self._scopes.scope), tensor, sources)
            return output

        return postprocess

    def _within(self, key: _Key, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A method that calls its base class's is one."""
        before = key in self._inside
        self._inside.add(key)
        try:
            return original(*args, **kwargs)
        finally:
            if not before:
                self._inside.discard(key)


def _family(base: Any) -> Iterator[Any]:
    """A class and all that are made from it."""
    yield base
    for child in base.__subclasses__():
        yield from _family(child)
