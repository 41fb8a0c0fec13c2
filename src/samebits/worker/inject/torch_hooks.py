"""Hooks on torch itself, by which any loop is seen. They are set when torch is imported, and change no number.

No hook stays on modules: torch.compile would see it. The one on a module's call is there before the first forward pass
and after a step that is saved, until the next forward pass of training; where a script compiles anything it is not
there at all, and the draw of a batch stands for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from samebits.worker.inject import bootstrap


def install(module: ModuleType) -> None:
    {
        "torch": _hook_torch,
        "torch.utils.data.dataloader": _hook_loader,
        "torch.distributed.checkpoint.state_dict_saver": _hook_checkpoint,
    }[module.__name__](module)


class _Calls:
    """Hook on `torch.nn.Module.__call__`, set and removed as described above."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._original = self._armed = torch.nn.Module.__call__
        self._compiles = False

    @property
    def compiles(self) -> bool:
        return self._compiles

    def compiling(self) -> None:
        self._compiles = True
        self.disarm()

    def arm(self) -> None:
        if self._compiles:
            return
        calls, original = self, self._original

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if module.training and calls._torch.is_grad_enabled() and in_rank() and loop().ready:
                calls.disarm()
                loop().computing()
            return original(module, *args, **kwargs)

        self._armed = self._torch.nn.Module.__call__ = call

    def disarm(self) -> None:
        """Remove the hook; leave alone what somebody else (torch.fx while it traces) has put in its place."""
        if self._torch.nn.Module.__call__ is self._armed:
            self._torch.nn.Module.__call__ = self._original


_CALLS: list[_Calls] = []


def _hook_torch(torch: ModuleType) -> None:
    module: Any = torch
    _CALLS.append(_Calls(module))
    _hook_optimizers(module.optim.Optimizer)
    _replace(module.autograd, "backward", _reporting_losses)
    for owner in (module, module.serialization):
        _replace(owner, "save", _reporting_saves)
    for owner in (module, module.random):
        _replace(owner, "get_rng_state", _before("saving"))
    _replace(module.cuda, "get_rng_state_all", _before("saving"))
    _replace(module, "compile", _reporting_compilation)
    _replace(module.nn.Module, "compile", _reporting_compilation)
    _CALLS[0].arm()


def _hook_optimizers(optimizer: Any) -> None:
    original = optimizer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it replaces one
        original(self, *args, **kwargs)
        if in_rank():
            loop().built(self)

    optimizer.__init__ = __init__
    from torch.optim import optimizer as hooks

    hooks.register_optimizer_step_pre_hook(lambda self, *_: loop().stepping(self) if in_rank() else None)
    hooks.register_optimizer_step_post_hook(lambda self, *_: loop().stepped(self) if in_rank() else None)


def _hook_loader(module: ModuleType) -> None:
    iterator: Any = module._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it replaces one
        if not in_rank():
            return original(self)
        if _CALLS[0].compiles and loop().ready:
            loop().computing()
        batch = original(self)
        loop().drew(batch)
        return batch

    iterator.__next__ = __next__


def _hook_checkpoint(module: ModuleType) -> None:
    for name in ("save", "async_save"):
        _replace(module, name, _before("saving"))


def _replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrap(original)))


def _before(point: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if in_rank():
                getattr(loop(), point)()
            return original(*args, **kwargs)

        return called

    return wrap


def _reporting_losses(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if in_rank():
            for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
                if hasattr(tensor, "numel"):
                    loop().lost(tensor)
        return original(tensors, *args, **kwargs)

    return backward


def _reporting_saves(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(saved: Any, *args: Any, **kwargs: Any) -> Any:
        if in_rank() and _holds_optimizer(saved):
            loop().saving()
        return original(saved, *args, **kwargs)

    return save


def _holds_optimizer(saved: Any, deep: int = 3) -> bool:
    """Return whether a saved object contains the `state_dict` of an optimizer."""
    if not isinstance(saved, dict) or not deep:
        return False
    return {"state", "param_groups"} <= saved.keys() or any(_holds_optimizer(one, deep - 1) for one in saved.values())


def _reporting_compilation(original: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        _CALLS[0].compiling()
        return original(*args, **kwargs)

    return compiled


def in_rank() -> bool:
    """Return whether this is the process that was hooked; its forks, such as a loader's workers, are not watched."""
    return os.getpid() == bootstrap.PID


def loop() -> Any:
    """Return the loop of this process; torch is imported whenever this is called."""
    from samebits.worker.inject import step_detector as loops

    return loops.of_process(_CALLS[0].arm)
