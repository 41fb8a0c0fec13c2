"""Functions of autograd (`torch.autograd.Function`): what each was given and gave, forward and backward, as a whole.

Seen in their own methods, so that it does not matter under which name a library keeps `apply`. A class that is made
while a step runs is seen from the next step on; those of torch.compile are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.fingerprint.records import Kind, Site
from samebits.worker.patches import Patches
from samebits.worker.trace.autograd_nodes import Nodes
from samebits.worker.trace.dispatch import Operations, further
from samebits.worker.trace.memory_writes import Ledger
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.tensors import tensors_of
from samebits.worker.trace.texts import plain_text
from samebits.worker.trace.trace import is_quiet

_LEFT_ALONE = ("torch._functorch", "torch._dynamo", "torch._higher_order_ops", "torch._inductor", "torch._library")
_METHODS = ("forward", "backward", "vjp")

Method = Callable[..., Any]


class Calls:
    """Of one step."""

    def __init__(self, operations: Operations, ledger: Ledger, nodes: Nodes, scopes: Scopes) -> None:
        self._operations = operations
        self._ledger = ledger
        self._nodes = nodes
        self._scopes = scopes
        self._patches = Patches()

    def start(self) -> None:
        for function in functions(torch.autograd.Function):
            for name in _METHODS:
                method = vars(function).get(name)
                if isinstance(method, staticmethod):
                    self._patches.replace(function, name, staticmethod(self._seen(function, name, method.__func__)))

    def stop(self) -> None:
        self._patches.restore()

    def call(self, site: Site, function: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls it, with a record of what it was given and what it returned."""
        given = [one for one in tensors_of((args, kwargs)) if not self._ledger.is_blank(one)]
        sources = self._ledger.read(site, given, plain_text((args, kwargs)))
        result = function(*args, **kwargs)
        for number, output in enumerate(tensors_of(result)):
            self._ledger.write(further(site, number), output, sources)
        return result

    def _seen(self, function: type, name: str, method: Method) -> Method:
        full = f"{function.__name__}.{'backward' if name == 'vjp' else name}"

        def seen(*args: Any, **kwargs: Any) -> Any:
            if is_quiet():
                return method(*args, **kwargs)
            site = self._operations.site(Kind.CALL, full)
            if name == "forward":
                self._nodes.begun(site)
            self._scopes.push(full, below=site.scope)
            try:
                return self.call(site, method, args, kwargs)
            finally:
                self._scopes.pop()

        return seen


def functions(base: type) -> Iterator[type]:
    """All that derive from it, each once, in no order that matters."""
    found: dict[type, None] = {}
    waiting = [base]
    while waiting:
        function: type
        for function in waiting.pop().__subclasses__():
            if function not in found:
                found[function] = None
                waiting.append(function)
    return (function for function in found if not function.__module__.startswith(_LEFT_ALONE))
