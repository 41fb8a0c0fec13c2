"""The scalars of a training step, by the names that Megatron logs them under.

Sums and means are taken over the same groups as Megatron's own logging; a value that this rank does not own is left
out. Nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.clip_grads import get_grad_norm_fp32
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from megatron.core.transformer.moe.moe_utils import track_moe_metrics
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

from samebits.spec.sections import MegatronRecipe, built_in
from samebits.worker.hooks import Training

Scalar = float | torch.Tensor

BALANCING = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


@dataclass(frozen=True)
class Update:
    """What an optimizer step reports.

    grad_norm: of all gradients before clipping, over all ranks. zeros: gradient elements that are zero.
    learning_rate: that the step was made with.
    """

    grad_norm: float
    zeros: float
    learning_rate: float


def measure(training: Training, losses: Sequence[torch.Tensor], update: Update) -> dict[str, Scalar]:
    """All scalars of the step just made, and empties Megatron's trackers, which otherwise go on adding up.

    losses: LM loss of each micro-batch, float32 scalars; empty on all but the last pipeline stage. Collectives: one
    all-reduce of the LM loss over data-parallel ranks, those of Megatron's trackers, and one per optimizer for the
    norm of the parameters.

    - `train loss`: LM loss + weighted load-balancing, z- and MTP losses, as they are logged; last stage only.
    - `lm loss`: mean over micro-batches and data-parallel ranks; last stage only.
    - `load_balancing_loss` (`seq_`, `global_`), `z_loss`: mean over layers, unweighted.
    - `mtp_N loss`: unweighted; last stage only.
    - `grad-norm`, `num-zeros`, `learning-rate`, `loss-scale`, `params-norm` (of the full-precision parameters).
    - `tokens`: of the global batch.
    """
    recipe = built_in(training.plan.recipe)
    found: dict[str, Scalar] = {}
    if losses:
        found["lm loss"] = _mean_over_data(torch.stack(list(losses)).mean())
    found.update(_tracked(recipe, training.sampler.micro_batches))
    if losses:
        found["train loss"] = _objective(recipe, found)
    return found | {
        "grad-norm": update.grad_norm,
        "num-zeros": update.zeros,
        "learning-rate": update.learning_rate,
        "loss-scale": training.optimizer.get_loss_scale().squeeze().clone(),
        "params-norm": _parameter_norm(training.optimizer),
        "tokens": float(recipe.data.global_batch * recipe.model.sequence_length),
    }


def _mean_over_data(loss: torch.Tensor) -> torch.Tensor:
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    dist.all_reduce(loss, group=group)
    return loss / dist.get_world_size(group)


def _tracked(recipe: MegatronRecipe, micro_batches: int) -> dict[str, Scalar]:
    """Losses that Megatron gathers on the side, summed over micro-batches: divided by their number here."""
    scale = 1.0 / micro_batches
    found: dict[str, Scalar] = {}
    if recipe.model.moe:
        track_moe_metrics(scale, 0, total_loss_dict=found, **_layer_counts(recipe))
    if recipe.model.mtp:
        MTPLossLoggingHelper.track_mtp_metrics(scale, 0, None, total_loss_dict=found)
    return {name: value for name, value in found.items() if name.endswith("loss")}


def _layer_counts(recipe: MegatronRecipe) -> dict[str, Any]:
    return {
        "num_layers": recipe.model.layers,
        "mtp_num_layers": recipe.model.mtp.layers if recipe.model.mtp else None,
    }


def _objective(recipe: MegatronRecipe, found: dict[str, Scalar]) -> Scalar:
    total = found["lm loss"]
    moe, mtp = recipe.model.moe, recipe.model.mtp
    if moe:
        layers = recipe.model.layers + (mtp.layers if mtp else 0)
        balancing = found.get(BALANCING.get(moe.load_balancing, ""), 0.0)
        total = total + layers * moe.load_balancing_coefficient * balancing
        total = total + layers * moe.z_loss_coefficient * found.get("z_loss", 0.0)
    if mtp:
        losses = [found[f"mtp_{number} loss"] for number in range(1, mtp.layers + 1)]
        total = total + mtp.loss_scaling / mtp.layers * sum(losses)
    return total


def _parameter_norm(optimizer: Any) -> float:
    """L2 norm of the parameters that the optimizers step, each counted once, by Megatron's gradient-norm function."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return math.sqrt(sum(_norm_of_part(part) ** 2 for part in parts))


def _norm_of_part(part: Any) -> float:
    owned = [
        parameter.detach()
        for parameter in part.get_parameters()
        if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter)
    ]
    return float(get_grad_norm_fp32(owned, grad_stats_parallel_group=part.get_grad_stats_parallel_group()))
