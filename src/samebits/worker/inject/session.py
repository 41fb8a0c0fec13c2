"""State of one hooked run: turns what the hooks report into the points that watchers expect, in order.

Nothing is opened before training really begins. What does not fit the plan (another number of steps, another world,
steps out of turn) ends the run with a message: an arm that is watched by half must not look whole.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from samebits.fingerprint.format import Coordinates
from samebits.fingerprint.paths import Artifact
from samebits.spec.command import FAULTS
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe
from samebits.worker import clock
from samebits.worker.faults import FaultError
from samebits.worker.hooks import Training, Watcher
from samebits.worker.trace.trace import quiet
from samebits.worker.watchers import watchers_of

Batch = dict[str, torch.Tensor]
Metrics = dict[str, float | torch.Tensor]


class InjectionError(RuntimeError):
    """A run that does not do what the arm's plan says."""


class Session:
    """The run of the process that trains. Points must come in turn: attach, then for each step begin, batches,
    gradients, end, and save where the plan saves."""

    def __init__(self, artifact: Artifact, launch: str) -> None:
        self.plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
        self._artifact = artifact
        self._launch = launch
        self._pid = os.getpid()
        self._batches = 0
        self._stepping = False
        self._training: Training | None = None
        self._watchers: list[Watcher] = []
        self.open = False
        """Whether a step has begun and not ended."""
        self.save_due = False
        """Whether the last step is one that the plan saves after, and was not saved."""
        self.sealed = False
        self.broken = False
        """Whether a point failed: nothing is sealed then."""

    @property
    def adapter(self) -> str:
        recipe = self.plan.recipe
        return recipe.command.adapter if isinstance(recipe, CommandRecipe) else "auto"

    @property
    def mine(self) -> bool:
        """Return whether this is the process that trains, not a fork of it."""
        return os.getpid() == self._pid

    @property
    def attached(self) -> bool:
        return self._training is not None

    @property
    def next_step(self) -> int:
        return (self._training.step if self._training else self.plan.first_step - 1) + 1

    @property
    def complete(self) -> bool:
        return self._training is not None and self._training.step == self.plan.last_step and not self.open

    @contextlib.contextmanager
    def _point(self) -> Iterator[None]:
        """Note a failure, so that the file stays unsealed even if the script catches the error and goes on."""
        try:
            yield
        except BaseException:
            self.broken = True
            raise

    def attach(self, chunks: Sequence[Any], optimizer: Any, scheduler: Any = None) -> None:
        """Report that model and optimizer are built and, where the arm restores, restored."""
        with self._point():
            self._attach(chunks, optimizer, scheduler)

    def _attach(self, chunks: Sequence[Any], optimizer: Any, scheduler: Any) -> None:
        where = rank_coordinates()
        self._check(where)
        training = Training(
            plan=self.plan,
            coordinates=where,
            device=model_device(chunks),
            chunks=list(chunks),
            optimizer=optimizer,
            scheduler=scheduler,
            sampler=None,
            clock=clock.start(),
            step=self.plan.first_step - 1,
        )
        self._watchers, self._capture = watchers_of(self._artifact, self.plan, where.rank, self._launch)
        self._training = training
        atexit.register(self.finish)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            # A launcher that sees no progress asks for stacks; without this the signal would kill.
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        with quiet():
            for watcher in self._watchers:
                watcher.on_start(training)
            for watcher in self._watchers if self.plan.restore is not None else ():
                watcher.on_restored(training)

    def begin(self, step: int | None = None) -> None:
        """Begin a step. step: its number, where the loop knows it."""
        with self._point():
            self._begin(step)

    def _begin(self, step: int | None) -> None:
        training = self._live()
        expected = training.step + 1
        if step is not None and step != expected:
            raise InjectionError(
                f"samebits: the run is at step {step}, the plan's next one is {expected} (arm {self.plan.arm}, steps "
                f"{self.plan.first_step} to {self.plan.last_step}); the recipe's line must start there"
            )
        if expected > self.plan.last_step:
            raise InjectionError(
                f"samebits: the run makes step {expected}, the plan's last one is {self.plan.last_step}; end the run "
                "there (placeholder {stop})"
            )
        training.step = expected
        self._batches = 0
        self._stepping = False
        self.open = True
        training.clock.begin(expected)
        for watcher in self._each():
            watcher.on_step_begin(training)

    def batch(self, tensors: Batch) -> None:
        if self.open and tensors:
            training = self._live()
            with self._point():
                for watcher in self._each():
                    watcher.on_batch(training, self._batches, tensors)
            self._batches += 1

    def gradients(self) -> None:
        """Report complete gradients. The parts of a chain of optimizers call this too; the first call counts."""
        if self._stepping:
            return
        self._stepping = True
        training = self._live()
        with self._point():
            for watcher in self._each():
                watcher.on_gradients(training)

    def end(self, metrics: Metrics) -> None:
        training = self._live()
        with self._point():
            for watcher in self._each():
                watcher.on_step_end(training, metrics)
        training.clock.end()
        self.open = False
        self.save_due = self.plan.saves_at(training.step)

    def save(self) -> None:
        """State is about to be saved, or has not changed since it was."""
        if not self.save_due:
            return
        training = self._live()
        self.save_due = False
        with self._point(), quiet():
            for watcher in self._watchers:
                watcher.on_save(training)
        training.clock.saved()

    def finish(self) -> None:
        """Once, at the end of the process at the latest; ends it with status 1 where the run is not the plan's."""
        if self.sealed or not self.mine or self._training is None:
            return
        self.sealed = True
        if not self.complete and hasattr(sys, "last_value"):
            # Python has said what ended the run; nothing of ours is to stand behind that.
            return
        try:
            self._finish(self._training)
        except BaseException:
            traceback.print_exc()
            leave(1)

    def _finish(self, training: Training) -> None:
        if self.broken:
            raise InjectionError("samebits: a point of this run failed (see above); nothing is sealed")
        if not self.complete:
            raise InjectionError(
                f"samebits: the run ended at step {training.step}{' unfinished' * self.open}, the plan's last step is "
                f"{self.plan.last_step}; nothing is sealed"
            )
        self.save()
        with quiet():
            for watcher in self._watchers:
                watcher.on_final(training)
            self._capture.recorder.time(training.clock.rows())
            self._capture.recorder.seal()
        print(f"samebits: rank {training.coordinates.rank} sealed", file=sys.stderr, flush=True)

    def refuse(self, message: str) -> NoReturn:
        """Raise InjectionError, and nothing is sealed where a script goes on all the same."""
        self.broken = True
        raise InjectionError(message)

    def _check(self, where: Coordinates) -> None:
        """Refuse another world, and faults that cannot be planted here: one that never strikes proves nothing."""
        for fault in self.plan.faults:
            if fault.kind not in FAULTS:
                raise FaultError(f"fault {fault.kind}: must be one of {', '.join(FAULTS)} with workload command")
        if where.world != self.plan.world:
            raise InjectionError(
                f"samebits: {where.world} ranks train, parallel.world is {self.plan.world}; mend the recipe or its line"
            )

    def _live(self) -> Training:
        if self._training is None or self.sealed:
            raise InjectionError("samebits: training goes on after it was sealed, or before it was found")
        return self._training

    def _each(self) -> Iterator[Watcher]:
        """Yield the watchers in turn; their work counts as their own phase and is not traced."""
        training = self._live()
        for watcher in self._watchers:
            with training.clock.during(watcher.phase), quiet():
                yield watcher


