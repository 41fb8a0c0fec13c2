"""Pins: what an arm was trained in, as each rank observed it, and how two observations deviate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Pins:
    """One rank's surroundings. Every group but `placement` is compared; a difference is a deviation.

    software: versions by distribution name. libraries: loaded shared objects -> build id. hardware: CPU and GPU model.
    runtime: what is in force after start-up (threads, flags, backend). environment: allow-listed variables only.
    code: digests of the sources that ran. data: digests of the data read. placement: node, job, GPU UUID, process;
    where it ran, never compared.
    """

    software: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    placement: dict[str, str] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """Name that the scheduler gives the node, else the host's; empty where neither was recorded."""
        return self.placement.get("node") or self.placement.get("host", "")

    @property
    def job(self) -> str:
        """Allocation that the rank ran in, as the scheduler counts them; empty without a scheduler."""
        return self.placement.get("job", "")

    @property
    def machine(self) -> frozenset[tuple[str, str]]:
        """What no two machines share: boot id and GPU UUID, as far as they were recorded."""
        return frozenset((name, self.placement[name]) for name in ("boot", "gpu-uuid") if self.placement.get(name))

    def compared(self) -> Iterator[tuple[str, str]]:
        """(`group.name`, value) of every pin that must not differ between two arms."""
        for group in dataclasses.fields(self):
            if group.name != "placement":
                for name, value in sorted(getattr(self, group.name).items()):
                    yield f"{group.name}.{name}", value


ABSENT = "(absent)"


@dataclass(frozen=True, order=True)
class Deviation:
    """reference: value there, or what was declared. candidate: value observed. ranks: on which ranks, sorted."""

    pin: str
    reference: str
    candidate: str
    ranks: tuple[int, ...]


def deviations(reference: dict[int, Pins], candidate: dict[int, Pins]) -> list[Deviation]:
    """Rank by rank over the ranks that both have, equal deviations of several ranks as one."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for rank in sorted(reference.keys() & candidate.keys()):
        ours, theirs = dict(reference[rank].compared()), dict(candidate[rank].compared())
        for pin in sorted(ours.keys() | theirs.keys()):
            pair = ours.get(pin, ABSENT), theirs.get(pin, ABSENT)
            if pair[0] != pair[1]:
                found.setdefault((pin, *pair), []).append(rank)
    return [Deviation(*key, ranks=tuple(ranks)) for key, ranks in sorted(found.items())]


def undeclared(declared: dict[str, str], observed: dict[int, Pins]) -> list[Deviation]:
    """Declared software pins (`torch: 2.13.0`) that a rank did not observe."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for rank, pins in sorted(observed.items()):
        for name, value in declared.items():
            seen = pins.software.get(name, ABSENT)
            if seen != value:
                found.setdefault((f"software.{name}", value, seen), []).append(rank)
    return [Deviation(*key, ranks=tuple(ranks)) for key, ranks in sorted(found.items())]
