"""Rules on how a model is split over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.recipe.problem import Problem, listed
from samebits.spec.sections import MegatronRecipe, Recipe

_MOST = 8


def world(recipe: Recipe) -> Iterator[Problem]:
    split = recipe.parallel
    product = split.tensor * split.pipeline * split.context * split.data
    if split.world != product:
        factors = f"{split.tensor} x {split.pipeline} x {split.context} x {split.data}"
        rule = f"must be parallel.tensor x pipeline x context x data ({factors} = {product})"
        yield Problem("parallel.world", split.world, rule, f"use {product}, or change a factor")


def context(recipe: MegatronRecipe) -> Iterator[Problem]:
    """DotProductAttention of the local layers: "Context parallelism is only supported by TEDotProductAttention"."""
    if recipe.parallel.context != 1:
        rule = f"must be 1 with workload {recipe.workload}, whose attention is not Transformer Engine's"
        yield Problem("parallel.context", recipe.parallel.context, rule, "use 1, and parallel.data for these ranks")


def heads(recipe: MegatronRecipe) -> Iterator[Problem]:
    yield from _divides_tensor(recipe, "model.heads", recipe.model.heads)


def hidden(recipe: MegatronRecipe) -> Iterator[Problem]:
    model = recipe.model
    if model.hidden % model.heads:
        rule = f"must be a multiple of model.heads ({model.heads})"
        yield Problem("model.hidden", model.hidden, rule, _multiples(model.hidden, 2 * model.heads))


def head_size(recipe: MegatronRecipe) -> Iterator[Problem]:
    """Rotary positions turn pairs of channels."""
    model = recipe.model
    if model.hidden % model.heads == 0 and (model.hidden // model.heads) % 2:
        rule = f"must be an even multiple of model.heads ({model.heads}): rotary positions turn pairs of channels"
        yield Problem("model.hidden", model.hidden, rule, _multiples(model.hidden, 2 * model.heads))


def feed_forward(recipe: MegatronRecipe) -> Iterator[Problem]:
    model = recipe.model
    sizes: dict[str, int | None] = {"model.ffn_hidden": model.ffn_hidden}
    if model.moe:
        sizes["model.moe.ffn_hidden"] = model.moe.ffn_hidden
        sizes["model.moe.shared_expert_hidden"] = model.moe.shared_expert_hidden
    for key, size in sizes.items():
        if size and size % recipe.parallel.tensor:
            rule = f"must be a multiple of parallel.tensor ({recipe.parallel.tensor})"
            yield Problem(key, size, rule, _multiples(size, recipe.parallel.tensor))


def vocabulary(recipe: MegatronRecipe) -> Iterator[Problem]:
    """VocabParallelEmbedding gives every tensor rank the same number of rows."""
    size, tensor = recipe.model.vocabulary, recipe.parallel.tensor
    if size % tensor:
        rule = f"must be a multiple of parallel.tensor ({tensor})"
        yield Problem("model.vocabulary", size, rule, f"use {(size // tensor + 1) * tensor}; ids above are never drawn")


def sequence_parallel(recipe: MegatronRecipe) -> Iterator[Problem]:
    """ModelParallelConfig: "Cannot use sequence parallelism without tensor parallelism"."""
    if recipe.parallel.sequence and recipe.parallel.tensor == 1:
        rule = "must be false where parallel.tensor is 1"
        yield Problem("parallel.sequence", True, rule, "use false, or parallel.tensor of 2 or more")


def sequence_length(recipe: MegatronRecipe) -> Iterator[Problem]:
    length, tensor = recipe.model.sequence_length, recipe.parallel.tensor
    if recipe.parallel.sequence and length % tensor:
        rule = f"must be a multiple of parallel.tensor ({tensor}) with sequence parallel"
        yield Problem("model.sequence_length", length, rule, _multiples(length, tensor))


def layers(recipe: MegatronRecipe) -> Iterator[Problem]:
    split, number = recipe.parallel, recipe.model.layers
    chunks = split.pipeline * (split.virtual_pipeline or 1)
    if number % chunks:
        product = f"parallel.pipeline x virtual_pipeline ({split.pipeline} x {split.virtual_pipeline or 1} = {chunks})"
        yield Problem("model.layers", number, f"must be a multiple of {product}", _multiples(number, chunks))


def virtual_pipeline(recipe: MegatronRecipe) -> Iterator[Problem]:
    """initialize_model_parallel refuses the interleaved schedule without a pipeline."""
    virtual, pipeline = recipe.parallel.virtual_pipeline, recipe.parallel.pipeline
    if virtual is not None and virtual < 2:
        yield Problem("parallel.virtual_pipeline", virtual, "must be 2 or more", "delete it: 1 is no interleaving")
    elif virtual is not None and pipeline == 1:
        rule = "must be left out where parallel.pipeline is 1"
        yield Problem("parallel.virtual_pipeline", virtual, rule, "delete it, or use parallel.pipeline of 2 or more")


def expert_parallel(recipe: MegatronRecipe) -> Iterator[Problem]:
    """TransformerConfig: "num_moe_experts must be non None to use expert-parallel"."""
    if recipe.parallel.expert > 1 and recipe.model.moe is None:
        rule = "must be 1 without model.moe"
        yield Problem("parallel.expert", recipe.parallel.expert, rule, "use 1, or add model.moe")


def expert_ranks(recipe: MegatronRecipe) -> Iterator[Problem]:
    """initialize_model_parallel: experts keep the tensor and pipeline sizes, so they share out data x context."""
    split = recipe.parallel
    ranks = split.data * split.context
    if ranks % split.expert:
        rule = f"must divide parallel.data x context ({split.data} x {split.context} = {ranks})"
        yield Problem("parallel.expert", split.expert, rule, _use(_divisors(ranks)))


def experts(recipe: MegatronRecipe) -> Iterator[Problem]:
    """MoELayer: num_moe_experts % ep_size == 0."""
    moe, expert = recipe.model.moe, recipe.parallel.expert
    if moe and moe.experts % expert:
        rule = f"must be a multiple of parallel.expert ({expert})"
        yield Problem("model.moe.experts", moe.experts, rule, _multiples(moe.experts, expert))


def moe_tensor(recipe: MegatronRecipe) -> Iterator[Problem]:
    """MoELayer.forward raises in training with tensor parallel and without sequence parallel."""
    split = recipe.parallel
    if recipe.model.moe and split.tensor > 1 and not split.sequence:
        rule = f"must be true with model.moe and parallel.tensor above 1 ({split.tensor})"
        yield Problem("parallel.sequence", False, rule, "use true, or parallel.tensor of 1")


def top_k(recipe: MegatronRecipe) -> Iterator[Problem]:
    """TransformerConfig: "Please use --moe-router-pre-softmax when topk is 1", which the built-in model does not."""
    moe = recipe.model.moe
    if moe and moe.top_k > moe.experts:
        rule = f"must be at most model.moe.experts ({moe.experts})"
        yield Problem("model.moe.top_k", moe.top_k, rule, f"use {moe.experts} or fewer")
    elif moe and moe.top_k == 1 and not moe.expert_bias:
        rule = "must be 2 or more without model.moe.expert_bias: the softmax over one score has no gradient"
        yield Problem("model.moe.top_k", 1, rule, "use 2, or set model.moe.expert_bias to true (sigmoid scores)")


def load_balancing(recipe: MegatronRecipe) -> Iterator[Problem]:
    """A weight that is not used, or a loss that weighs nothing, is not what its author meant."""
    if (moe := recipe.model.moe) is None:
        return
    key, weight = "model.moe.load_balancing_coefficient", moe.load_balancing_coefficient
    if moe.load_balancing == "none" and weight:
        yield Problem(key, weight, "must be 0 where model.moe.load_balancing is none", "use 0, or name a loss")
    elif moe.load_balancing != "none" and not weight:
        rule = f"must be above 0 where model.moe.load_balancing is {moe.load_balancing}"
        yield Problem(key, weight, rule, "use 0.01, for example, or load_balancing: none")


def mtp_embeddings(recipe: MegatronRecipe) -> Iterator[Problem]:
    """tie_word_embeddings_state_dict names one tensor twice then, and the checkpoint cannot be saved."""
    if recipe.model.mtp and recipe.parallel.pipeline > 1 and recipe.model.tied_embeddings:
        rule = f"must be false with model.mtp and parallel.pipeline above 1 ({recipe.parallel.pipeline}): no checkpoint"
        yield Problem("model.tied_embeddings", True, f"{rule} could be saved", "use false")


def mtp_length(recipe: MegatronRecipe) -> Iterator[Problem]:
    """Each layer predicts one token further on; with none left its loss is 0 / 0."""
    mtp, length = recipe.model.mtp, recipe.model.sequence_length
    if mtp and mtp.layers >= length:
        rule = f"must be below model.sequence_length ({length})"
        yield Problem("model.mtp.layers", mtp.layers, rule, "use 1, for example")


def _divides_tensor(recipe: MegatronRecipe, key: str, number: int) -> Iterator[Problem]:
    tensor = recipe.parallel.tensor
    if number % tensor:
        yield Problem("parallel.tensor", tensor, f"must divide {key} ({number})", _use(_divisors(number)))


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, 1024) + 1) if number % divisor == 0][:_MOST]


def _multiples(number: int, of: int) -> str:
    """The multiples on both sides of a number."""
    below = number // of * of
    return _use([multiple for multiple in (below, below + of) if multiple])


def _use(numbers: list[int]) -> str:
    return f"use {listed([str(number) for number in numbers])}"
