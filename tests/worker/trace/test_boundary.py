"""What modules, gradients, experts and the optimizer leave in a trace, and that nothing else changes."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

from samebits.fingerprint.records import Flag, Kind, Phase
from samebits.worker.capture.digest import digest
from samebits.worker.capture.reading import Reader, Reading
from samebits.worker.capture.state import modules
from samebits.worker.patches import Patches
from samebits.worker.trace.collectives import Experts, Landings
from samebits.worker.trace.gradients import LocalGradients, OptimizerStep
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.tensors import tensors_of
from samebits.worker.trace.trace import Trace, quiet
from samebits.worker.trace.tracers import Boundary


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None


class Twice(torch.nn.Module):
    """Returns tensors in a dataclass, a mapping and a tuple."""

    def forward(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        return Pair(tensor * 2, None), {"half": tensor / 2, "more": [tensor + 1]}, "text"


class Block(torch.nn.Module):
    """Its output is that of its last layer: one tensor, two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(tensor))


class Model(torch.nn.Module):
    """again: how the second block is computed again. `True`: by a re-entrant checkpoint."""

    def __init__(self, again: bool | None = None) -> None:
        super().__init__()
        self.again = again
        self.first = Block()
        self.second = Block()
        self.twice = Twice()

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = self.first(tensor)
        if self.again is None:
            tensor = self.second(tensor)
        else:
            tensor = checkpoint(self.second, tensor, use_reentrant=self.again)
        pair, mapping, _ = self.twice(tensor)
        return (pair.left + mapping["half"] + mapping["more"][0]).sum()


def training_of(model: torch.nn.Module, optimizer: Any = None, chunks: int = 1) -> Any:
    return SimpleNamespace(chunks=[model] * chunks, optimizer=optimizer or SimpleNamespace(step=lambda: None))


class Traced:
    def __init__(self, training: Any) -> None:
        self.scopes = Scopes(modules(training))
        self.boundary = Boundary(training, self.scopes)
        self.trace = Trace(Reader(None))

    def __enter__(self) -> Trace:
        self.scopes.start()
        self.boundary.start(self.trace)
        return self.trace

    def __exit__(self, *_: object) -> None:
        self.boundary.stop()
        self.scopes.stop()


def model_of(again: bool | None = None) -> Model:
    torch.manual_seed(3)
    return Model(again)


def data() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def step(model: torch.nn.Module) -> None:
    model(data()).backward()


def named(trace: Trace, kind: Kind) -> list[str]:
    return [reading.site.name for reading in trace.readings if reading.site.kind is kind]


def of(trace: Trace, kind: Kind, name: str) -> list[Reading]:
    return [one for one in trace.readings if one.site.kind is kind and one.site.name == name]


def test_every_module_of_the_model_is_recorded_as_it_returns_tensor_by_tensor() -> None:
    with Traced(training_of(model := model_of())) as trace:
        step(model)
        torch.nn.Linear(4, 4)(data())
    assert named(trace, Kind.MODULE) == [
        *("first.norm", "first.linear", "first", "second.norm", "second.linear", "second"),
        *("twice", "twice#1", "twice#2", "Model"),
    ]
    (first,) = of(trace, Kind.MODULE, "first")
    assert first.output == digest(model.first(data()))
    assert first.site.phase is Phase.FORWARD


def test_several_chunks_have_their_names_before_those_of_modules() -> None:
    with Traced(training_of(model := model_of(), chunks=2)) as trace:
        model(data())
    assert set(named(trace, Kind.MODULE)) >= {"chunk1.first.norm", "chunk1"}


def test_gradients_of_outputs_come_in_the_order_of_the_backward_pass() -> None:
    with Traced(training_of(model := model_of())) as trace:
        step(model)
    names = named(trace, Kind.OUTPUT_GRADIENT)
    assert names[0] == "Model"
    assert set(names[1:4]) == {"twice", "twice#1", "twice#2"}
    assert names[4:] == ["second", "second.linear", "second.norm", "first", "first.linear", "first.norm"]
    gradients = [one for one in trace.readings if one.site.kind is Kind.OUTPUT_GRADIENT]
    assert {one.site.phase for one in gradients} == {Phase.BACKWARD}
    assert of(trace, Kind.OUTPUT_GRADIENT, "second")[0].output == digest(torch.full((3, 4), 3.5))


