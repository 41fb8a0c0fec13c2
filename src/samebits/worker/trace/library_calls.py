"""Calls beneath the dispatcher: kernels that libraries launch by themselves, seen where Python calls them.

`install` waits for each library, so that what it exports is wrapped before others bind its names; wrapped functions
are inert until a step is traced. Of each call: what it was given, and what it left in every tensor among its arguments
and results, for its signature does not say which of them it writes. Room to work in is neither. Memory that was made
and that nobody seen has filled is no input.

Not seen: what C++ launches from C++, and names that were bound before `install`. Their bytes show as `given`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from samebits.fingerprint.records import Kind, Site
from samebits.worker.import_hooks import Finder
from samebits.worker.trace.dispatch import Operations, further
from samebits.worker.trace.libraries import LAUNCHERS, LIBRARIES, NAMES, TUNERS, Library
from samebits.worker.trace.memory_writes import Ledger
from samebits.worker.trace.tensors import tensors_of
from samebits.worker.trace.texts import plain_text
from samebits.worker.trace.trace import is_quiet, quiet

_PARTS = (
    *("_data", "_rowwise_data", "_columnwise_data", "_transpose", "_scale_inv", "_rowwise_scale_inv"),
    *("_columnwise_scale_inv", "_amax_rowwise", "_amax_columnwise"),
)
"""Attributes in which Transformer Engine keeps the bytes of a quantized tensor."""

_ACTIVE: list[Probes] = []


class Probes:
    """Recorder of the library calls of one step, while it is active."""

    def __init__(self, operations: Operations, ledger: Ledger) -> None:
        self._operations = operations
        self._ledger = ledger

    def start(self) -> None:
        _ACTIVE[:] = [self]

    def stop(self) -> None:
        _ACTIVE.clear()

    def call(self, probe: Probe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site = self._operations.site(Kind.CALL, probe.name(args))
        given, text = probe.given(args, kwargs), plain_text((args, kwargs))
        sources = self._ledger.read(site, [one for one in given if not self._ledger.is_blank(one)], text)
        with quiet():
            result = probe.function(*args, **kwargs)
        self._write(site, [*plain_parts(result), *probe.written(args, kwargs)], sources)
        return result

    def _write(self, site: Site, outputs: Sequence[torch.Tensor], sources: Any) -> None:
        seen: list[torch.Tensor] = []
        for output in outputs:
            if not any(output is other for other in seen):
                self._ledger.write(further(site, len(seen)), output, sources)
                seen.append(output)


@dataclass(frozen=True)
class Probe:
    """One wrapped function. label: of a record; a launcher's kernel has its own name."""

    function: Callable[..., Any]
    label: str
    rooms: frozenset[int] = frozenset()
    written_places: frozenset[int] | None = None
    is_launcher: bool = False

    def name(self, args: Sequence[Any]) -> str:
        return f"{self.label}.{kernel_name(args[0])}" if self.is_launcher else self.label

    def given(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        return [
            *plain_parts([one for number, one in enumerate(args) if number not in self.rooms]),
            *plain_parts(kwargs),
        ]

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        if self.written_places is None:
            return self.given(args, kwargs)
        return plain_parts([one for number, one in enumerate(args) if number in self.written_places])


def plain_parts(value: Any) -> list[torch.Tensor]:
    """The plain tensors in it; of a quantized one those that hold its bytes."""
    if isinstance(value, list | tuple):
        return [part for one in value for part in plain_parts(one)]
    if isinstance(value, dict):
        return [part for one in value.values() for part in plain_parts(one)]
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return [value]
    parts = [getattr(value, name, None) for name in _PARTS] if hasattr(value, "__dict__") else []
    return [part for part in parts if isinstance(part, torch.Tensor)] or tensors_of(value)


def kernel_name(kernel: Any) -> str:
    """Of a Triton kernel."""
    function = getattr(kernel, "fn", kernel)
    return str(getattr(function, "__name__", type(function).__name__))


def install() -> None:
    """From now on, in this process. Imports nothing; before what binds the libraries' names is imported."""
    Finder(dict.fromkeys(NAMES, attach)).install()


def attach(module: ModuleType) -> None:
    """Wraps what the module exports; nothing twice."""
    name = module.__name__
    if vars(module).get("_samebits_probed"):
        return
    if library := LIBRARIES.get(name):
        for own, function in [*_computing(module, library)]:
            rooms, written = library.rooms.get(own, frozenset()), library.written.get(own)
            setattr(module, own, _probed(Probe(function, f"{name}.{own}", rooms, written)))
    if launcher := getattr(module, LAUNCHERS.get(name, ""), None):
        launcher.run = _probed(Probe(launcher.run, "triton", is_launcher=True))
    if tuner := getattr(module, TUNERS.get(name, ""), None):
        tuner.run = _probed(Probe(tuner.run, "triton", is_launcher=True))
    module._samebits_probed = True  # type: ignore[attr-defined]


def _computing(module: ModuleType, library: Library) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(module).items():
        if isinstance(value, BuiltinFunctionType | FunctionType) and not name.startswith(library.not_computing):
            yield name, value


def _probed(probe: Probe) -> Callable[..., Any]:
    def probed(*args: Any, **kwargs: Any) -> Any:
        if not _ACTIVE or is_quiet() or kwargs.get("warmup"):
            return probe.function(*args, **kwargs)
        return _ACTIVE[0].call(probe, args, kwargs)

    probed.__name__ = getattr(probe.function, "__name__", probe.label)
    probed.__doc__ = probe.function.__doc__
    return probed
