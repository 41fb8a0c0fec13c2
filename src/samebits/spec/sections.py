"""The sections of a recipe, as frozen dataclasses of the standard library.

They are declared once, here. On the host `samebits.recipe.load` reads them strictly from YAML with pydantic; inside the
container, where pydantic is not promised, `samebits.spec.plan` reads them back from JSON. Nothing that changes a number
has a silent default: a field with a default either switches a part off (`None`) or changes only what is observed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from samebits.spec.command import Command
from samebits.spec.overhead import Overhead
from samebits.spec.questions import Capture, Control, Fault, Gate, Waiver
from samebits.spec.strict import Count, NonNegative, Positive, Probability, Section, Whole
from samebits.spec.surroundings import Cluster, Container, Launch


@dataclass(frozen=True, kw_only=True)
class Moe(Section):
    """Mixture of experts in every layer."""

    experts: Count
    """Number of experts over all ranks."""
    top_k: Count
    """Experts per token."""
    ffn_hidden: Count
    """Hidden size of one expert."""
    load_balancing: Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "none"]
    """Which load-balancing loss is added."""
    load_balancing_coefficient: NonNegative
    """Weight of that loss; 0 with `none`."""
    z_loss_coefficient: NonNegative
    """0 switches the router's z-loss off."""
    dispatcher: Literal["alltoall", "allgather"]
    """How tokens reach their experts."""
    expert_bias: bool = False
    """Router bias that is updated from the load, without a gradient (needs a sigmoid score)."""
    shared_expert_hidden: Count | None = None
    """Hidden size of the expert that sees every token; absent: none."""


@dataclass(frozen=True, kw_only=True)
class Mtp(Section):
    """Multi-token prediction."""

    layers: Count
    """Further tokens that are predicted, one layer each."""
    loss_scaling: NonNegative
    """Weight of the loss of these layers."""


@dataclass(frozen=True, kw_only=True)
class Model(Section):
    """GPT: rotary positions, gated off, biases off with experts."""

    layers: Count
    """Transformer layers, over all pipeline stages."""
    hidden: Count
    """Hidden size."""
    heads: Count
    """Attention heads; each has hidden / heads channels."""
    ffn_hidden: Count
    """Hidden size of the feed-forward part; with experts each has its own."""
    sequence_length: Count
    """Tokens per sample."""
    vocabulary: Count
    """Token ids are below this."""
    normalization: Literal["LayerNorm", "RMSNorm"]
    """Kind of every norm."""
    hidden_dropout: Probability
    """Dropped share of hidden values."""
    attention_dropout: Probability
    """Dropped share of attention weights."""
    tied_embeddings: bool
    """Whether the output layer uses the embedding's weights."""
    moe: Moe | None = None
    """Absent: dense."""
    mtp: Mtp | None = None
    """Absent: only the next token is predicted."""


@dataclass(frozen=True, kw_only=True)
class Parallel(Section):
    """How the model is split; world = tensor x pipeline x context x data."""

    world: Count
    """Ranks in all."""
    tensor: Count
    """Ranks that share each layer."""
    sequence: bool
    """Sequence parallel (needs tensor > 1)."""
    pipeline: Count
    """Stages of consecutive layers."""
    context: Count
    """Ranks that share each sample (needs Transformer Engine: 1)."""
    data: Count
    """Replicas of the model."""
    expert: Count
    """Ranks that share the experts; taken out of data x context."""
    virtual_pipeline: Count | None = None
    """Model chunks per pipeline rank; absent: no interleaving."""


@dataclass(frozen=True, kw_only=True)
class StreamData(Section):
    """Tokens made from a seed: sample i is the same on every machine."""

    source: Literal["stream"]
    """Selects this kind of data."""
    stream_seed: Whole
    """Seed of the tokens."""
    micro_batch: Count
    """Samples per forward pass of one data-parallel rank."""
    global_batch: Count
    """Samples per step, over all data-parallel ranks."""


@dataclass(frozen=True, kw_only=True)
class TokenData(Section):
    """A memory-mapped file of token ids, read in an order shuffled per epoch from a seed."""

    source: Literal["tokens"]
    """Selects this kind of data."""
    path: str
    """Relative to the recipe's folder, or absolute."""
    dtype: Literal["uint8", "uint16", "int32"]
    """Of one token id in the file, little-endian."""
    sha256: str
    """Of the whole file; `sha256sum FILE` prints it."""
    shuffle_seed: Whole
    """Seed of each epoch's order."""
    micro_batch: Count
    """Samples per forward pass of one data-parallel rank."""
    global_batch: Count
    """Samples per step, over all data-parallel ranks."""


