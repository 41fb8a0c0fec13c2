"""A script of Megatron-LM's kind that knows nothing of samebits: `megatron.training.pretrain` does it all.

`cpu_shim` lets Megatron Core run without a GPU. All options are Megatron-LM's own but --out.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import cpu_shim

cpu_shim.install()

import torch  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.training import get_args, initialize, initialize_megatron, pretrain, training  # noqa: E402
from megatron.training.argument_utils import pretrain_cfg_container_from_args  # noqa: E402
from megatron.training.arguments import core_transformer_config_from_args, parse_and_validate_args  # noqa: E402

MODELS = []


class Tokens(torch.utils.data.Dataset):
    def __init__(self, samples: int, length: int) -> None:
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 100, (self.length + 1,), generator=generator)
        return {"tokens": ids[:-1], "labels": ids[1:], "loss_mask": torch.ones(self.length)}


def datasets(samples):
    args = get_args()
    return tuple(Tokens(max(count or 1, 1), args.seq_length) for count in samples)


datasets.is_distributed = True


def model(pre_process=True, post_process=True, vp_stage=None, config=None, pg_collection=None):
    args = get_args()
    built = GPTModel(
        config=config or core_transformer_config_from_args(args),
        transformer_layer_spec=get_gpt_layer_local_spec(normalization=args.normalization),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
    )
    MODELS.append(built)
    return built


def loss_of(mask, output):
    total = (output.float().view(-1) * mask.view(-1)).sum()
    count = mask.sum()
    reported = torch.stack([total.detach(), count])
    return total, count.to(torch.int), {"lm loss": reported}


def forward_step(data_iterator, chunk, return_schedule_plan=False):
    batch = next(data_iterator)
    positions = torch.arange(batch["tokens"].shape[1]).expand_as(batch["tokens"])
    output = chunk(batch["tokens"], positions, None, labels=batch["labels"])
    return output, functools.partial(loss_of, batch["loss_mask"])


def options(parser):
    parser.add_argument("--out")
    parser.add_argument("--prime", action="store_true")
    return parser


def prime() -> None:
    """Without it a checkpoint cannot be loaded into a fresh distributed optimizer over torch's AdamW; with it, one
    `step` is shared by all parameters from then on, and advances once for each of them."""
    original = DistributedOptimizer.sharded_state_dict

    def sharded_state_dict(self, *args, **kwargs):
        for parameter in (parameter for group in self.optimizer.param_groups for parameter in group["params"]):
            state = self.optimizer.state[parameter]
            if "step" not in state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return original(self, *args, **kwargs)

    DistributedOptimizer.sharded_state_dict = sharded_state_dict


def main() -> None:
    # No data set of Megatron's is used, so that its C++ helpers need not be built.
    initialize._compile_dependencies = lambda: None
    # It refuses to train without a GPU by default.
    training.initialize_megatron = functools.partial(initialize_megatron, allow_no_cuda=True)
    args = parse_and_validate_args(extra_args_provider=options)
    if args.prime:
        prime()
    container = pretrain_cfg_container_from_args(args)
    container.model = None
    pretrain(container, datasets, ModelType.encoder_or_decoder, forward_step, model_provider=model)
    said = b"".join(one.detach().float().numpy().tobytes() for built in MODELS for one in built.parameters())
    (Path(args.out) / f"result-{os.environ['RANK']}").write_text(hashlib.sha256(said).hexdigest() + "\n")


if __name__ == "__main__":
    main()
