"""Training loop: builds, restores, steps and saves, and calls the watchers at every point of `hooks.Watcher`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func

from samebits.fingerprint.clock import ClockPhase, Clocks
from samebits.spec.plan import Plan
from samebits.spec.sections import built_in
from samebits.worker import clock
from samebits.worker.capture import state
from samebits.worker.hooks import Training, Watcher
from samebits.worker.trace.trace import quiet
from samebits.worker.trainer import checkpoint, megatron_fixes, metrics, model
from samebits.worker.trainer.data import Sampler, Shape
from samebits.worker.trainer.label import CheckpointError

Batch = dict[str, torch.Tensor]


def run(plan: Plan, checkpoints: Path, watchers: Sequence[Watcher]) -> Clocks:
    """Run one arm; see `samebits.worker.trainer.train.train`."""
    megatron_fixes.apply(megatron_fixes.switched_off(plan.faults))
    _ask_for_determinism(plan)
    training = build(plan)
    for watcher in watchers:
        watcher.on_start(training)
    _restore(training, watchers)
    for step in range(plan.first_step, plan.last_step + 1):
        training.step = step
        _step(training, watchers)
        if plan.saves_at(step):
            _save(training, checkpoints, watchers)
    for watcher in watchers:
        watcher.on_final(training)
    _finish(plan, checkpoints)
    return training.clock.rows()


def build(plan: Plan) -> Training:
    """Join the process group, seed every stream and build model, optimizer, schedule and data."""
    recipe = built_in(plan.recipe)
    coordinates = model.join(recipe.parallel)
    state.seed_all(recipe.seed, coordinates.pipeline)
    chunks = model.build_chunks(plan)
    optimizer = model.build_optimizer(recipe, chunks)
    shape = Shape(recipe.model.sequence_length, recipe.model.vocabulary)
    device = model.device()
    return Training(
        plan=plan,
        coordinates=coordinates,
        device=device,
        chunks=chunks,
        optimizer=optimizer,
        scheduler=model.build_scheduler(recipe, optimizer),
        sampler=Sampler(recipe.data, shape, coordinates.data, recipe.parallel.data, device),
        clock=clock.start(),
    )


def _ask_for_determinism(plan: Plan) -> None:
    def on(setting: str) -> bool:
        return bool(getattr(plan.recipe.determinism, setting)) and setting not in plan.relaxed

    torch.use_deterministic_algorithms(on("deterministic_algorithms"))
    torch.utils.deterministic.fill_uninitialized_memory = on("fill_uninitialized_memory")  # type: ignore[attr-defined]
    torch.set_num_threads(plan.recipe.launch.threads)


def _restore(training: Training, watchers: Sequence[Watcher]) -> None:
    plan = training.plan
    if plan.restore is not None:
        checkpoint.load(training, Path(plan.restore))
    if training.step != plan.first_step - 1:
        raise CheckpointError(
            f"plan: first_step is {plan.first_step}, must be {training.step + 1}: "
            f"{plan.restore or 'a run from scratch'} is at step {training.step}"
        )
    if plan.restore is not None:
        for watcher in watchers:
            watcher.on_restored(training)


def _step(training: Training, watchers: Sequence[Watcher]) -> None:
    clock = training.clock
    clock.begin(training.step)
    with clock.during(ClockPhase.OPTIMIZER):
        for chunk in training.chunks:
            chunk.zero_grad_buffer()
        training.optimizer.zero_grad()
    for watcher in _each(training, watchers):
        watcher.on_step_begin(training)
    losses = _forward_backward(training, _draw(training, watchers), watchers)
    for watcher in _each(training, watchers):
        watcher.on_gradients(training)
    with clock.during(ClockPhase.OPTIMIZER):
        update = _update(training)
        if training.plan.timing and training.plan.timing.slowdown_percent:
            clock.stretch(training.plan.timing.slowdown_percent)
    measured = metrics.measure(training, losses, update)
    for watcher in _each(training, watchers):
        watcher.on_step_end(training, measured)
    clock.end()


def _each(training: Training, watchers: Sequence[Watcher]) -> Iterator[Watcher]:
    """Yield the watchers in turn; their work counts as their own phase and is not traced."""
    for watcher in watchers:
        with training.clock.during(watcher.phase), quiet():
            yield watcher


def _draw(training: Training, watchers: Sequence[Watcher]) -> list[Batch]:
    """Draw all micro-batches of the step on every rank, so that each is seen once whatever the schedule does."""
    with training.clock.during(ClockPhase.DATA):
        batches = [training.sampler.next_micro_batch() for _ in range(training.sampler.micro_batches)]
    for index, batch in enumerate(batches):
        for watcher in _each(training, watchers):
            watcher.on_batch(training, index, batch)
    return batches


def _forward_backward(training: Training, batches: list[Batch], watchers: Sequence[Watcher]) -> list[torch.Tensor]:
    """Compute the gradients; return the LM loss of each micro-batch on the last pipeline stage, else nothing."""
    recipe = built_in(training.plan.recipe)

    def forward(source: Iterator[tuple[int, Batch]], chunk: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        index, batch = next(source)
        with training.clock.during(ClockPhase.FORWARD):
            # No mask: Megatron makes a causal one.
            output = chunk(
                batch["tokens"], batch["position_ids"], None, labels=batch["labels"], loss_mask=batch["loss_mask"]
            )

        def loss_of(per_token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with training.clock.during(ClockPhase.FORWARD):
                loss = _masked_mean(per_token, batch["loss_mask"])
            for watcher in _each(training, watchers):
                loss = watcher.on_loss(training, index, loss)
            # A copy: the schedule divides the loss in place.
            return loss, loss.detach().clone()

        return output, loss_of

    sources = [enumerate(batches) for _ in training.chunks]
    with training.clock.during(ClockPhase.BACKWARD):
        losses: list[torch.Tensor] = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=sources if len(sources) > 1 else sources[0],
            model=training.chunks,
            num_microbatches=len(batches),
            seq_length=recipe.model.sequence_length,
            micro_batch_size=recipe.data.micro_batch,
            forward_only=False,
        )
    return losses


def _masked_mean(per_token: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.view(-1)
    return (per_token.float().view(-1) * weights).sum() / weights.sum()


def _update(training: Training) -> metrics.Update:
    learning_rate = float(training.optimizer.param_groups[0]["lr"])
    _, grad_norm, zeros = training.optimizer.step()
    training.scheduler.step(increment=1)
    return metrics.Update(grad_norm=float(grad_norm), zeros=float(zeros), learning_rate=learning_rate)


def _save(training: Training, checkpoints: Path, watchers: Sequence[Watcher]) -> None:
    for watcher in watchers:
        watcher.on_save(training)
    checkpoint.save(training, checkpoints)
    training.clock.saved()


def _finish(plan: Plan, checkpoints: Path) -> None:
    dist.barrier()
    if dist.get_rank() == 0 and not plan.keep_checkpoints:
        shutil.rmtree(checkpoints, ignore_errors=True)
    model.leave()
