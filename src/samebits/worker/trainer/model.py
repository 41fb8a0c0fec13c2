"""Model chunks, optimizer and schedule of one rank, built by Megatron Core from a recipe.

GPT of Megatron's local layers (no Transformer Engine), so that the same modules run on GPU and CPU. Everything that
overlaps, fuses or tunes itself is off.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils

from samebits.fingerprint.format import Coordinates
from samebits.spec.plan import Plan
from samebits.spec.sections import MegatronRecipe, Model, Moe, Mtp, Parallel, built_in
from samebits.worker.clock import communicating
from samebits.worker.trainer.cpu_backend import device_backend


def build_chunks(plan: Plan) -> list[Any]:
    """Build this rank's DDP-wrapped chunks, one for each virtual pipeline stage. Draws from the seeded streams."""
    recipe, config = built_in(plan.recipe), transformer_config(plan)
    stages: list[int | None] = list(range(recipe.parallel.virtual_pipeline or 0)) or [None]
    return [_build_chunk(recipe, config, stage) for stage in stages]


def build_optimizer(recipe: MegatronRecipe, chunks: list[Any]) -> Any:
    """Build AdamW over the chunks' parameters; vectors (norms, biases) take no weight decay."""
    optimizer = recipe.optimizer
    config = OptimizerConfig(
        optimizer=optimizer.kind,
        lr=optimizer.lr,
        min_lr=optimizer.min_lr,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_eps=optimizer.eps,
        clip_grad=optimizer.clip_grad,
        bf16=recipe.precision == "bf16",
        params_dtype=_dtype(recipe),
        use_distributed_optimizer=optimizer.distributed,
        log_num_zeros_in_grad=True,
    )
    built = get_megatron_optimizer(config, chunks, config_overrides=get_standard_config_overrides(config))
    chunks[0].config.grad_scale_func = built.scale_loss
    return built


def build_scheduler(recipe: MegatronRecipe, optimizer: Any) -> Any:
    """Build the learning-rate schedule over the recipe's `steps`, wherever an arm ends; weight decay is constant."""
    wanted = recipe.optimizer
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=wanted.lr,
        min_lr=wanted.min_lr,
        lr_warmup_steps=wanted.lr_warmup_steps,
        # Megatron wants the decay to end after the warm-up, also where the run ends before it.
        lr_decay_steps=max(recipe.steps, wanted.lr_warmup_steps + 1),
        lr_decay_style=wanted.lr_decay_style,
        start_wd=wanted.weight_decay,
        end_wd=wanted.weight_decay,
        wd_incr_steps=recipe.steps,
        wd_incr_style="constant",
    )


