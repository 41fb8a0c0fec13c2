"""Where tokens go to experts and come back: Megatron's token dispatchers, of any kind.

`dispatch`: from the hidden states and their routing, before anything is permuted, to what the local experts get.
`combine`: from what the local experts return to the hidden states in their old order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from samebits.fingerprint.records import Kind, Site
from samebits.worker.patches import Patches
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.tensors import numbered, tensors_of
from samebits.worker.trace.trace import Sources, Trace, is_quiet

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
