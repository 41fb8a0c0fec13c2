"""Entry point of one rank of a stress run: `python -m samebits.worker.perturb ARTIFACT COMMAND...`.

Brings about what the plan in the folder varies outside the training itself, notes how, and becomes the command: the
process keeps its id, its parent and its session. Standard library only, whatever the command is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from samebits.fingerprint.conditions import Condition, folder, note
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe

_BIG_PRIME = 2_654_435_761
_MIB = 1 << 20


class NotInForceError(RuntimeError):
    """A variation that cannot be brought about here; the message gives the reason."""


@dataclass(frozen=True)
class StartingRank:
    """A process about to become a rank, or what starts all ranks of a node.

    local_world: number of such processes on the node. cores: numbers of the cores that it may run on.
    """

    artifact: Path
    plan: Plan
    rank: int
    local_rank: int
    local_world: int
    cores: tuple[int, ...]

    @property
    def share(self) -> tuple[int, ...]:
        """Return this rank's cores when the ranks of a node divide them, beginning with the last core."""
        backwards = self.cores[::-1]
        return backwards[self.local_rank :: self.local_world] or (backwards[self.local_rank % len(backwards)],)


def main(artifact: Path, command: Sequence[str]) -> None:
    """Vary what the plan in the folder names, then replace this process by the command."""
    plan = Plan.from_json((artifact / "plan.json").read_text(encoding="utf-8"))
    place = StartingRank(
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
    """Return the first of the variables that is set; 0 for a process that starts all ranks of a node itself."""
    return next((int(os.environ[name]) for name in variables if name in os.environ), 0)


def _starts_ranks(plan: Plan) -> bool:
    return isinstance(plan.recipe, CommandRecipe) and plan.recipe.command.launcher != "ours"


def _noted(name: str, vary: Callable[[StartingRank], str], place: StartingRank) -> None:
    try:
        note(place.artifact, Condition(name, place.rank, True, vary(place)))
    except NotInForceError as reason:
        note(place.artifact, Condition(name, place.rank, False, str(reason)))


def _vary_hash_seed(place: StartingRank) -> str:
    """Set a hash seed of the rank's own, never 0, which every other run has."""
    seed = (place.rank + 1) * _BIG_PRIME % 2**32 or 1
    os.environ["PYTHONHASHSEED"] = str(seed)
    return f"PYTHONHASHSEED={seed}"


def _vary_addresses(place: StartingRank) -> str:
    """Change the layout of the heap and switch address randomization over.

    `samebits.worker.jitter` adds allocations inside the rank.
    """
    odd = 2 * place.rank + 1
    os.environ |= {
        "MALLOC_ARENA_MAX": str(1 + place.rank % 3),
        "MALLOC_TOP_PAD_": str(_MIB + odd * 4096),
        "MALLOC_MMAP_THRESHOLD_": str(64 * 1024 + odd * 16),
    }
    said = f"MALLOC_TOP_PAD_={os.environ['MALLOC_TOP_PAD_']}"
    try:
        on = flip_address_randomization()
    except OSError as error:
        return f"{said}; ASLR as before ({error.strerror})"
    return f"{said}; ASLR {'on' if on else 'off'}"


def _vary_host_name(place: StartingRank) -> str:
    """Give the host another name; one for all ranks of a node, because libraries identify the node by it."""
    if place.plan.world > int(os.environ.get("LOCAL_WORLD_SIZE", "1")) and "GLOO_SOCKET_IFNAME" not in os.environ:
        raise NotInForceError("libraries find the network by the host name; set `interface` in the cluster file")
    name = f"stress-{os.uname().nodename}"[:63].rstrip("-.")
    try:
        rename_host(name)
    except OSError as error:
        raise NotInForceError(f"another host name needs the right to make namespaces ({error.strerror})") from error
    os.environ["HOSTNAME"] = name
    return f"host name {os.uname().nodename}"


def _vary_caches(place: StartingRank) -> str:
    """Use empty caches: also Python compiles every module anew and writes none. Folders that the recipe names stay."""
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
    """Drop one file from the page cache; pages that another process has mapped stay."""
    try:
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise NotInForceError(f"{path}: {error.strerror}") from error


def _vary_order(place: StartingRank) -> str:
    """Pin each rank to its share of cores; the launcher reverses the order of ranks and of Slurm's nodes."""
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


def _contend(place: StartingRank) -> str:
    start_neighbours(place.share)
    return f"busy on cores {', '.join(map(str, place.share))}"


def _vary_environment(place: StartingRank) -> str:
    more = {f"STRESS_{number}": "x" * (1 + number * 7 % 61) for number in range(200 + place.rank)}
    zone = "STR-14" if os.environ.get("TZ") != "STR-14" else "STR+11"
    language = "C.UTF-8" if os.environ.get("LANG") != "C.UTF-8" else "POSIX"
    os.environ |= {**more, "TZ": zone, "LANG": language}
    return f"{len(more)} variables, TZ={zone}, LANG={language}"


_OUTSIDE: dict[str, Callable[[StartingRank], str]] = {
    "hash-seed": _vary_hash_seed,
    "addresses": _vary_addresses,
    "host-name": _vary_host_name,
    "cold-caches": _vary_caches,
    "node-order": _vary_order,
    "batch-of-environment": _vary_environment,
    # Last: its processes are copies of this one, and on the same cores.
    "contention": _contend,
}
"""Variations made before the rank's program begins; `samebits.worker.jitter` makes the others inside it."""


NICENESS = 5
"""Niceness of a busy process: the rank keeps about three quarters of a core and is often interrupted."""
_BYTES = 1 << 20


def start_neighbours(cores: Iterable[int]) -> list[int]:
    """Start a busy process on each of the cores and return their process ids. Call it before there are threads.

    They take cores and caches from the rank, and end when it does, however it ends.
    """
    parent = os.getpid()
    return [_fork(core, parent) for core in cores]


def _fork(core: int, parent: int) -> int:
    if pid := os.fork():
        return pid
    try:
        _work(core, parent)
    finally:
        os._exit(1)


def _work(core: int, parent: int) -> NoReturn:
    die_with_parent(parent)
    # Meant for ranks: a launcher asks for stacks, Slurm warns of a time limit.
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    # The rank's log must not stay open for its sake.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.nice(NICENESS)
    os.sched_setaffinity(0, {core})
    block = bytearray(_BYTES)
    while True:
        bytes(block)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.personality.argtypes = [ctypes.c_ulong]
_LIBC.sethostname.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUTS = 0x0400_0000
_ADDR_NO_RANDOMIZE = 0x0004_0000
_ASK = 0xFFFF_FFFF


def flip_address_randomization() -> bool:
    """Switch address randomization over for what this process becomes by exec; return whether it is on now.

    Raises OSError where that is not allowed.
    """
    before = _checked(_LIBC.personality(_ASK))
    _checked(_LIBC.personality(before ^ _ADDR_NO_RANDOMIZE))
    after = _checked(_LIBC.personality(_ASK))
    if not (before ^ after) & _ADDR_NO_RANDOMIZE:
        raise OSError(0, "the kernel ignores it")
    return not after & _ADDR_NO_RANDOMIZE


def rename_host(name: str) -> None:
    """Rename the host for this process and its children alone. Raises OSError where that is not allowed."""
    _checked(_LIBC.unshare(_CLONE_NEWUTS))
    _checked(_LIBC.sethostname(name.encode(), len(name.encode())))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit if it has ended already."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(0)


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