def unwrapped(chunk: Any) -> Any:
    """Return the GPTModel inside the wrappers of one chunk."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def transformer_config(plan: Plan) -> TransformerConfig:
    """Return Megatron's configuration for the recipe, with everything off that overlaps or fuses.

    Where the plan relaxes determinism, the fusions that it relaxes are on, if this installation has them.
    """
    recipe = built_in(plan.recipe)
    model, parallel, dtype = recipe.model, recipe.parallel, _dtype(recipe)
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        ffn_hidden_size=model.ffn_hidden,
        normalization=model.normalization,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        add_bias_linear=model.moe is None,
        tensor_model_parallel_size=parallel.tensor,
        sequence_parallel=parallel.sequence,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline,
        # With two stages an interleaved schedule has several messages between one pair of ranks at a time; sent as a
        # batch they are taken for each other, silently. Megatron's own scripts refuse that (arguments.py); sent one by
        # one (overlap_p2p_comm) each finds its place.
        overlap_p2p_comm=parallel.virtual_pipeline is not None,
        batch_p2p_comm=parallel.virtual_pipeline is None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=recipe.precision == "bf16",
        deterministic_mode="deterministic_mode" not in plan.relaxed,
        finalize_model_grads_func=communicating(finalize_model_grads),
        **{
            **_UNFUSED,
            **(_moe_settings(model.moe) if model.moe else {}),
            **(_mtp_settings(model.mtp) if model.mtp else {}),
            **_fused(plan.relaxed),
        },
    )


_UNFUSED: dict[str, Any] = {
    "gradient_accumulation_fusion": False,
    "cross_entropy_loss_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "tp_comm_overlap": False,
}


def _fused(relaxed: Collection[str]) -> dict[str, bool]:
    found = {}
    if "unfused_cross_entropy" in relaxed:
        found["cross_entropy_loss_fusion"] = True
    if "unfused_router" in relaxed:
        # Of Transformer Engine 2.6 and later.
        found["moe_router_fusion"] = getattr(moe_utils, "fused_topk_with_score_function", None) is not None
    return found


def _moe_settings(moe: Moe) -> dict[str, Any]:
    balanced = moe.load_balancing != "none"
    return {
        "num_moe_experts": moe.experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden,
        "moe_router_load_balancing_type": moe.load_balancing,
        "moe_aux_loss_coeff": moe.load_balancing_coefficient if balanced else 0.0,
        "moe_z_loss_coeff": moe.z_loss_coefficient or None,
        "moe_token_dispatcher_type": moe.dispatcher,
        "moe_router_enable_expert_bias": moe.expert_bias,
        # Megatron allows the bias with this score only.
        "moe_router_score_function": "sigmoid" if moe.expert_bias else "softmax",
        "moe_shared_expert_intermediate_size": moe.shared_expert_hidden,
        "moe_grouped_gemm": False,
        "moe_router_fusion": False,
        "moe_permute_fusion": False,
    }


def _mtp_settings(mtp: Mtp) -> dict[str, Any]:
    return {"mtp_num_layers": mtp.layers, "mtp_loss_scaling_factor": mtp.loss_scaling}


def _build_chunk(recipe: MegatronRecipe, config: TransformerConfig, stage: int | None) -> Any:
    gpt = _build_gpt(recipe.model, config, stage)
    if torch.cuda.is_available():
        gpt.cuda(torch.cuda.current_device())
    wrapped = Float16Module(config, gpt) if recipe.precision == "bf16" else gpt
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=recipe.optimizer.distributed,
        # A run whose loss is not a number must finish, so that it can be judged.
        check_for_nan_in_grad=False,
    )
    return DistributedDataParallel(config, ddp, wrapped, disable_bucketing=bool(stage))


def _build_gpt(model: Model, config: TransformerConfig, stage: int | None) -> Any:
    layer = get_gpt_layer_local_spec(
        num_experts=model.moe.experts if model.moe else None,
        moe_grouped_gemm=False,
        normalization=model.normalization,
    )
    virtual = {"ignore_virtual": stage is None, "vp_stage": stage}
    mtp = get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False, vp_stage=stage) if model.mtp else None
    return GPTModel(
        config=config,
        transformer_layer_spec=layer,
        vocab_size=model.vocabulary,
        max_sequence_length=model.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(**virtual),
        post_process=parallel_state.is_pipeline_last_stage(**virtual),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type="rope",
        mtp_block_spec=mtp,
        vp_stage=stage,
    )


def _dtype(recipe: MegatronRecipe) -> torch.dtype:
    return torch.bfloat16 if recipe.precision == "bf16" else torch.float32


class LayoutError(ValueError):
    """Ranks whose number or layout differs from the recipe's."""


def join(parallel: Parallel) -> Coordinates:
    """Join the process group named by the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK) and
    split it as `parallel` says.

    Raises LayoutError where the number of ranks differs, or for context parallelism.
    """
    _check(parallel)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(device_backend())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        # Each expert is whole on its rank: experts split over tensor-parallel ranks gather uneven numbers of tokens,
        # which gloo refuses.
        expert_tensor_parallel_size=1,
    )
    return _coordinates()


def leave() -> None:
    """Destroy the process groups once all ranks have arrived here."""
    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def device() -> torch.device:
    """Return the device on which this rank keeps its tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _check(parallel: Parallel) -> None:
    started = int(os.environ["WORLD_SIZE"])
    if started != parallel.world:
        raise LayoutError(f"parallel.world is {parallel.world}, but {started} ranks were started; start as many")
    if parallel.context != 1:
        raise LayoutError(
            f"parallel.context is {parallel.context}, must be 1: context parallelism needs an attention "
            "of Transformer Engine, which the built-in workload does not use"
        )


def _coordinates() -> Coordinates:
    return Coordinates(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        data=parallel_state.get_data_parallel_rank(),
        expert=parallel_state.get_expert_model_parallel_rank(),
        context=parallel_state.get_context_parallel_rank(),
    )
