"""Parameters that must hold the same bits on several ranks, as the model marks them: for `samebits check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samebits.worker.capture.state import modules
from samebits.worker.hooks import Training

NOTE = "parameters"


def note(training: Training) -> dict[str, Any]:
    """experts: of one expert-parallel rank alone (Megatron sets `allreduce` to False). whole: not split over
    tensor-parallel ranks, so that each of them has all of it. tied: an embedding that another pipeline stage has too.
    Names start with the chunk's, where there are several."""
    named = list(_named(training))
    expert = {name for name, parameter in named if not getattr(parameter, "allreduce", True)}
    return {
        "type": NOTE,
        "rank": training.coordinates.rank,
        "experts": sorted(expert),
        "whole": sorted(name for name, parameter in named if name not in expert and not _is_split(parameter)),
        "tied": sorted(name for name, parameter in named if getattr(parameter, "shared_embedding", False)),
    }


def _named(training: Training) -> Iterator[tuple[str, Any]]:
    for scope, module in modules(training):
        for name, parameter in module.named_parameters():
            yield (f"{scope}.{name}" if scope else name), parameter


def _is_split(parameter: Any) -> bool:
    """Marked by Megatron's layers; one rank of tensor parallel marks its parameters as well."""
    return bool(getattr(parameter, "tensor_model_parallel", False))
