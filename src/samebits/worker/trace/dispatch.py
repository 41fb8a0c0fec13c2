"""Rung `op`: every dispatched operation, forward, backward and optimizer, of ATen and of others' libraries.

What a record says. Inputs are read before the operation runs, outputs after it: every result, and every argument that
the schema says is written. The input digest is of all tensors in order, of their forms and of the plain arguments. An
argument that is overwritten as a whole (`copy_`, `out=`) is no input. A number that an operation returns is recorded
itself. The bytes are those in the order of memory, each once: a transposed or expanded tensor is read as it lies, which
costs a tenth, and the form in the text tells the rest.

A view has a record that says which view it is, by shape, strides and distance from what it views, and costs no read:
its bytes are those of another record. Who reads it reads its bytes, and where these were left in another shape (a slice
of what was written whole) there is a record of kind `given` before the reader's. So a changed slice shows at the slice,
a changed bit at who changed it, and a hidden writer before who read it first.

Not recorded, but counted by reason (`samebits.worker.trace.dispatch`): copies to the host that nobody waits for;
tensors whose bytes are not plain (subclasses are unwrapped by themselves, so that their parts are seen). Compiled
regions run as compiled: what they call through the dispatcher is seen, and what they leave shows as `given`.

What an operation does with its arguments, as its schema says, and which operations are known artifacts.

A known artifact has bytes that may differ between two equal runs, or none of its own: it is counted, not recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.trace.autograd_nodes import Nodes
from samebits.worker.trace.memory_writes import Ledger, is_readable, site_of
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.texts import form_text, plain_text
from samebits.worker.trace.trace import Trace, is_quiet


class Role(Enum):
    """READ: not changed. UPDATED: read and changed. FILLED: changed, and what was in it before does not matter.
    IGNORED: neither read nor recorded."""

    READ = 0
    UPDATED = 1
    FILLED = 2
    IGNORED = 3


UNINITIALISED, ALIAS, IN_FLIGHT, NOT_ATEN = "uninitialised", "view", "in-flight", "higher-order"
"""Reasons why an operation gives no record."""

_UNINITIALISED = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
        *("new_empty", "new_empty_strided", "resize_", "resize_as_", "set_", "resize"),
    }
)
"""They leave whatever the memory held, or give a tensor other memory."""

_ALIASES = frozenset({"detach", "detach_", "alias", "lift_fresh", "lift", "requires_grad_", "_version"})
"""The same bytes in the same form."""

_VIEWS = frozenset({"_unsafe_view", "_reshape_alias"})
"""Views whose schema does not say so."""

_FILLS = frozenset(
    {
        *("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_"),
        *("geometric_", "log_normal_", "eye_", "_foreach_zero_", "_foreach_copy_"),
    }
)
"""They overwrite all of what they are given: what an empty tensor held before is no input."""

_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
_ARRIVED = frozenset({"wait_tensor"})

_UNSET = frozenset(
    {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask", "workspace", "reserve", "cum_seq_q"}
    | {"cum_seq_k"}
)
"""Arguments and results of fused operations that are left unset in some of their ways to go."""

_SCALING = ("addmm", "baddbmm", "addbmm", "addmv", "addr", "_addmm")
"""They compute beta * first + a product."""


@dataclass(frozen=True)
class Signature:
    """name: as in records. roles: of each argument, in the schema's order. places: argument name -> number.
    skipped: reason why there is no record. is_view: gives other forms of the same bytes. unset: numbers of results that
    are not digested. scales: with beta=0 the first argument is not read, whatever it holds."""

    name: str
    roles: tuple[Role, ...]
    places: dict[str, int]
    skipped: str | None
    is_view: bool
    unset: frozenset[int]
    scales: bool

    def roles_with(self, beta: object) -> tuple[Role, ...]:
        """beta: what the call says of it."""
        if not self.scales or beta != 0:
            return self.roles
        return (Role.IGNORED if self.roles[0] is Role.READ else Role.FILLED, *self.roles[1:])


@functools.cache
def signature_of(function: OpOverload) -> Signature:
    schema = function._schema
    base = schema.name.partition("::")[2]
    written = any(argument.is_write for argument in schema.arguments)
    return Signature(
        name=str(function),
        roles=tuple(_role(argument, base, function) for argument in schema.arguments),
        places={argument.name: number for number, argument in enumerate(schema.arguments)},
        skipped=_skipped(function.namespace, base),
        is_view=not written
        and (base in _VIEWS or any(one.alias_info is not None and not one.is_write for one in schema.returns)),
        unset=frozenset(number for number, one in enumerate(schema.returns) if one.name in _UNSET),
        scales=any(argument.name == "beta" for argument in schema.arguments) and base.startswith(_SCALING),
    )


def _role(argument: Any, base: str, function: OpOverload) -> Role:
    if argument.name in _UNSET or (function.namespace in _COLLECTIVES and base in _ARRIVED):
        return Role.IGNORED
    if not argument.is_write:
        return Role.READ
    return Role.FILLED if argument.is_out or base in _FILLS else Role.UPDATED


def _skipped(namespace: str, base: str) -> str | None:
    if namespace in _COLLECTIVES and base not in _ARRIVED:
        return IN_FLIGHT
    if namespace == "aten" and base in _UNINITIALISED:
        return UNINITIALISED
    return ALIAS if namespace == "aten" and base in _ALIASES else None


NOT_WAITED_FOR, SUBCLASS, FAKE = "non-blocking", "subclass", "fake"
_NEW = ("empty", "new_empty")
"""Beginnings of names of what asks for memory and fills nothing; `set_` and `resize_` may keep what is there."""


class TracingError(RuntimeError):
    """Operations of a step ran without being seen, so its trace would be incomplete."""


class Operations:
    """Recorder of the operations of one step, installed as a torch dispatch mode between `start` and `stop`.

    PyTorch keeps a stack of dispatch modes per thread; each operation goes to the topmost first, which runs it again
    with itself off the stack. updater: scope of what runs in the optimizer's update, outside all modules.
    """

    def __init__(self, trace: Trace, scopes: Scopes, ledger: Ledger, nodes: Nodes, updater: str) -> None:
        self._trace = trace
        self._scopes = scopes
        self._ledger = ledger
        self._nodes = nodes
        self._updater = updater
        self._mode = _Mode(self)

    def start(self) -> None:
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Take the mode off the stack again.

        Raises TracingError where the program's own modes have taken it off before: operations were not seen.
        """
        modes = _get_current_dispatch_mode_stack()
        if self._mode not in modes:
            raise TracingError(
                "rung op: a torch dispatch mode of the program (a FLOP counter, a debug mode) was entered before this "
                "step and left inside it: operations were not seen; leave it between steps, or take another rung"
            )
        # Modes that the program entered during the step and has not left lie above ours. A stack can only be popped
        # from the top, so they are taken off and put back.
        above = modes[modes.index(self._mode) + 1 :]
        for _ in above:
            _pop_mode()
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in above:
            _push_mode(mode)

    def skip(self, reason: str) -> None:
        self._ledger.skip(reason)

    def run(self, function: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        signature = signature_of(function)
        reason = signature.skipped or unwaited(signature, args, kwargs)
        if reason is not None:
            return self._run_unrecorded(reason, function, args, kwargs)
        site = self.site(Kind.OP, signature.name)
        self._nodes.met(site)
        read, written, text = _bound(signature, args, kwargs)
        if signature.is_view:
            return self._run_view(site, read, text, lambda: function(*args, **kwargs))
        sources = self._ledger.read(site, read, text)
        result = function(*args, **kwargs)
        # An operation in place returns the argument that it wrote: one record, not two.
        outputs = [*_results(signature, result)]
        outputs += [one for one in written if not any(one is other for other in outputs)]
        for number, output in enumerate(outputs):
            numbered = further(site, number)
            if isinstance(output, torch.Tensor):
                self._ledger.write(numbered, output, sources)
            else:
                self._ledger.say(numbered, output, sources)
        return result

    def site(self, kind: Kind, name: str) -> Site:
        """Return the site of the operation that is about to run on this thread, and keep its call stack.

        In a backward pass no Python frame of the model is active: scope and stack are those of the forward operation
        that made the autograd node, unless a module is computed again inside the pass.
        """
        phase, scope, maker = self._trace.phase, self._scopes.scope, None
        if phase is Phase.BACKWARD and not self._scopes.holds:
            maker, scope = self._nodes.site(), self._nodes.scope() or scope
        elif phase is Phase.UPDATE and not scope:
            scope = self._updater
        site = site_of(phase, kind, name, scope)
        self._ledger.place(site, maker)
        return site

    def _run_unrecorded(self, reason: str, function: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if reason != ALIAS:
            # It may make an autograd node too, and numbers of nodes must stay in step with those of autograd.
            self._nodes.met(site_of(self._trace.phase, Kind.OP, str(function), self._scopes.scope))
        self._ledger.skip(reason)
        result = function(*args, **kwargs)
        if function.__name__.startswith(_NEW) and isinstance(result, torch.Tensor):
            self._ledger.make_blank(result)
        return result

    def _run_view(self, site: Site, read: Sequence[torch.Tensor], text: str, run: Callable[[], Any]) -> Any:
        sources = self._ledger.read(site, (), text)
        result = run()
        base = read[0] if read else None
        for number, view in enumerate(result if isinstance(result, list | tuple) else (result,)):
            if isinstance(view, torch.Tensor) and is_readable(view) and base is not None:
                text = f"{form_text(view)} {view.storage_offset() - base.storage_offset()}"
                self._ledger.describe(further(site, number), view, text, sources)
        return result


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, operations: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions run as compiled, not operation by operation."""
        return True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_quiet():
            return function(*args, **(kwargs or {}))
        if not isinstance(function, OpOverload):
            self._operations.skip(NOT_ATEN)
            return function(*args, **(kwargs or {}))
        if any(issubclass(kind, FakeTensor) for kind in types):
            self._operations.skip(FAKE)
            return function(*args, **(kwargs or {}))
        if any(kind is not torch.Tensor and kind is not torch.nn.Parameter for kind in types):
            # NotImplemented passes the call to the subclass, which unwraps itself; its inner operations come here.
            self._operations.skip(SUBCLASS)
            return NotImplemented
        return self._operations.run(function, args, kwargs or {})


def further(site: Site, number: int) -> Site:
    """Return the site of output `number` of an operation; output 0 has the operation's own site."""
    return site if not number else site_of(site.phase, site.kind, f"{site.name}#{number}", site.scope)


def _bound(
    signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
    """Return the tensors that are read, the tensors that are written, and the text of all arguments."""
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    texts: list[str] = []
    for name, role, value in _arguments(signature, args, kwargs):
        if isinstance(value, torch.Tensor):
            tensors: Sequence[torch.Tensor] = (value,)
            texts.append(form_text(value))
        elif isinstance(value, list | tuple) and any(isinstance(one, torch.Tensor) for one in value):
            tensors = [one for one in value if isinstance(one, torch.Tensor)]
            texts.append(plain_text(value))
        else:
            texts.append(f"{name}={plain_text(value)}")
            continue
        if role in (Role.READ, Role.UPDATED):
            read.extend(tensors)
        if role in (Role.UPDATED, Role.FILLED):
            written.extend(tensors)
    return read, written, " ".join(texts)


def _arguments(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[str, Role, Any]]:
    names = list(signature.places)
    roles = signature.roles_with(kwargs.get("beta", 1))
    for number, value in enumerate(args):
        yield names[number], roles[number], value
    for name, value in kwargs.items():
        yield name, roles[signature.places[name]], value


def _results(signature: Signature, result: Any) -> Iterator[torch.Tensor | bool | int | float]:
    for number, one in enumerate(result if isinstance(result, tuple) else (result,)):
        if number not in signature.unset:
            for entry in one if isinstance(one, list | tuple) else (one,):
                if isinstance(entry, torch.Tensor | bool | int | float):
                    yield entry


def unwaited(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Return NOT_WAITED_FOR for an asynchronous copy from a device to the host, else None.

    Its bytes arrive at some later time; reading them here would record whatever is there by then.
    """
    if signature.name == "aten._to_copy.default":
        there, source, unwaited = kwargs.get("device"), args[0], kwargs.get("non_blocking", False)
        to_host = there is not None and torch.device(there).type == "cpu"
    elif signature.name == "aten.copy_.default":
        source, unwaited = args[1], args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        to_host = args[0].is_cpu
    else:
        return None
    return NOT_WAITED_FOR if unwaited and to_host and not source.is_cpu else None
