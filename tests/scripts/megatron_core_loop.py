"""A loop of one's own over Megatron Core that knows nothing of samebits: bf16 GPT, two data-parallel ranks.

`cpu_shim` lets Megatron Core run without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import random
from pathlib import Path

import cpu_shim

cpu_shim.install()

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402

MICRO_BATCHES = 2


def built():
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        bf16=True,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        deterministic_mode=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=16)
    chunk = DistributedDataParallel(
        config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), Float16Module(config, gpt)
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-2, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0), [chunk]
    )
    return gpt, chunk, optimizer


def batches(rank: int, step: int):
    while True:
        for number in range(MICRO_BATCHES):
            generator = torch.Generator().manual_seed(1000 * step + 10 * number + rank)
            ids = torch.randint(0, 128, (2, 17), generator=generator)
            yield {"tokens": ids[:, :-1], "labels": ids[:, 1:]}
        step += 1


def loss_of(output):
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(data, chunk):
    batch = next(data)
    tokens, labels = batch["tokens"], batch["labels"]
    positions = torch.arange(16).expand_as(tokens)
    return chunk(tokens, positions, None, labels=labels), functools.partial(loss_of)


def state(gpt, optimizer, *, loading):
    sharded = gpt.sharded_state_dict(prefix="")
    return {"model": sharded, "optimizer": optimizer.sharded_state_dict(sharded, is_loading=loading)}


def streams():
    return {"torch": torch.get_rng_state(), "tracker": tensor_parallel.get_cuda_rng_tracker().get_states()}


def save(folder: Path, rank: int, gpt, optimizer) -> None:
    if rank == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(state(gpt, optimizer, loading=False), str(folder))
    torch.save(streams(), folder / f"rng-{rank}.pt")
    dist.barrier()


def load(folder: Path, rank: int, gpt, optimizer) -> None:
    loaded = dist_checkpointing.load(state(gpt, optimizer, loading=True), str(folder))
    gpt.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    saved = torch.load(folder / f"rng-{rank}.pt", weights_only=False)
    torch.set_rng_state(saved["torch"])
    tensor_parallel.get_cuda_rng_tracker().set_states(saved["tracker"])


def main() -> None:
    options = parsed()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    rank = dist.get_rank()
    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    tensor_parallel.model_parallel_cuda_manual_seed(7)
    gpt, chunk, optimizer = built()
    if options.load:
        load(Path(options.load) / f"step-{options.start}", rank, gpt, optimizer)
    data = batches(rank, options.start + 1)
    for step in range(options.start + 1, options.steps + 1):
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=data,
            model=[chunk],
            num_microbatches=MICRO_BATCHES,
            seq_length=16,
            micro_batch_size=2,
            forward_only=False,
        )
        optimizer.step()
        if step % options.save_every == 0:
            save(Path(options.save) / f"step-{step}", rank, gpt, optimizer)
    said = hashlib.sha256(b"".join(one.detach().float().numpy().tobytes() for one in gpt.parameters())).hexdigest()
    (Path(options.out) / f"result-{rank}").write_text(f"{losses[-1]['lm loss'].item().hex()} {said}\n")
    dist.barrier()
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save", required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--load")
    parser.add_argument("--from", dest="start", type=int, default=0)
    return parser.parse_args()


# A save starts a process that imports this file again.
if __name__ == "__main__":
    main()
