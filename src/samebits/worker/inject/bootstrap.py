"""What a process does at its start: nothing in helpers, else hooks on the modules that training imports.

Standard library only, and no torch: the agent of torchrun, `make`'s Python and every tool of a launch line come here.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from samebits.worker.inject.import_hooks import Finder
from samebits.worker.trace.libraries import NAMES

_HELPERS = ("spawn_main", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Of multiprocessing, which starts them by `-c`. A spawned one keeps RANK, and imports the training script again."""


_BEGUN: list[Finder] = []

NAMED: list[tuple[list[Any], Any]] = []
"""Models and optimizer that the script itself names (samebits.worker.hooks)."""


def begin() -> None:
    """Once in a process."""
    if not is_helper() and not _BEGUN:
        _BEGUN.append(Finder({name: _hook(name) for name in _HOOKED}))
        _BEGUN[0].install()


def is_helper() -> bool:
    """Whether another process's multiprocessing started this one afresh: a loader's worker, a manager, a tracker."""
    return any(word in part for part in sys.orig_argv for word in _HELPERS)


_HOOKED = {
    "torch": "torch_hooks",
    "torch.utils.data.dataloader": "torch_hooks",
    "torch.distributed.checkpoint.state_dict_saver": "torch_hooks",
    "megatron.core.optimizer.optimizer": "megatron_core",
    "megatron.core.pipeline_parallel.schedules": "megatron_core",
    "megatron.core.dist_checkpointing.serialization": "megatron_core",
    "megatron.core.rerun_state_machine": "megatron_core",
    "megatron.training.training": "megatron_lm",
    **dict.fromkeys(NAMES, "libraries"),
}
"""Module that is hooked -> module of ours that does it."""


class _hook:  # noqa: N801 - a function with one argument bound
    """Imports our module only when it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, module: ModuleType) -> None:
        ours = __import__(f"samebits.worker.inject.{_HOOKED[self._name]}", fromlist=["install"])
        ours.install(module)


PID = os.getpid()
"""Of the process that was hooked; a fork of it, such as a loader's worker, is a helper."""
