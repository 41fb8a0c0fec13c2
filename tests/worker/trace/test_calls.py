"""Rung op: functions of autograd, forward and backward, as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from insides import Inside, traced
from samebits.fingerprint.records import Kind, Phase, inputs_of
from samebits.worker.capture.digest import digest


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x @ weight * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t() * ctx.factor, x.t() @ gradient * ctx.factor, None


class Apart(torch.autograd.Function):
    """With a context of its own."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def vjp(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


apply_bound_early = Scaled.apply


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = apply_bound_early(x, self.weight, 2.0)
        return scaled


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.mlp(x)
        return hidden


def test_a_function_is_a_record_forward_and_backward_and_what_it_does_stands_below_it() -> None:
    model, x = Model(), torch.randn(2, 4, requires_grad=True)
    gradient, results = torch.randn(2, 4), []

    def run() -> None:
        result = model(x)
        results.append(result.detach().clone())
        result.backward(gradient)

    seen = traced(run, model)
    forward, backward = seen.one("Scaled.forward", Kind.CALL), seen.one("Scaled.backward", Kind.CALL)
    assert (forward.site.phase, forward.site.scope) == (Phase.FORWARD, "mlp")
    assert (backward.site.phase, backward.site.scope) == (Phase.BACKWARD, "mlp")
    assert forward.output == digest(results[0])
    assert (inputs_of(forward.flags), inputs_of(backward.flags)) == (2, 1)
    assert backward.output == digest(gradient @ model.mlp.weight.t() * 2.0)
    assert seen.one("Scaled.backward#1", Kind.CALL).output == digest(x.t() @ gradient * 2.0)
    scopes = [(row.site.phase, row.site.scope) for row in seen.of("aten.mm.default")]
    below = "mlp/Scaled.backward"
    assert scopes == [(Phase.FORWARD, "mlp/Scaled.forward"), (Phase.BACKWARD, below), (Phase.BACKWARD, below)]
    assert seen.stack(forward.site)[0].function == "Layer.forward"
    assert seen.stack(backward.site) == seen.stack(forward.site)


def test_a_record_of_a_function_stands_behind_those_of_its_operations() -> None:
    names = traced(lambda: Scaled.apply(torch.ones(2, 4), torch.ones(4, 4), 2.0)).names
    assert names.index("call:Scaled.forward") > names.index("op:aten.mul.Tensor")


def test_the_plain_arguments_of_a_function_count_as_inputs() -> None:
    x, weight = torch.ones(2, 4), torch.ones(4, 4)
    found = {
        traced(lambda factor=factor: Scaled.apply(x, weight, factor)).one("Scaled.forward", Kind.CALL).source
        for factor in (2.0, 2.0, 3.0)
    }
    assert len(found) == 2


def test_a_function_with_its_context_apart_is_seen_too() -> None:
    x = torch.ones(3, requires_grad=True)
    seen = traced(lambda: Apart.apply(x).sum().backward())
    assert seen.one("Apart.forward", Kind.CALL).output == digest(torch.full((3,), 3.0))
    assert seen.one("Apart.backward", Kind.CALL).output == digest(torch.full((3,), 3.0))


def test_a_function_inside_what_is_computed_again_stands_in_its_module() -> None:
    model = Model()

    def run() -> None:
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).sum().backward()

    seen = traced(run, model)
    found = [(row.site.phase, row.site.scope) for row in seen.of("Scaled.forward", Kind.CALL)]
    assert found == [(Phase.FORWARD, "mlp"), (Phase.BACKWARD, "mlp")]
    assert [row.site.scope for row in seen.of("Scaled.backward", Kind.CALL)] == ["mlp"]


def test_functions_are_what_they_were_when_a_step_has_ended() -> None:
    before = {name: vars(Scaled)[name] for name in ("forward", "backward")}
    with Inside().step():
        assert vars(Scaled)["forward"] is not before["forward"]
    assert {name: vars(Scaled)[name] for name in before} == before
    assert "vjp" not in vars(Scaled)


def test_a_function_that_fails_leaves_the_scopes_in_order() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, _x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    def run() -> None:
        try:
            Failing.apply(torch.ones(2))
        except ValueError:
            torch.ones(2) + 1

    assert traced(run).one("aten.add.Tensor").site.scope == ""


def test_recorded_or_not_a_function_computes_the_same() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(2)
        model, x = Model(), torch.randn(2, 4, requires_grad=True)
        model(x).sum().backward()
        assert x.grad is not None
        assert model.mlp.weight.grad is not None
        return [x.grad, model.mlp.weight.grad]

    found: list[torch.Tensor] = []
    expected = run()
    traced(lambda: found.extend(run()))
    assert len(found) == 2
    assert all(map(torch.equal, expected, found))
