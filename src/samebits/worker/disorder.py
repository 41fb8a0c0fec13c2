"""Planted faults whose result is another one in every run: nondeterminism at one known place.

Each strikes in one step on one rank, and notes the traced record that must be named for it. Whether it strikes in this
run at all may be a matter of chance, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.records import Kind, Moment, Phase, Site
from samebits.spec.questions import Fault
from samebits.worker import chance
from samebits.worker.capture.state import modules
from samebits.worker.faults import FaultError, planted_note
from samebits.worker.hooks import Training, Watcher

if TYPE_CHECKING:
    from samebits.fingerprint.writer import Recorder

_OP = "disorder.arrival.default"
Change = Callable[[torch.Tensor], torch.Tensor]

OUTPUTS: dict[str, tuple[Change, str, Kind, str]] = {
    "reduction-order": (chance.disordered, "layernorm", Kind.OP, _OP),
    "unstable-gemm": (chance.disordered, "linear_qkv", Kind.OP, _OP),
    "wrong-stream": (chance.drawn, "linear_proj", Kind.OP, "aten.bernoulli.default"),
    "uninitialised": (chance.unwritten, "linear_proj", Kind.GIVEN, "before aten.clamp.default"),
    "hidden-write": (chance.overwritten, "linear_qkv", Kind.MODULE, ""),
    "hidden-call": (chance.called_hidden, "linear_proj", Kind.CALL, "HiddenKernel.forward"),
    "scatter-order": (chance.scattered_back, "word_embeddings", Kind.OP, _OP),
    "backward-order": (chance.hidden_back, "linear_proj", Kind.CALL, "HiddenBack.backward"),
    "branch": (chance.branched, "linear_proj", Kind.OP, "aten.mul.Tensor"),
}
"""What is done to a module's output; the module, by the end of its name, where the fault names none; and the record
that shows it first (an empty name: the module's)."""
_INSIDE = {"scatter-order": "ScatterBack.backward"}
"""Faults whose record stands inside a call of their own."""

_BACKWARD = ("scatter-order", "backward-order")

KINDS = (*OUTPUTS, "random-split", "combine-order", "collective-output", "message", "hash-shuffle", "update-order")


class Disorder(Watcher):
    """Plants one of KINDS. Made before torch.distributed is wrapped by anybody, for some faults lie below that.

    recorder: gives the recorder, once there is one.
    """

    def __init__(self, fault: Fault, recorder: Callable[[], Recorder]) -> None:
        self._fault = fault
        self._recorder = recorder
        self._strikes = chance.by_chance().random() < fault.probability
        self._on = self._noted = False
        self._training: Training
        if fault.kind == "collective-output":
            self._below_collectives()
        if fault.kind == "message":
            self._below_messages()

    def on_start(self, training: Training) -> None:
        self._training = training
        if training.coordinates.rank != self._fault.rank:
            return
        if self._fault.kind in OUTPUTS:
            change, ending, kind, name = OUTPUTS[self._fault.kind]
            self._change_output(self._module(ending), change, kind, name)
        elif self._fault.kind == "random-split":
            self._split(*self._module("linear_qkv"))
        elif self._fault.kind == "combine-order":
            self._change_combine(*self._module("mlp"))
        elif self._fault.kind == "update-order":
            self._change_update(training.optimizer)

    def on_step_begin(self, training: Training) -> None:
        self._on = self._strikes and self._here(training)

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        if self._on and self._fault.kind == "hash-shuffle":
            order = self._order(len(batch["tokens"]))
            for tensor in batch.values():
                tensor.copy_(tensor[order].clone())
            self._note(Site(Phase.DATA, Kind.BATCH, "tokens"))

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        self._on = False

    def _order(self, samples: int) -> list[int]:
        """By hashes: with target `text` of texts, which a hash seed changes; else of objects, never the usual one."""
        if self._fault.target == "text":
            return sorted(range(samples), key=lambda number: hash(str(number)))
        order = sorted(range(samples), key=lambda _: hash(object()))
        return order[::-1] if order == sorted(order) else order

    def _here(self, training: Training) -> bool:
        return training.step == self._fault.step and training.coordinates.rank == self._fault.rank

    def _note(self, site: Site) -> None:
        if not self._noted:
            self._noted = True
            self._recorder().note(planted_note(self._training, Moment.STEP, self._fault, site))

    def _module(self, ending: str) -> tuple[str, Any]:
        """The named one, or the first whose name ends so."""
        found = {
            ".".join(filter(None, (scope, name))): module
            for scope, model in modules(self._training)
            for name, module in model.named_modules()
        }
        for name, module in found.items():
            if name == self._fault.target or (self._fault.target is None and name.endswith(ending)):
                return name, module
        wanted = self._fault.target or f"a module that ends with {ending}"
        raise FaultError(f"{self._fault.kind}: target is {wanted!r}, must be a module of rank {self._fault.rank}")

    def _change_output(self, where: tuple[str, Any], change: Change, kind: Kind, called: str) -> None:
        name, module = where
        original = module.forward
        inside = f"/{_INSIDE[self._fault.kind]}" if self._fault.kind in _INSIDE else ""
        scope, called = (f"{name}{inside}", called) if called else ("", name)
        phase = Phase.BACKWARD if self._fault.kind in _BACKWARD else Phase.FORWARD

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if not self._on:
                return output
            self._note(Site(phase, kind, called, scope))
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        module.forward = forward

    def _split(self, name: str, module: Any) -> None:
        original = module.forward

        def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            output = original(x, *args, **kwargs)
            if not self._on:
                return output
            self._note(Site(Phase.FORWARD, Kind.CALL, "SplitGemm.forward", name))
            return chance.SplitGemm.apply(x, module.weight), *output[1:]  # type: ignore[no-untyped-call]

        module.forward = forward

    def _change_combine(self, name: str, module: Any) -> None:
        original = module.combine

        def combine(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if not self._on:
                return output
            self._note(Site(Phase.FORWARD, Kind.OP, _OP, name))
            return chance.disordered(output)

        module.combine = combine

    def _change_update(self, optimizer: Any) -> None:
        """The gradient of the first parameter, once gradients are ready to be stepped with."""
        first = (getattr(optimizer, "chained_optimizers", None) or [optimizer])[0]
        original = optimizer.prepare_grads

        def prepare_grads() -> Any:
            found = original()
            if self._on:
                self._note(Site(Phase.UPDATE, Kind.OP, _OP, type(first).__name__))
                gradient = first.get_parameters()[0].grad
                gradient.copy_(chance.disordered(gradient))
            return found

        optimizer.prepare_grads = prepare_grads

    def _below_collectives(self) -> None:
        """The first all-reduce of numbers in the step gives this rank another result."""
        original = dist.ProcessGroup.allreduce

        def allreduce(group: Any, tensors: Any, *args: Any) -> Any:
            work = original(group, tensors, *args)
            listed = [tensors] if isinstance(tensors, torch.Tensor) else tensors
            members = ranks_text(dist.get_process_group_ranks(group))
            if self._on and not self._noted and listed[0].is_floating_point() and not members.isdecimal():
                work.wait()
                chance.hidden(listed[0])
                self._note(Site(Phase.FORWARD, Kind.COLLECTIVE, "all_reduce", f"ranks {members}"))
            return work

        dist.ProcessGroup.allreduce = allreduce  # type: ignore[method-assign, assignment]

    def _below_messages(self) -> None:
        """The first message that this rank receives in the step has other bytes than were sent."""
        received: dict[int, tuple[Any, torch.Tensor, int]] = {}
        receive, wait = dist.ProcessGroup.recv, dist.Work.wait

        def recv(group: Any, tensors: Any, source: int, *args: Any) -> Any:
            work = receive(group, tensors, source, *args)
            if self._on and not self._noted:
                received[id(work)] = work, tensors[0], dist.get_process_group_ranks(group)[source]
                self._note(Site(Phase.FORWARD, Kind.RECEIVE, "recv", f"from {received[id(work)][2]}"))
            return work

        def waited(work: Any, *args: Any) -> Any:
            done = wait(work, *args)
            if id(work) in received:
                chance.hidden(received.pop(id(work))[1])
            return done

        dist.ProcessGroup.recv = recv  # type: ignore[method-assign, assignment]
        dist.Work.wait = waited  # type: ignore[method-assign, assignment]