def test_a_tensor_that_two_modules_return_has_one_hook_and_both_names() -> None:
    with Traced(training_of(model := model_of())) as trace:
        step(model)
    outer, inner = (of(trace, Kind.OUTPUT_GRADIENT, name)[0] for name in ("first", "first.linear"))
    assert outer.output == inner.output


def test_a_tensor_changed_in_place_between_two_modules_has_two_gradients() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.linear(tensor)
            return found.mul_(3)

    with Traced(training_of(model := Scaled())) as trace:
        model(data()).sum().backward()
    assert of(trace, Kind.OUTPUT_GRADIENT, "Scaled")[0].output == digest(torch.ones(3, 4))
    assert of(trace, Kind.OUTPUT_GRADIENT, "linear")[0].output == digest(torch.full((3, 4), 3.0))


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_is_recorded_apart_and_is_the_same(reentrant: bool) -> None:
    with Traced(training_of(model := model_of(reentrant))) as trace:
        step(model)
        step(model)
    again = named(trace, Kind.RECOMPUTE)
    assert again.count("second.norm") == 2
    assert set(again) <= {"second", "second.linear", "second.norm"}
    for name in set(again):
        firsts, seconds = of(trace, Kind.MODULE, name), of(trace, Kind.RECOMPUTE, name)
        assert [one.output for one in seconds] == [one.output for one in firsts]
        assert {one.site.phase for one in seconds} == {Phase.BACKWARD}
    assert len(of(trace, Kind.OUTPUT_GRADIENT, "second.norm")) == 2


