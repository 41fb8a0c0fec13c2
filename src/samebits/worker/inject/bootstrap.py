"""Start of capture in a process: hooks on the modules that training imports; nothing in helper processes.

Standard library only, and no torch: the agent of torchrun, `make`'s Python and every tool of a launch line come here.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from samebits.worker.import_hooks import Finder
from samebits.worker.trace.libraries import NAMES

PID = os.getpid()
"""The process that was hooked. A fork of it, such as a data loader's worker, is a helper and is not captured."""

NAMED: list[tuple[list[Any], Any]] = []
"""Models and optimizer that the training script names itself by `samebits.watch`."""

_HELPERS = ("spawn_main", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Functions of multiprocessing, which starts helpers by `python -c`. A spawned one keeps RANK in its environment and
imports the training script again."""

_HOOKED = {
    "torch": "torch_hooks",
    "torch.utils.data.dataloader": "torch_hooks",
    "torch.distributed.checkpoint.state_dict_saver": "torch_hooks",
    "megatron.core.optimizer.optimizer": "megatron_core",
    "megatron.core.pipeline_parallel.schedules": "megatron_core",
    "megatron.core.dist_checkpointing.serialization": "megatron_core",
    "megatron.core.rerun_state_machine": "megatron_core",
    "megatron.training.training": "megatron_lm",
}
"""Hooked module -> our module in this package whose `install` hooks it."""


_BEGUN: list[Finder] = []


def begin() -> None:
    """Install the hooks, once in a process and never in a helper."""
    if not is_helper() and not _BEGUN:
        hooks = {**dict.fromkeys(_HOOKED, _hook_training), **dict.fromkeys(NAMES, _hook_library)}
        _BEGUN.append(Finder(hooks))
        _BEGUN[0].install()


def is_helper() -> bool:
    """Return whether another process's multiprocessing started this one: a loader's worker, a manager, a tracker."""
    return any(word in part for part in sys.orig_argv for word in _HELPERS)


def _hook_training(module: ModuleType) -> None:
    """Import our hooks only when they are needed: they import torch."""
    ours = importlib.import_module(f"samebits.worker.inject.{_HOOKED[module.__name__]}")
    ours.install(module)


def _hook_library(module: ModuleType) -> None:
    """Put probes on a library that launches kernels itself. They are inert until a step is traced at rung `op`."""
    from samebits.worker.trace import library_calls

    library_calls.attach(module)
