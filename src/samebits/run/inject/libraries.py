"""Libraries that launch kernels by themselves: probes on what they export, inert until a step is traced at rung op."""

from __future__ import annotations

from types import ModuleType

from samebits.run import probes


def install(module: ModuleType) -> None:
    probes.attach(module)