def test_a_fault_in_what_is_computed_again_shows() -> None:
    model = model_of(False)
    forward, calls = model.second.norm.forward, []

    def disturbed(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return forward(tensor) + 1e-3 * (len(calls) == 2)

    model.second.norm.forward = disturbed  # type: ignore[method-assign]
    with Traced(training_of(model)) as trace:
        step(model)
    (first,), (again,) = of(trace, Kind.MODULE, "second.norm"), of(trace, Kind.RECOMPUTE, "second.norm")
    assert first.output != again.output


def test_local_gradients_are_those_of_this_rank_as_they_accumulate() -> None:
    with Traced(training_of(model := model_of())) as trace:
        step(model)
        first = {name: digest(parameter.grad) for name, parameter in model.named_parameters()}
        step(model)
    second = {name: digest(parameter.grad) for name, parameter in model.named_parameters()}
    for name, before in first.items():
        readings = of(trace, Kind.LOCAL_GRADIENT, name)
        assert [one.output for one in readings] == [before, second[name]]
        assert {one.site.phase for one in readings} == {Phase.BACKWARD}


def test_nothing_is_recorded_in_quiet_or_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Traced(training_of(model, optimizer)) as trace:
        with quiet():
            model(data()).backward()
            optimizer.step()
        assert trace.readings == []
        output = model(data())
        before = len(trace.readings)
    output.backward()
    step(model)
    optimizer.step()
    assert len(trace.readings) == before


def test_a_module_that_fails_leaves_no_record_and_its_error() -> None:
    class Failing(torch.nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            raise KeyError("own")

    with Traced(training_of(model := Failing())) as trace, pytest.raises(KeyError, match="own"):
        model(data())
    assert trace.readings == []


def left_over(model: torch.nn.Module, optimizer: Any) -> list[Any]:
    """All places that a tracer touches."""
    parameters = [dict(parameter._backward_hooks or {}) for parameter in model.parameters()]
    after = [dict(parameter._post_accumulate_grad_hooks or {}) for parameter in model.parameters()]
    globally = dict(hooks._global_forward_hooks), dict(hooks._global_forward_pre_hooks)
    classes = [dict(vars(owner)) for owner in (dist.ProcessGroup, dist.Work)]
    own = {name: value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
    return [parameters, after, globally, classes, copy.copy(own)]


class Megatron:
    """Like its optimizers: a method, no hooks."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def step(self) -> tuple[bool, float, int]:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1)
        return True, 0.5, 3


@pytest.mark.parametrize("make", [lambda model: torch.optim.SGD(model.parameters(), lr=0.1), Megatron])
def test_stopped_everything_is_as_it_was(make: Any) -> None:
    model = model_of(True)
    optimizer = make(model)
    optimizer.step()
    before = left_over(model, optimizer)
    with Traced(training_of(model, optimizer)):
        step(model)
        optimizer.step()
        assert left_over(model, optimizer) != before
    assert left_over(model, optimizer) == before


@pytest.mark.parametrize("again", [None, True, False])
def test_a_traced_step_has_the_bits_of_one_that_is_not(again: bool | None) -> None:
    results = []
    for traced in (False, True):
        model = model_of(again)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            if traced:
                with Traced(training_of(model, optimizer)):
                    step(model)
                    optimizer.step()
            else:
                step(model)
                optimizer.step()
        results.append([digest(parameter) for parameter in model.parameters()])
    assert results[0] == results[1]


@pytest.mark.parametrize("make", [lambda model: torch.optim.SGD(model.parameters(), lr=0.1), Megatron])
def test_the_optimizers_step_is_one_record_from_gradients_and_parameters_to_parameters(make: Any) -> None:
    def one(disturb: Any = None) -> Reading:
        model = model_of()
        optimizer = make(model)
        step(model)
        if disturb is not None:
            disturb(model)
        with Traced(training_of(model, optimizer)) as trace:
            trace.stage = Phase.UPDATE
            given = optimizer.step()
        assert given == ((True, 0.5, 3) if make is Megatron else None)
        ((reading),) = [one for one in trace.readings if one.site.kind is Kind.CALL]
        return reading

    def other_gradient(model: Model) -> None:
        next(model.parameters()).grad.add_(1)  # type: ignore[union-attr]

    def other_parameter(model: Model) -> None:
        next(model.parameters()).data.add_(1)

    plain, again = one(), one()
    assert (plain.site.name, plain.site.phase, plain.form.shape) == ("optimizer.step", Phase.UPDATE, (8,))
    assert plain.flags & Flag.INPUT
    assert (plain.sources, plain.output) == (again.sources, again.output)
    assert len(plain.sources) == 16
    assert one(other_gradient).sources != plain.sources
    disturbed = one(other_parameter)
    assert disturbed.sources != plain.sources
    assert disturbed.output != plain.output


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> type:
    """In place of Megatron's module of bucket groups."""

    class Group:
        def __init__(self, *buckets: Any) -> None:
            self.buckets = buckets

        def start_grad_sync(self) -> None:
            for parameter in (parameter for bucket in self.buckets for parameter in bucket.params_list):
                parameter.main_grad *= 2

        def finish_grad_sync(self) -> None:
            self.start_grad_sync()

    module = ModuleType("megatron.core.distributed.param_and_grad_buffer")
    module._ParamAndGradBucketGroup = Group  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Group


def test_megatrons_gradients_are_read_once_before_their_bucket_is_reduced(buckets: Any) -> None:
    model = torch.nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.main_grad = torch.ones_like(parameter)  # type: ignore[attr-defined]
    stages = []
    config = SimpleNamespace(finalize_model_grads_func=lambda: stages.append(trace.stage))
    model.config = config  # type: ignore[assignment]
    group = buckets(*(SimpleNamespace(params_list=[parameter]) for parameter in model.parameters()))
    own = config.finalize_model_grads_func, vars(buckets)["start_grad_sync"]
    tracer, trace = LocalGradients(training_of(model)), Trace(Reader(None))
    tracer.start(trace)
    group.finish_grad_sync()
    group.start_grad_sync()
    config.finalize_model_grads_func()
    tracer.stop()
    assert named(trace, Kind.LOCAL_GRADIENT) == ["weight", "bias"]
    assert [one.output for one in trace.readings] == [digest(torch.ones(2, 4)), digest(torch.ones(2))]
    assert (stages, trace.stage) == ([Phase.BACKWARD], Phase.FORWARD)
    assert (config.finalize_model_grads_func, vars(buckets)["start_grad_sync"]) == own


@pytest.fixture
def dispatchers(monkeypatch: pytest.MonkeyPatch) -> type:
    """In place of Megatron's module of token dispatchers: one inherits a method, and calls another of its base."""

    class MoETokenDispatcher:
        def dispatch_preprocess(self, states: Any, routing: Any) -> Any:
            return states + routing

        def dispatch_postprocess(self, states: Any) -> Any:
            return states * 2, states.sum()

        def combine_preprocess(self, states: Any) -> Any:
            return states

        def combine_postprocess(self, states: Any) -> Any:
            return states - 1

    class Own(MoETokenDispatcher):
        def dispatch_preprocess(self, states: Any, routing: Any) -> Any:
            return super().dispatch_preprocess(states * 1, routing)

        def dispatch_postprocess(self, states: Any) -> Any:
            return super().dispatch_postprocess(states)

    module = ModuleType("megatron.core.transformer.moe.token_dispatcher")
    module.MoETokenDispatcher = MoETokenDispatcher  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Own


def test_tokens_are_recorded_as_they_go_to_experts_and_come_back(dispatchers: Any) -> None:
    methods = [dict(vars(owner)) for owner in dispatchers.__mro__[:2]]
    scopes, trace = Scopes([]), Trace(Reader(None))
    tracer = Experts(scopes)
    tracer.start(trace)
    dispatcher, states, routing = dispatchers(), torch.ones(3), torch.arange(3.0)
    scopes.push("mlp")
    given = dispatcher.dispatch_preprocess(states, routing=routing)
    got, _ = dispatcher.dispatch_postprocess(given)
    dispatcher.combine_postprocess(dispatcher.combine_preprocess(got))
    with quiet():
        dispatcher.combine_postprocess(dispatcher.combine_preprocess(got))
    tracer.stop()
    assert [dict(vars(owner)) for owner in dispatchers.__mro__[:2]] == methods
    assert [str(one.site) for one in trace.readings] == [
        "call:dispatch [mlp]",
        "call:dispatch#1 [mlp]",
        "call:combine [mlp]",
    ]
    dispatched, count, combined = trace.readings
    assert dispatched.sources == count.sources == (digest(states), digest(routing))
    assert combined.sources == (digest(got),)
    assert (dispatched.output, combined.output) == (digest(got), digest(got - 1))


class Wrapped(torch.Tensor):
    """A tensor that holds another one, as traceable wrappers do."""

    inner: torch.Tensor

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


def test_what_is_no_plain_tensor_stops_nothing() -> None:
    wrapped = torch.ones(2).as_subclass(Wrapped)
    wrapped.inner = torch.arange(2.0)
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    odd = [torch.ones(2).as_subclass(torch.nn.Buffer), torch.eye(2).to_sparse(), torch.ones(2, device="meta"), freed]
    empty, plain = torch.ones(0), torch.nn.Parameter(torch.ones(1))
    found = tensors_of([wrapped, odd, None, "text", {"a": empty, "b": (plain,)}])
    assert [id(one) for one in found] == [id(wrapped.inner), id(empty), id(plain)]


def test_patches_give_back_what_was_there_and_take_away_what_was_not() -> None:
    class Base:
        def inherited(self) -> int:
            return 1

    class Child(Base):
        own = 2

    patches = Patches()
    patches.replace(Child, "inherited", None)
    patches.replace(Child, "own", 3)
    patches.replace(Child, "own", 4)
    patches.restore()
    assert Child().inherited() == 1
    assert "inherited" not in vars(Child)
    assert Child.own == 2


class Work:
    """As of NCCL: the launches of a coalesced call have works of their own, and only the last one counts."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Group:
    def _start_coalescing(self, _device: str) -> None: ...

    def _end_coalescing(self, _device: str) -> Work:
        return Work()


def test_what_is_launched_together_lands_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "Work", Work)
    monkeypatch.setattr(dist, "ProcessGroup", Group)
    landings, group, landed = Landings(), Group(), []
    landings.start()
    group._start_coalescing("cuda")
    for name in ("send", "recv"):
        early = Work()
        landings.add(group, early, name, lambda work, name=name: landed.append((name, work)))  # type: ignore[misc]
        early.wait()
    whole = group._end_coalescing("cuda")
    assert landed == []
    whole.wait()
    assert landed == [("send", whole), ("recv", whole)]
    landings.add(group, None, "all_reduce", lambda work: landed.append(("all_reduce", work)))
    assert landed[-1] == ("all_reduce", None)
    landings.add(group, Work(), "lost", lambda _work: None)
    assert landings.stop() == {"lost": 1}


def test_a_step_without_megatron_traces_an_optimizer_alone() -> None:
    model = model_of()
    tracer = OptimizerStep(training_of(model, Megatron(model)))
    tracer.start(trace := Trace(Reader(None)))
    tracer.stop()
    assert trace.readings == []
