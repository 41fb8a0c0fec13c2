"""samebits: proves, or disproves and locates, that a training recipe computes the same bits every time."""

from __future__ import annotations

import os
from typing import Any

__version__ = "0.1.0"


def watch(model: Any, optimizer: Any) -> None:
    """Name what to capture in a training loop whose model samebits does not find by itself.

    Call it once both are built. `model` is a module or a list of modules. Does nothing in a run that samebits did not
    start.
    """
    if os.environ.get("SAMEBITS_INJECT") == "1":
        from samebits.worker.inject import bootstrap  # noqa: PLC0415 - imports nothing of samebits in other runs

        bootstrap.begin()
        bootstrap.NAMED.append((list(model) if isinstance(model, list | tuple) else [model], optimizer))
