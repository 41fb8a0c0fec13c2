"""Entry of one rank of a stress run: `python -m samebits.worker.perturb ARTIFACT COMMAND...`.

Brings about what the plan in the folder varies outside the training itself, notes how, and becomes the command: the
process keeps its id, its parent and its session. Standard library only, whatever the command is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samebits.fingerprint.conditions import Condition, folder, note
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe
from samebits.worker import kernel_calls, neighbours

_BIG_PRIME = 2_654_435_761
_MIB = 1 << 20


class NotInForceError(RuntimeError):
    """A variation that cannot be brought about here: why."""


@dataclass(frozen=True)
class Place:
    """One rank, or what starts all ranks of a node, before it begins. local_world: processes like this one on the node.
    cores: it may run on these."""

    artifact: Path
    plan: Plan
    rank: int
    local_rank: int
    local_world: int
    cores: tuple[int, ...]

    @property
    def share(self) -> tuple[int, ...]:
        """Of the cores, those for this rank when the ranks of a machine divide them, the last ones first."""
        backwards = self.cores[::-1]
        return backwards[self.local_rank :: self.local_world] or (backwards[self.local_rank % len(backwards)],)


def main(artifact: Path, command: Sequence[str]) -> None:
    """Does not return."""
    plan = Plan.from_json((artifact / "plan.json").read_text(encoding="utf-8"))
    place = Place(
        artifact=artifact,
        plan=plan,
        rank=_number("RANK", "SLURM_PROCID"),
        local_rank=_number("LOCAL_RANK", "SLURM_LOCALID"),
        local_world=1 if _starts_ranks(plan) else int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )
    for name, vary in _OUTSIDE.items():
        if name in plan.stress:
            _noted(name, vary, place)
    os.execvp(command[0], list(command))


def _number(*variables: str) -> int:
    """0 for what starts all ranks of a machine by itself."""
    return next((int(os.environ[name]) for name in variables if name in os.environ), 0)


def _starts_ranks(plan: Plan) -> bool:
    return isinstance(plan.recipe, CommandRecipe) and plan.recipe.command.launcher != "ours"


def _noted(name: str, vary: Callable[[Place], str], place: Place) -> None:
    try:
        note(place.artifact, Condition(name, place.rank, True, vary(place)))
    except NotInForceError as reason:
        note(place.artifact, Condition(name, place.rank, False, str(reason)))


def _vary_hash_seed(place: Place) -> str:
    """Never 0, which every other run has."""
    seed = (place.rank + 1) * _BIG_PRIME % 2**32 or 1
    os.environ["PYTHONHASHSEED"] = str(seed)
    return f"PYTHONHASHSEED={seed}"


def _vary_addresses(place: Place) -> str:
    """The allocations before training are the rank's own (see `samebits.worker.unrest`)."""
    odd = 2 * place.rank + 1
    os.environ |= {
        "MALLOC_ARENA_MAX": str(1 + place.rank % 3),
        "MALLOC_TOP_PAD_": str(_MIB + odd * 4096),
        "MALLOC_MMAP_THRESHOLD_": str(64 * 1024 + odd * 16),
    }
    said = f"MALLOC_TOP_PAD_={os.environ['MALLOC_TOP_PAD_']}"
    try:
        on = kernel_calls.flip_address_randomization()
    except OSError as error:
        return f"{said}; ASLR as before ({error.strerror})"
    return f"{said}; ASLR {'on' if on else 'off'}"


def _vary_host_name(place: Place) -> str:
    """Ranks of one machine see one name, as before: libraries take it for the machine."""
    if place.plan.world > int(os.environ.get("LOCAL_WORLD_SIZE", "1")) and "GLOO_SOCKET_IFNAME" not in os.environ:
        raise NotInForceError("libraries find the network by the host name; set `interface` in the cluster file")
    name = f"stress-{os.uname().nodename}"[:63].rstrip("-.")
    try:
        kernel_calls.rename_host(name)
    except OSError as error:
        raise NotInForceError(f"another host name needs the right to make namespaces ({error.strerror})") from error
    os.environ["HOSTNAME"] = name
    return f"host name {os.uname().nodename}"


def _vary_caches(place: Place) -> str:
    """Python compiles every module anew and writes none. A folder that the recipe itself names stays."""
    fresh = folder(place.artifact) / f"caches-{place.rank:05d}-{os.getpid()}"
    asked = place.plan.recipe.determinism.environment
    variables = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "PYTHONPYCACHEPREFIX": "python"}
    for variable, name in variables.items():
        if variable not in asked:
            (fresh / name).mkdir(parents=True)
            os.environ[variable] = str(fresh / name)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    data = getattr(getattr(place.plan.recipe, "data", None), "path", None)
    if data is None:
        return f"caches in {fresh.name}"
    _forget_pages(Path(data))
    return f"caches in {fresh.name}; {Path(data).name} out of the page cache"


def _forget_pages(path: Path) -> None:
    """Of one file; what another process has mapped stays."""
    try:
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise NotInForceError(f"{path}: {error.strerror}") from error


def _vary_order(place: Place) -> str:
    """Other cores for each rank; the launcher starts the ranks, and has Slurm take the nodes, in reverse order."""
    if _starts_ranks(place.plan):
        raise NotInForceError("the line starts its ranks itself (command.launcher), in an order of its own")
    node = os.environ.get("SLURMD_NODENAME")
    where = f"on {node}, " if node else ""
    if len(place.cores) == 1:
        if place.plan.world == 1:
            raise NotInForceError("one rank and one core have no other order")
        return f"{where}one core; ranks in reverse order"
    os.sched_setaffinity(0, place.share)
    return f"{where}cores {', '.join(map(str, sorted(os.sched_getaffinity(0))))} of {len(place.cores)}"


def _contend(place: Place) -> str:
    neighbours.start(place.share)
    return f"busy on cores {', '.join(map(str, place.share))}"


def _vary_environment(place: Place) -> str:
    more = {f"STRESS_{number}": "x" * (1 + number * 7 % 61) for number in range(200 + place.rank)}
    zone = "STR-14" if os.environ.get("TZ") != "STR-14" else "STR+11"
    language = "C.UTF-8" if os.environ.get("LANG") != "C.UTF-8" else "POSIX"
    os.environ |= {**more, "TZ": zone, "LANG": language}
    return f"{len(more)} variables, TZ={zone}, LANG={language}"


_OUTSIDE: dict[str, Callable[[Place], str]] = {
    "hash-seed": _vary_hash_seed,
    "addresses": _vary_addresses,
    "host-name": _vary_host_name,
    "cold-caches": _vary_caches,
    "node-order": _vary_order,
    "batch-of-environment": _vary_environment,
    # Last: its processes are copies of this one, and on the same cores.
    "contention": _contend,
}
"""What must be so before the rank's program begins; the others are the rank's own."""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
