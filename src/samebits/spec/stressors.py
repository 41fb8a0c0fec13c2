"""What a stress run varies although it must not matter: nothing of it is part of what is trained.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Stressor = Literal[
    "hash-seed",
    "addresses",
    "host-name",
    "contention",
    "delayed-rank",
    "cold-caches",
    "loader-threads",
    "node-order",
    "batch-of-environment",
]


@dataclass(frozen=True)
class Variation:
    """does: in words, of a run beside the reference. pins: what it changes on purpose, as a deviation names them; a
    comparison of a stress run passes over these and no others."""

    name: Stressor
    does: str
    pins: tuple[str, ...] = ()


VARIATIONS = (
    Variation("hash-seed", "every rank has another PYTHONHASHSEED", ("environment.PYTHONHASHSEED",)),
    Variation("addresses", "malloc lays out memory otherwise, odd allocations before training, ASLR switched over"),
    Variation("host-name", "ranks see another host name, and HOSTNAME says so"),
    Variation("contention", "a busy process on every core of the ranks"),
    Variation("delayed-rank", "one rank sleeps at random points of random steps"),
    Variation(
        "cold-caches",
        "empty caches of Triton, Inductor and Python; data files out of the page cache",
        ("environment.TRITON_CACHE_DIR",),
    ),
    Variation("loader-threads", "threads draw the data ahead of time"),
    Variation("node-order", "ranks start in reverse order, on other cores; nodes in reverse order"),
    Variation("batch-of-environment", "more variables in the environment, another TZ and LANG"),
)
"""The order in which bisection takes them."""

NAMES: tuple[Stressor, ...] = tuple(variation.name for variation in VARIATIONS)


def named(name: str) -> Variation:
    """Raises KeyError where there is none."""
    return {str(variation.name): variation for variation in VARIATIONS}[name]


def pins_varied(names: Iterable[str]) -> frozenset[str]:
    """Pins that these variations change on purpose."""
    return frozenset(pin for name in names for pin in named(name).pins)
