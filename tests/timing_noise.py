"""Step times as machines give them, many experiments at once: the noise that `samebits.overhead.statistics` is held to.

Every experiment is blocks of a palindrome of settings, `A B B A` or `S0 S1 .. Sk Sk .. S1 S0`, each run a process.
Seeds are fixed: the same call gives the same times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TYPICAL_STEP = 0.25
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Sizes are standard deviations of log times unless said otherwise."""

    step: float = 0.03
    """Of one step, lognormal."""
    memory: float = 0.3
    """Lag-1 autocorrelation of steps in one process, AR(1)."""
    tails: float | None = None
    """Degrees of freedom of Student's t in place of the normal, for steps and processes; None: normal."""
    process: float = 0.002
    """Of one process, all its steps."""
    walk: float = 0.004
    """Of the machine, from one run to the next; it does not come back."""
    drift: float = 0.01
    """Log time gained from the first run to the last, linearly."""
    curve: float = 0.0
    """The same, by the square of time."""
    stragglers: float = 0.01
    """Share of steps that take 1.5 to 3 times as long."""


ISSUE = Noise()
"""The noise that the design was chosen under."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """One cell of a simulation. effects: percent that each setting after the first takes longer than the first."""

    blocks: int
    effects: tuple[float, ...] = (0.0,)
    steps: int = 100
    noise: Noise = ISSUE
    seed: int = 0

    @property
    def palindrome(self) -> list[int]:
        """Setting of each run of a block."""
        settings = list(range(len(self.effects) + 1))
        return settings + settings[::-1]


def step_times(design: Design, experiments: int) -> Floats:
    """Seconds, shape (experiments, blocks, runs of a block, steps), in the order they ran."""
    random = np.random.default_rng(design.seed)
    length = len(design.palindrome)
    runs = design.blocks * length
    effects = np.log1p(np.array([0.0, *design.effects]) / 100)[design.palindrome]
    logs = np.tile(effects, design.blocks) + _machine(design.noise, random, experiments, runs)
    steps = _steps(design, random, experiments * runs) + logs.ravel()
    slow = random.random(steps.shape) < design.noise.stragglers
    steps[slow] += np.log(random.uniform(1.5, 3, int(slow.sum())))
    times = TYPICAL_STEP * np.exp(steps)
    return np.ascontiguousarray(times.T).reshape(experiments, design.blocks, length, design.steps)


def medians(design: Design, experiments: int) -> Floats:
    """Seconds a run, shape (experiments, blocks, runs of a block)."""
    return np.asarray(np.median(step_times(design, experiments), axis=-1))


def of_setting(design: Design, runs: Floats, setting: int) -> Floats:
    """The two runs of one setting in each block, from shape (.., blocks, runs of a block): shape (.., blocks, 2)."""
    return runs[..., [place for place, which in enumerate(design.palindrome) if which == setting]]


def _machine(noise: Noise, random: np.random.Generator, experiments: int, runs: int) -> Floats:
    """Log times, shape (experiments, runs)."""
    time = np.linspace(0, 1, runs)
    walk = noise.walk * random.standard_normal((experiments, runs)).cumsum(axis=1)
    process = noise.process * _standard(noise, random, (experiments, runs))
    return np.asarray(noise.drift * time + noise.curve * time**2 + walk + process)


def _steps(design: Design, random: np.random.Generator, runs: int) -> Floats:
    """Log times, shape (steps, runs), stationary from the first step."""
    noise = design.noise
    steps = _standard(noise, random, (design.steps, runs))
    for step in range(1, design.steps):
        steps[step] = noise.memory * steps[step - 1] + np.sqrt(1 - noise.memory**2) * steps[step]
    return noise.step * steps


def _standard(noise: Noise, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Standard deviation 1."""
    if noise.tails is None:
        return random.standard_normal(shape)
    return np.asarray(random.standard_t(noise.tails, shape) * np.sqrt(1 - 2 / noise.tails))
