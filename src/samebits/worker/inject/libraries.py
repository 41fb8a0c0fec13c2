"""Libraries that launch kernels by themselves: probes on what they export, inert until a step is traced at rung op."""

from __future__ import annotations

from types import ModuleType

from samebits.worker.trace import library_calls


def install(module: ModuleType) -> None:
    library_calls.attach(module)
