"""Hooks on Megatron Core, for loops of one's own that use it and for Megatron-LM's: what a schedule draws, the step of
an optimizer with its full-precision copies, distributed checkpoints.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from samebits.worker.inject.torch_hooks import in_rank, loop


def install(module: ModuleType) -> None:
    {
        "megatron.core.optimizer.optimizer": _hook_optimizers,
        "megatron.core.pipeline_parallel.schedules": _hook_schedules,
        "megatron.core.dist_checkpointing.serialization": _hook_checkpoint,
        "megatron.core.rerun_state_machine": _hook_data,
    }[module.__name__](module)


def _hook_optimizers(module: Any) -> None:
    """Hook all classes that define a `step`; DistributedOptimizer, in a module of its own, inherits it."""
    kinds: list[Any] = [one for one in vars(module).values() if inspect.isclass(one)]
    for kind in kinds:
        if issubclass(kind, module.MegatronOptimizer):
            if "step" in vars(kind) and not inspect.isabstract(kind):
                kind.step = _stepping(kind.step)
            if "__init__" in vars(kind):
                kind.__init__ = _built(kind.__init__)


def _stepping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not in_rank():
            return original(self, *args, **kwargs)
        from samebits.worker.inject import megatron_lm

        watched = megatron_lm.stepping if megatron_lm.listens() else loop().stepping
        watched(self)
        result = original(self, *args, **kwargs)
        loop().stepped(self, result)
        return result

    return step


def _built(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it replaces one
        original(self, *args, **kwargs)
        if in_rank():
            loop().built(self)

    return __init__


def _hook_schedules(module: Any) -> None:
    original = module.get_forward_backward_func

    @functools.wraps(original)
    def get_forward_backward_func(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        return _scheduled(original(*args, **kwargs))

    module.get_forward_backward_func = get_forward_backward_func


def _scheduled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def schedule(*args: Any, **kwargs: Any) -> Any:
        if not in_rank() or not loop().listens or kwargs.get("forward_only"):
            return original(*args, **kwargs)
        loop().computing()
        if kwargs.get("data_iterator") is not None:
            kwargs["data_iterator"] = _watched(kwargs["data_iterator"])
        result = original(*args, **kwargs)
        loop().reduced(result)
        return result

    return schedule


def _watched(iterators: Any) -> Any:
    """Wrap the iterator, or the one of each model chunk; those draw the same batches independently."""
    if isinstance(iterators, list):
        return [None if one is None else Drawn(one) for one in iterators]
    return Drawn(iterators)


class Drawn:
    """The loop's own iterator, with every batch reported; all other attributes are the iterator's."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return loop().drawing(lambda: next(self._iterator))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _hook_checkpoint(module: Any) -> None:
    original = module.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if in_rank():
            loop().saving()
        return original(*args, **kwargs)

    module.save = save


def _hook_data(module: Any) -> None:
    """Hook the class through which Megatron-LM draws; it is patched itself, as the loop checks its type."""
    original = module.RerunDataIterator.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it replaces one
        batch = original(self)
        if in_rank():
            from samebits.worker.inject import megatron_lm

            megatron_lm.drew(batch)
        return batch

    module.RerunDataIterator.__next__ = __next__
