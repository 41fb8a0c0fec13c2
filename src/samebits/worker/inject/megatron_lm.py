"""Hooks on `megatron.training.training`, the loop of Megatron-LM's own scripts (0.16 to 0.20).

`train_step` is called as a global of its module, so that it can be replaced right behind the module's own code. The
places of arguments and results that are read are the same in all these versions; the losses are an empty mapping where
a stage computes none, and where a step ends early.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from samebits.worker.inject.session import Metrics, named_tensors, session
from samebits.worker.inject.torch_hooks import in_rank
from samebits.worker.trace.trace import is_quiet

_MODEL, _OPTIMIZER, _SCHEDULER = 2, 3, 4
_NAMES = {_MODEL: "model", _OPTIMIZER: "optimizer", _SCHEDULER: "opt_param_scheduler"}
_LOSSES, _SKIPPED, _NORM, _ZEROS = 0, 1, 5, 6

_HOOKED: list[ModuleType] = []


def install(module: ModuleType) -> None:
    _HOOKED[:] = [module]
    _replace(module, "train_step", _watched_step)
    _replace(module, "save_checkpoint", _watched_save)
    _replace(module, "train", _sealed)


def listens() -> bool:
    """Return whether this module reports the steps of this run."""
    return bool(_HOOKED) and in_rank() and not is_quiet() and session().adapter != "torch" and not session().sealed


def stepping(_optimizer: Any) -> None:
    """Report that gradients are reduced and not clipped yet."""
    if session().open:
        session().gradients()


def drew(batch: Any) -> None:
    if listens() and session().open:
        session().batch(named_tensors(batch))


def _watched_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(*args: Any, **kwargs: Any) -> Any:
        if not listens():
            return original(*args, **kwargs)
        found = session()
        if not found.attached:
            found.attach(
                _argument(args, kwargs, _MODEL), *(_argument(args, kwargs, at) for at in (_OPTIMIZER, _SCHEDULER))
            )
        if found.save_due:
            found.refuse(
                f"samebits: step {found.next_step - 1} was not saved, checkpoint.every is "
                f"{found.plan.recipe.checkpoint.every}; give the line --save-interval of the same number"
            )
        found.begin(int(_HOOKED[0].get_args().curr_iteration) + 1)
        result = original(*args, **kwargs)
        found.end(_metrics(result, _argument(args, kwargs, _OPTIMIZER)))
        return result

    return train_step


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], at: int) -> Any:
    return args[at] if at < len(args) else kwargs[_NAMES[at]]


def _metrics(result: Any, optimizer: Any) -> Metrics:
    found: Metrics = {}
    for name, value in dict(result[_LOSSES]).items():
        tensors = value if isinstance(value, tuple | list) else (value,)
        for index, one in enumerate(tensors):
            if torch.is_tensor(one) and one.numel() == 1:
                found[name if index == 0 else f"{name}#{index}"] = one.detach().clone()
    found["skipped"] = float(bool(result[_SKIPPED]))
    for name, at in (("grad-norm", _NORM), ("num-zeros", _ZEROS)):
        if at < len(result) and result[at] is not None:
            found[name] = result[at]
    found["learning-rate"] = float(optimizer.param_groups[0]["lr"]) if optimizer.param_groups else 0.0
    return found


def _watched_save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
        if listens():
            session().save()
        return original(*args, **kwargs)

    return save_checkpoint


def _sealed(original: Callable[..., Any]) -> Callable[..., Any]:
    """A run that saves once more behind its last step is sealed at the end of the process."""

    def train(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if listens() and session().complete and not session().save_due:
            session().finish()
        return result

    return train


def _replace(module: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(module, name)
    setattr(module, name, functools.wraps(original)(wrap(original)))
