"""Detects the steps of any loop that steps an optimizer, from what hooks on torch and Megatron Core report.

A step begins with its first batch or forward pass and ends with the step of the main optimizer, the first one that
ever steps. State counts as saved when the script reads it for that (torch.save of an optimizer's state, a distributed
checkpoint, the state of a random stream), at the next forward pass of training at the latest. Restored state is read
before the first forward pass of training.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from samebits.worker.hooks import Chain
from samebits.worker.inject import bootstrap
from samebits.worker.inject.session import Batch, InjectionError, Metrics, Session, named_tensors, session
from samebits.worker.trace.trace import is_quiet

_MOST_REPORTED = 4
"""Numbers of one entry of what a loss function reports: a sum and the count that it is of, for example."""


class Loop:
    """A training loop seen from outside.

    arm: asks for a call of `computing` before the next forward pass of training.
    """

    def __init__(self, arm: Callable[[], None]) -> None:
        self._arm = arm
        self._built: list[weakref.ref[Any]] = []
        self._main: weakref.ref[Any] | None = None
        self._stepping: list[Any] = []
        self._pending: Batch = {}
        self._losses: Metrics = {}
        self._drawing = 0

    @property
    def listens(self) -> bool:
        """Return whether hooks on torch count: in the process that trains, and not under Megatron-LM's own loop."""
        found = self._session()
        if is_quiet() or not found.mine or found.sealed:
            return False
        return found.adapter == "torch" or (found.adapter == "auto" and "megatron.training.training" not in sys.modules)

    def built(self, optimizer: Any) -> None:
        """Report a new optimizer."""
        self._built.append(weakref.ref(optimizer))

    @property
    def ready(self) -> bool:
        return bool(bootstrap.NAMED) or any(ref() is not None for ref in self._built)

    def computing(self) -> None:
        """Report that a forward pass of training is about to begin."""
        if not self.listens:
            return
        found = self._session()
        if not found.attached:
            found.attach(*self._trained())
        if found.save_due:
            found.save()
        if not found.open and not found.complete:
            self._begin(found)

    def drew(self, batch: Any) -> None:
        """Report a batch that the loop has drawn."""
        if self._drawing or not self.listens:
            return
        found = self._session()
        if found.attached and not found.open and not found.save_due and not found.complete:
            self._begin(found)
        if found.open:
            found.batch(named_tensors(batch))
        elif not found.complete:
            # The last one before the first forward pass: a resumed loop may draw and drop what came before it.
            self._pending = named_tensors(batch, copied=True)

    def drawing(self, draw: Callable[[], Any]) -> Any:
        """Draw a batch from the loop's own iterator, and ignore the iterators that it draws from in turn."""
        self._drawing += 1
        try:
            batch = draw()
        finally:
            self._drawing -= 1
        self.drew(batch)
        return batch

    def lost(self, losses: torch.Tensor) -> None:
        """Report the tensor at which a backward pass begins: a loss, if it is a scalar."""
        if losses.numel() == 1 and self.listens:
            self._note("loss", losses)

    def reduced(self, results: Any) -> None:
        """Report the results of a Megatron Core schedule: what the loss function returned for each micro-batch.

        They replace the losses seen where its backward passes began, which say less.
        """
        if not self.listens or not isinstance(results, list) or not results:
            return
        self._losses.clear()
        for result in results:
            for name, value in (result if isinstance(result, dict) else {"loss": result}).items():
                for tensor in value if isinstance(value, tuple | list) else (value,):
                    if torch.is_tensor(tensor):
                        for element in tensor.detach().reshape(-1)[:_MOST_REPORTED]:
                            self._note(name, element)

    def _note(self, name: str, value: torch.Tensor) -> None:
        """Keep a copy of a loss, as schedules divide losses in place. A repeated name gets a number."""
        number = sum(known.partition("#")[0] == name for known in self._losses)
        self._losses[f"{name}#{number}" if number else name] = value.detach().clone().reshape(())

    def stepping(self, optimizer: Any) -> None:
        """Report that an optimizer is about to step. A step inside another optimizer's step is ignored."""
        self._stepping.append(optimizer)
        if len(self._stepping) > 1 or not self.listens or not self._is_main(optimizer):
            return
        found = self._session()
        if not found.open:
            self.computing()
        if not found.open:
            # Beyond the plan's last step: says so.
            found.begin()
        found.gradients()

    def stepped(self, optimizer: Any, result: Any = None) -> None:
        """Report that an optimizer has stepped. result: of Megatron's optimizers (success, gradient norm, zeros)."""
        if optimizer in self._stepping:
            self._stepping.remove(optimizer)
        if self._stepping or not self.listens or not self._is_main(optimizer):
            return
        found = self._session()
        if not found.open:
            return
        found.end(self._metrics(optimizer, result))
        self._losses.clear()
        if found.save_due:
            self._arm()

    def saving(self) -> None:
        """Report that the script reads state, as it does to save it."""
        if self.listens and self._session().save_due:
            self._session().save()

    def _session(self) -> Session:
        return session()

    def _begin(self, found: Session) -> None:
        found.begin()
        found.batch(self._pending)
        self._pending = {}

    def _is_main(self, optimizer: Any) -> bool:
        if self._main is None:
            if bootstrap.NAMED and optimizer is not bootstrap.NAMED[-1][1]:
                return False
            self._main = weakref.ref(optimizer)
        return self._main() is optimizer

    def _trained(self) -> tuple[list[Any], Any]:
        """Return the model chunks and the optimizer; of nested optimizers the outermost."""
        if bootstrap.NAMED:
            return bootstrap.NAMED[-1]
        alive = [optimizer for ref in self._built if (optimizer := ref()) is not None]
        inner = {id(one) for optimizer in alive for one in _inside(optimizer)}
        outer = [optimizer for optimizer in alive if id(optimizer) not in inner]
        return trained_modules(outer), outer[0] if len(outer) == 1 else Chain(outer)

    def _metrics(self, optimizer: Any, result: Any) -> Metrics:
        found: Metrics = dict(self._losses)
        if isinstance(result, tuple) and len(result) == 3:
            found |= {
                name: value
                for name, value in zip(("grad-norm", "num-zeros"), result[1:], strict=True)
                if value is not None
            }
        if optimizer.param_groups:
            found["learning-rate"] = optimizer.param_groups[0].get("lr", 0.0)
        return found


