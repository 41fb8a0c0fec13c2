"""The sections of a recipe, as frozen dataclasses of the standard library.

They are declared once, here. On the host `samebits.recipe` reads them strictly from YAML with pydantic; inside the
container, where pydantic is not promised, `samebits.plan` reads them back from JSON. Nothing that changes a number
has a silent default: a field with a default either switches a part off (`None`) or changes only what is observed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}


@dataclass(frozen=True)
class Bounds:
    """Closed interval for a number; pydantic reads it through the hook below, without an import of pydantic here."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        limits = {"ge": self.low, "le": self.high, "gt": self.above}
        schema.update({key: limit for key, limit in limits.items() if limit is not None})
        return schema


Count = Annotated[int, Bounds(low=1)]
Whole = Annotated[int, Bounds(low=0)]
Probability = Annotated[float, Bounds(low=0.0, high=1.0)]
NonNegative = Annotated[float, Bounds(low=0.0)]
Positive = Annotated[float, Bounds(above=0.0)]


@dataclass(frozen=True, kw_only=True)
class Moe:
    """Mixture of experts in every layer."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    experts: Count
    """Number of experts over all ranks."""
    top_k: Count
    """Experts per token."""
    ffn_hidden: Count
    """Hidden size of one expert."""
    load_balancing: Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "none"]
    """Which load-balancing loss is added."""
    load_balancing_coefficient: NonNegative
    z_loss_coefficient: NonNegative
    """0 switches the router's z-loss off."""
    dispatcher: Literal["alltoall", "allgather"]
    expert_bias: bool = False
    """Router bias that is updated from the load, without a gradient (needs a sigmoid score)."""
    shared_expert_hidden: Count | None = None
    """Hidden size of the expert that sees every token; absent: none."""


@dataclass(frozen=True, kw_only=True)
class Mtp:
    """Multi-token prediction."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    layers: Count
    loss_scaling: NonNegative


@dataclass(frozen=True, kw_only=True)
class Model:
    """GPT: rotary positions, gated off, biases off with experts."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    layers: Count
    hidden: Count
    heads: Count
    ffn_hidden: Count
    sequence_length: Count
    vocabulary: Count
    normalization: Literal["LayerNorm", "RMSNorm"]
    hidden_dropout: Probability
    attention_dropout: Probability
    tied_embeddings: bool
    moe: Moe | None = None
    mtp: Mtp | None = None


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the model is split; world = tensor x pipeline x context x data."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    world: Count
    """Ranks in all."""
    tensor: Count
    sequence: bool
    """Sequence parallel (needs tensor > 1)."""
    pipeline: Count
    context: Count
    data: Count
    expert: Count
    virtual_pipeline: Count | None = None
    """Model chunks per pipeline rank; absent: no interleaving."""


@dataclass(frozen=True, kw_only=True)
class StreamData:
    """Tokens made from a seed: sample i is the same on every machine."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    source: Literal["stream"]
    stream_seed: Whole
    micro_batch: Count
    global_batch: Count


@dataclass(frozen=True, kw_only=True)
class TokenData:
    """A memory-mapped file of token ids, read in an order shuffled per epoch from a seed."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    source: Literal["tokens"]
    path: str
    """Relative to the recipe's folder, or absolute."""
    dtype: Literal["uint8", "uint16", "int32"]
    sha256: str
    """Of the whole file; `sha256sum FILE` prints it."""
    shuffle_seed: Whole
    micro_batch: Count
    global_batch: Count


Data = StreamData | TokenData


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    kind: Literal["adam"]
    """AdamW: decoupled weight decay."""
    lr: Positive
    min_lr: NonNegative
    lr_warmup_steps: Whole
    lr_decay_style: Literal["constant", "linear", "cosine"]
    weight_decay: NonNegative
    beta1: Probability
    beta2: Probability
    eps: Positive
    clip_grad: NonNegative
    """Maximum global norm; 0: no clipping."""
    distributed: bool
    """Shard optimizer state over data-parallel ranks."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """torch_dist checkpoints."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    every: Count
    """Steps between two checkpoints."""
    resume_from: Count
    """Step whose checkpoint the arm `resumed` starts from."""


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """What is asked of the libraries; read back in force inside every rank."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    deterministic_algorithms: bool
    """torch.use_deterministic_algorithms."""
    fill_uninitialized_memory: bool
    """torch.utils.deterministic.fill_uninitialized_memory."""
    environment: dict[str, str] = field(default_factory=dict)
    """Only variables and values of the accepted table; what is left out is filled from it."""


Rung = Literal["metrics", "state"]


@dataclass(frozen=True, kw_only=True)
class Capture:
    """How much is fingerprinted. Where a step or rank falls outside the limits, the rung `metrics` is recorded."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    rung: Rung
    every: Count = 1
    """Full rung at steps divisible by this, and at the last step."""
    windows: tuple[tuple[int, int], ...] | None = None
    """Closed intervals of steps at the full rung; absent: all."""
    ranks: tuple[int, ...] | None = None
    """Ranks at the full rung; absent: all."""
    max_tensor_bytes: Count | None = None
    """Larger tensors keep shape and dtype, not bytes; they are counted in the scope. Absent: no limit."""


FaultKind = Literal[
    "ulp",
    "batch-swap",
    "gradient",
    "loss-logging",
    "nan-loss",
    "moment-drop",
    "rng-skip",
    "position-skip",
    "upstream",
]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    kind: FaultKind
    rank: Whole | None = None
    """Where; absent: the last rank. `nan-loss` and `upstream` strike every rank."""
    step: Count | None = None
    """When; absent: the step after `checkpoint.resume_from`. Restore faults strike at the restore."""
    target: str | None = None
    """Parameter name, RNG stream name, or name of an upstream workaround; absent: the first one on that rank."""


Gate = Literal["repeatability", "resume", "control", "observer"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """A named arm with one planted fault, which must be found at exactly the planted place."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    """The arm is `control-NAME`."""
    fault: Fault


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A difference that may stand, while it reaches nothing else."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    item: str
    """KIND:NAME of a state item, for example `rng:python`."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    time_minutes: Count
    """An arm that runs longer is ended."""
    threads: Count
    """Compute threads per rank (OMP_NUM_THREADS and torch)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, how it is split, and which gates it must pass."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    workload: Literal["megatron-core"]
    model: Model
    parallel: Parallel
    precision: Literal["fp32", "bf16"]
    data: Data
    optimizer: Optimizer
    steps: Count
    checkpoint: Checkpoint
    seed: Whole
    determinism: Determinism
    capture: Capture
    launch: Launch
    gates: tuple[Gate, ...]
    controls: tuple[Control, ...] = (
        Control(name="ulp", fault=Fault(kind="ulp")),
        Control(name="resume", fault=Fault(kind="rng-skip")),
    )
    twins: Count = 1
    waivers: tuple[Waiver, ...] = ()
    pins: dict[str, str] = field(default_factory=dict)
    """Declared pins, for example `torch: 2.13.0`; each is checked against what every rank observes."""
