"""What runs inside the container: standard library, numpy, torch and megatron only.

samebits.run.watch(model, optimizer) names both to capture, in a loop of one's own (see `samebits.run.watch`).
"""

from __future__ import annotations

from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Imports nothing before it is asked for."""
    if name != "watch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("samebits.run.watch")