def _inside(optimizer: Any) -> list[Any]:
    """Return the optimizers that step within this one's step."""
    held = [
        getattr(optimizer, "optimizer", None),
        getattr(optimizer, "optim", None),
        *getattr(optimizer, "chained_optimizers", ()),
    ]
    return [one for one in held if one is not None]


_LOOPS: list[Loop] = []


def of_process(arm: Callable[[], None]) -> Loop:
    """Return the loop of this process, made at the first call."""
    if not _LOOPS:
        _LOOPS.append(Loop(arm))
    return _LOOPS[0]


def trained_modules(optimizers: Sequence[Any]) -> list[Any]:
    """Return the outermost modules that hold what the optimizers step, in the order of their first parameters.

    Raises InjectionError where there is none.
    """
    chunks = [chunk for optimizer in optimizers for chunk in getattr(optimizer, "model_chunks", ())]
    if chunks:
        return list(dict.fromkeys(chunks))
    places = {id(tensor): place for place, tensor in enumerate(_stepped(optimizers))}
    found = []
    for module in _outermost():
        held = list(module.parameters())
        own = {places[key] for parameter in held for key in _keys(parameter) if key in places}
        if own:
            found.append((min(own), -len(held), type(module).__qualname__, own, module))
    if not found:
        raise InjectionError(
            "samebits: no module holds what the optimizer steps, so that no model can be captured; name it yourself: "
            "samebits.watch(model, optimizer)"
        )
    return list(_needed(sorted(found, key=lambda entry: entry[:3])))


def _needed(found: list[tuple[int, int, str, set[int], Any]]) -> Iterator[Any]:
    """Leave out wrappers of a model that a larger wrapper holds as well."""
    covered: set[int] = set()
    for _, _, _, own, module in found:
        if own - covered:
            covered |= own
            yield module


def _stepped(optimizers: Sequence[Any]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _keys(parameter: Any) -> list[int]:
    """Return the ids of a parameter and of its full-precision copy, which Megatron steps in its place."""
    return [id(parameter), id(getattr(parameter, "main_param", None))]


def _outermost() -> Iterator[Any]:
    """Return the modules that are in no other one, found through the garbage collector."""
    # By type: isinstance asks objects of all kinds for their class, and proxies answer by doing something.
    modules: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return (module for module in modules if id(module) not in inner)
