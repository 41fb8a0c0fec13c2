"""Which modules a loop trains, what a batch holds, what Megatron-LM's step reports."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from samebits.worker.capture.state import modules
from samebits.worker.inject import megatron_lm
from samebits.worker.inject.session import InjectionError, named_tensors
from samebits.worker.inject.step_detector import trained_modules


class Parted(nn.Module):
    """`module` is a part of it, not all."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_the_outermost_module_that_holds_what_is_stepped_is_the_model() -> None:
    inner = Parted()
    wrapper, other = Wrapper(inner), Parted()
    assert trained_modules([torch.optim.SGD(inner.parameters(), lr=1.0)]) == [wrapper]
    assert trained_modules([torch.optim.SGD(other.parameters(), lr=1.0)]) == [other]


def test_several_models_stand_in_the_order_of_the_optimizers() -> None:
    first, second = Parted(), Parted()
    optimizers = [torch.optim.SGD(second.parameters(), lr=1.0), torch.optim.SGD(first.parameters(), lr=1.0)]
    assert trained_modules(optimizers) == [second, first]


def test_of_two_wrappers_of_one_model_one_stands_for_both() -> None:
    inner = Parted()
    wrappers = [Wrapper(inner), Wrapper(inner)]
    found = trained_modules([torch.optim.SGD(inner.parameters(), lr=1.0)])
    assert len(found) == 1
    assert found[0] in wrappers


def test_parameters_of_no_module_are_told() -> None:
    with pytest.raises(InjectionError, match="no module holds what the optimizer steps"):
        trained_modules([torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)])


def test_a_wrapper_is_taken_off_and_a_part_of_that_name_is_not() -> None:
    training = SimpleNamespace(chunks=[Wrapper(Wrapper(Parted()))])
    [(scope, module)] = modules(training)  # type: ignore[arg-type]
    assert (scope, type(module)) == ("", Parted)


@dataclass
class Fields:
    x: torch.Tensor
    note: str


def test_a_batch_of_any_shape_is_named() -> None:
    one, two = torch.ones(1), torch.zeros(2)
    pair = namedtuple("pair", "a b")
    found = named_tensors({"tokens": one, "deep": [two, {"mask": one}], "said": "text", "n": 3})
    assert list(found) == ["tokens", "deep.0", "deep.1.mask"]
    assert list(named_tensors(pair(one, two))) == ["a", "b"]
    assert list(named_tensors(Fields(one, "x"))) == ["x"]
    assert list(named_tensors(one)) == ["batch"]
    assert named_tensors("text") == {}


def test_a_kept_batch_is_a_copy() -> None:
    batch = torch.ones(2)
    kept = named_tensors(batch, copied=True)["batch"]
    batch.zero_()
    assert kept.tolist() == [1.0, 1.0]


OPTIMIZER = SimpleNamespace(param_groups=[{"lr": 0.5}])


def test_a_stage_that_computes_no_loss_reports_the_update_alone() -> None:
    """Also a step that ends early, which says that it was skipped and no norm."""
    found = megatron_lm._metrics(({}, False, False, False, None, 2.0, 0, None), OPTIMIZER)
    assert found == {"skipped": 0.0, "grad-norm": 2.0, "num-zeros": 0, "learning-rate": 0.5}
    early = megatron_lm._metrics(({}, True, False, False, None, None, None, 0), OPTIMIZER)
    assert early == {"skipped": 1.0, "learning-rate": 0.5}


def test_losses_are_copied_for_schedules_divide_them_in_place() -> None:
    loss = torch.tensor(3.0)
    found = megatron_lm._metrics(({"lm loss": loss}, False, False, False, 0, 1.0, None, 0), OPTIMIZER)
    loss.zero_()
    assert float(found["lm loss"]) == 3.0