Data = StreamData | TokenData


@dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """How parameters follow gradients."""

    kind: Literal["adam"]
    """AdamW: decoupled weight decay."""
    lr: Positive
    """Learning rate after the warm-up."""
    min_lr: NonNegative
    """Learning rate at the end of the decay."""
    lr_warmup_steps: Whole
    """Steps of linear warm-up from 0."""
    lr_decay_style: Literal["constant", "linear", "cosine"]
    """From the warm-up's end to the last step."""
    weight_decay: NonNegative
    """Constant; vectors (norms, biases) take none."""
    beta1: Probability
    """Decay of the first moment; below 1."""
    beta2: Probability
    """Decay of the second moment; below 1."""
    eps: Positive
    """Added to the root of the second moment."""
    clip_grad: NonNegative
    """Maximum global norm; 0: no clipping."""
    distributed: bool
    """Shard optimizer state over data-parallel ranks."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    """torch_dist checkpoints."""

    every: Count
    """Steps between two checkpoints."""
    resume_from: Count
    """Step whose checkpoint the arm `resumed` starts from."""


@dataclass(frozen=True, kw_only=True)
class Determinism(Section):
    """What is asked of the libraries; read back in force inside every rank."""

    deterministic_algorithms: bool
    """torch.use_deterministic_algorithms."""
    fill_uninitialized_memory: bool
    """torch.utils.deterministic.fill_uninitialized_memory."""
    environment: dict[str, str] = field(default_factory=dict)
    """Only variables and values of the accepted table; what is left out is filled from it."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """What every recipe says: how the run is split, and which gates it must pass. Each workload is a kind of it."""

    name: str
    """The file's name without `.yaml`; results go to a folder of this name."""
    workload: Literal["megatron-core", "command"]
    """The built-in trainer, or a launch line of one's own."""
    parallel: Parallel
    steps: Count
    """Steps of an uninterrupted arm."""
    checkpoint: Checkpoint
    determinism: Determinism
    capture: Capture
    launch: Launch
    gates: tuple[Gate, ...]
    """Questions that get a verdict; each adds its arms."""
    controls: tuple[Control, ...] = (
        Control(name="ulp", fault=Fault(kind="ulp")),
        Control(name="resume", fault=Fault(kind="rng-skip")),
    )
    """Arms with a planted fault, run for the gate `control`."""
    twins: Count = 1
    """Repeats of the reference for the gate `repeatability`."""
    waivers: tuple[Waiver, ...] = ()
    """Differences that may stand; printed beside the scope."""
    overhead: Overhead | None = None
    """Absent: the cost of determinism is not measured."""
    container: Container | None = None
    """Absent: the software of the machine that an arm is started on."""
    cluster: Cluster | None = None
    """Absent: as the cluster file of the profile says."""
    pins: dict[str, str] = field(default_factory=dict)
    """Declared pins, for example `torch: 2.13.0`; each is checked against what every rank observes."""

    @staticmethod
    def kind_of(workload: object) -> type[Recipe]:
        """Of what stands under `workload`; the built-in one where it names none."""
        return CommandRecipe if workload == "command" else MegatronRecipe


@dataclass(frozen=True, kw_only=True)
class MegatronRecipe(Recipe):
    """A recipe of the built-in trainer."""

    workload: Literal["megatron-core"]
    """The built-in trainer."""
    model: Model
    precision: Literal["fp32", "bf16"]
    """Of parameters and activations; master parameters stay fp32."""
    data: Data
    optimizer: Optimizer
    seed: Whole
    """Seed of every random stream; pipeline stages get different ones."""


@dataclass(frozen=True, kw_only=True)
class CommandRecipe(Recipe):
    """A recipe of a launch line of one's own, run untouched with capture injected."""

    workload: Literal["command"]
    """A launch line of one's own."""
    command: Command


def built_in(recipe: Recipe) -> MegatronRecipe:
    """Raises ValueError for another workload's, which has none of what the built-in trainer needs."""
    if not isinstance(recipe, MegatronRecipe):
        raise ValueError(f"{recipe.name}: workload is {recipe.workload}, must be megatron-core here; use such a recipe")
    return recipe