_EXIT = os._exit


def leave(status: int) -> None:
    """End this process at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    _EXIT(status)


_SESSIONS: list[Session] = []


def session() -> Session:
    """Return the session of this process; the first call reads the plan."""
    if not _SESSIONS:
        folder = Path(os.environ["SAMEBITS_ARTIFACT"])
        _SESSIONS.append(Session(Artifact(folder), os.environ["SAMEBITS_LAUNCH"]))
        _seal_before_exit(_SESSIONS[0])
    return _SESSIONS[0]


def _seal_before_exit(of: Session) -> None:
    """Seal in `os._exit` too, which runs none of the functions of `atexit`."""

    def sealed_exit(status: int) -> None:
        of.finish()
        _EXIT(status)

    os._exit = sealed_exit  # type: ignore[assignment]


def rank_coordinates() -> Coordinates:
    """Return the rank's coordinates in Megatron's groups; without them all ranks count as replicas."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        return Coordinates(
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            tensor=state.get_tensor_model_parallel_rank(),
            pipeline=state.get_pipeline_model_parallel_rank(),
            data=state.get_data_parallel_rank(),
            expert=state.get_expert_model_parallel_rank(),
            context=state.get_context_parallel_rank(),
        )
    started = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if started else int(os.environ.get("RANK", "0"))
    world = dist.get_world_size() if started else int(os.environ.get("WORLD_SIZE", "1"))
    return Coordinates(rank=rank, world=world, tensor=0, pipeline=0, data=rank, expert=0, context=0)


def model_device(chunks: Sequence[Any]) -> torch.device:
    """Return the device of the model's first parameter."""
    for chunk in chunks:
        for parameter in chunk.parameters():
            found: torch.device = parameter.device
            return found
    return torch.device("cpu")


_DEEPEST = 8


def named_tensors(batch: Any, *, copied: bool = False) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch of any shape, named by keys of mappings, fields and places in sequences.

    Other values are left out. copied: the caller keeps them after the loop, which may change them, has the batch.
    """
    return {name: tensor.detach().clone() if copied else tensor for name, tensor in _tensors(batch, "", _DEEPEST)}


def _tensors(value: Any, name: str, deep: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name or "batch", value
    elif deep:
        for key, inner in _parts(value):
            yield from _tensors(inner, f"{name}.{key}" if name else key, deep - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((str(index), inner) for index, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
