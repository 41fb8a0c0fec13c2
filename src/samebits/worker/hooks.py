"""Points of a training run at which watchers are called: to observe (capture) or to interfere (planted faults).

The trainer calls every watcher in order at each point and knows nothing else about them. A watcher adds no
collective and draws from no random stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from samebits.fingerprint.clock import ClockPhase

if TYPE_CHECKING:
    import torch

    from samebits.fingerprint.format import Coordinates
    from samebits.spec.plan import Plan
    from samebits.worker.clock import Clock


@dataclass
class Training:
    """One rank's live objects. Watchers read them; only planted faults change them.

    chunks: the DDP-wrapped model chunks (one, or one per virtual pipeline stage), or the models of a loop of one's own.
    optimizer: Megatron Core's MegatronOptimizer (may be a ChainedOptimizer), one of torch, or `Chain`.
    scheduler: OptimizerParamScheduler; None: a loop of one's own has none, or hides it.
    sampler: a `samebits.worker.trainer.data.Sampler`, position and order of the data; None: only the loop knows.
    clock: times each step.
    step: 1-based number of the step at hand; 0 before the first.
    """

    plan: Plan
    coordinates: Coordinates
    device: torch.device
    chunks: list[Any]
    optimizer: Any
    scheduler: Any
    sampler: Any
    clock: Clock
    step: int = 0


@dataclass(frozen=True)
class Chain:
    """Several optimizers of one loop, in the attribute in which Megatron's ChainedOptimizer has them."""

    chained_optimizers: list[Any]


class Watcher:
    """Watcher that does nothing; subclasses override the points they need. phase: what its time counts as."""

    phase: ClassVar[ClockPhase] = ClockPhase.OTHER

    def on_start(self, training: Training) -> None:
        """Model, optimizer and data are built; nothing is restored yet."""

    def on_restored(self, training: Training) -> None:
        """A checkpoint was loaded; the first step has not begun."""

    def on_step_begin(self, training: Training) -> None:
        """`training.step` is set; gradients are zero; no batch is drawn."""

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        """A micro-batch was drawn, before any use. tokens, labels: int64 (micro_batch, sequence); loss_mask: float32,
        the same shape; position_ids: int64, the same shape. Called once per micro-batch and step on every rank that
        draws data, whatever the number of model chunks."""

    def on_loss(self, training: Training, micro_batch: int, loss: torch.Tensor) -> torch.Tensor:
        """The LM loss of one micro-batch, a scalar with a gradient, before backward. Returns the loss to use."""
        return loss

    def on_gradients(self, training: Training) -> None:
        """Gradients are reduced, not clipped."""

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        """Optimizer and scheduler have stepped. `metrics`: name -> scalar, as logged; may be changed in place."""

    def on_save(self, training: Training) -> None:
        """State in memory is about to be written as the checkpoint of `training.step`."""

    def on_final(self, training: Training) -> None:
        """After the last step."""
