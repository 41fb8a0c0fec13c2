"""One of two ranks that talk to each other while what they say is traced: `collective_rank.py OUT`.

Runs each scenario by itself, traced, and writes for each what was recorded, with the digests of the tensors that it
left.
Imported by nobody.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from samebits.fingerprint.records import Flag, Phase
from samebits.worker.capture.digest import digest
from samebits.worker.capture.reading import Reader
from samebits.worker.trace.collectives import METHODS, Collectives, Landings, Messages
from samebits.worker.trace.trace import Trace, quiet

WATCHED = (dist.ProcessGroup, dist.Work, dist, dist.distributed_c10d)
Rows = list[list[Any]]


class Traced:
    """Notes what is recorded between start and stop, in rows: site, digest, and whether inputs are known."""

    def __init__(self) -> None:
        self.landings = Landings()
        self.tracers = Collectives(self.landings), Messages(self.landings)
        self.trace = Trace(Reader(None))
        self.wrote: list[str] = []
        self.trace.writers.append(lambda tensor: self.wrote.append(text(tensor)))

    def __enter__(self) -> Traced:
        self.trace.stage = Phase.FORWARD
        self.landings.start()
        for tracer in self.tracers:
            tracer.start(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        for tracer in reversed(self.tracers):
            tracer.stop()
        self.left = self.landings.stop()

    @property
    def rows(self) -> Rows:
        return [
            [str(one.site), f"{one.output[0]:016x}", list(one.sources) if one.flags & Flag.INPUT else None]
            for one in self.trace.readings
        ]


def text(tensor: torch.Tensor) -> str:
    return f"{digest(tensor)[0]:016x}"


def numbers(rank: int, size: int = 6) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) + 10 * rank


def all_reduce(rank: int) -> list[torch.Tensor]:
    tensor = numbers(rank)
    dist.all_reduce(tensor)
    return [tensor]


def alias(rank: int) -> list[torch.Tensor]:
    """By the name that libraries bind: not that of torch.distributed."""
    tensor = numbers(rank)
    dist.distributed_c10d.all_reduce(tensor)
    return [tensor]


def all_gather(rank: int) -> list[torch.Tensor]:
    made = [torch.zeros(6), torch.zeros(6)]
    dist.all_gather(made, numbers(rank))
    return made


def all_gather_into_tensor(rank: int) -> list[torch.Tensor]:
    made = torch.zeros(12)
    dist.all_gather_into_tensor(made, numbers(rank))
    return [made]


def reduce_scatter_tensor(rank: int) -> list[torch.Tensor]:
    made = torch.zeros(3)
    dist.reduce_scatter_tensor(made, numbers(rank))
    return [made]


def reduce_scatter(rank: int) -> list[torch.Tensor]:
    made = torch.zeros(3)
    dist.reduce_scatter(made, list(numbers(rank).split(3)))
    return [made]


def all_to_all_single(rank: int) -> list[torch.Tensor]:
    made = torch.zeros(6)
    dist.all_to_all_single(made, numbers(rank))
    return [made]


def broadcast(rank: int) -> list[torch.Tensor]:
    tensor = numbers(rank)
    dist.broadcast(tensor, src=1)
    return [tensor]


def reduce(rank: int) -> list[torch.Tensor]:
    tensor = numbers(rank)
    dist.reduce(tensor, dst=1)
    return [tensor] if rank == 1 else [numbers(rank)]


def gather(rank: int) -> list[torch.Tensor]:
    made = [torch.zeros(6), torch.zeros(6)] if rank == 1 else None
    dist.gather(numbers(rank), made, dst=1)
    return made or [numbers(rank)]


def scatter(rank: int) -> list[torch.Tensor]:
    made = torch.zeros(6)
    dist.scatter(made, [numbers(5), numbers(6)] if rank == 1 else None, src=1)
    return [made]


def coalesced(rank: int) -> list[torch.Tensor]:
    tensors = [numbers(rank), numbers(rank + 2, 3)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors


def coalesced_later(rank: int) -> list[torch.Tensor]:
    """As Megatron overlaps the reduction of gradients."""
    tensors = [numbers(rank), numbers(rank + 2, 3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as together:
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
    together.wait()
    return tensors


def messages(rank: int) -> list[torch.Tensor]:
    """Blocking."""
    tensor = numbers(rank)
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    return [tensor]


def from_any_source(rank: int) -> list[torch.Tensor]:
    tensor = numbers(rank)
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor)
    return [tensor]


def batched(rank: int) -> list[torch.Tensor]:
    own, made = numbers(rank), torch.zeros(6)
    peer = 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, made, peer)]):
        work.wait()
    return [own, made]


def other_order(rank: int) -> list[torch.Tensor]:
    """Two messages, waited for last first."""
    sent = [numbers(1), numbers(2)]
    if rank == 0:
        for work in [dist.isend(tensor, dst=1) for tensor in sent]:
            work.wait()
        return sent
    made = [torch.zeros(6), torch.zeros(6)]
    works = [dist.irecv(tensor, src=0) for tensor in made]
    works[1].wait()
    works[0].wait()
    return made[::-1]


def objects(rank: int) -> list[torch.Tensor]:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, {"rank": rank})
    dist.broadcast_object_list(found, src=0)
    dist.barrier()
    return []


def unseen(rank: int) -> list[torch.Tensor]:
    with quiet():
        dist.all_reduce(numbers(rank))
    return []


def alone(rank: int) -> list[torch.Tensor]:
    """A group of one moves nothing."""
    tensor = numbers(rank)
    dist.all_reduce(tensor, group=ALONE[rank])
    return []


def polled(rank: int) -> list[torch.Tensor]:
    """Used once it is said to be there, without a wait."""
    tensor = numbers(rank)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    return [tensor]


SCENARIOS: tuple[Callable[[int], list[torch.Tensor]], ...] = (
    *(all_reduce, alias, all_gather, all_gather_into_tensor, reduce_scatter_tensor, reduce_scatter, all_to_all_single),
    *(
        broadcast,
        reduce,
        gather,
        scatter,
        coalesced,
        coalesced_later,
        messages,
        from_any_source,
        batched,
        other_order,
        objects,
        unseen,
    ),
    *(alone, polled),
)
ALONE: list[Any] = []


def late(rank: int) -> dict[str, Any]:
    """Rank 1 comes late: between launch and wait nothing may be read on rank 0."""
    tensor = numbers(rank)
    with Traced() as traced:
        if rank == 1:
            time.sleep(0.3)
        work = dist.all_reduce(tensor, async_op=True)
        early = len(traced.rows)
        work.wait()
        tensor_then = text(tensor)
        tensor.zero_()
        work.wait()
    return {"early": early, "rows": traced.rows, "there": tensor_then, "left": traced.left}


def forgotten(rank: int) -> dict[str, Any]:
    """Nobody waits before the step ends, and then somebody does."""
    tensor = numbers(rank)
    with Traced() as traced:
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return {"rows": traced.rows, "left": traced.left}


def surroundings() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in WATCHED]


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ALONE[:] = [dist.new_group([0]), dist.new_group([1])]
    before = surroundings()
    found: dict[str, Any] = {"methods": [name for name in METHODS if hasattr(dist.ProcessGroup, name)]}
    for scenario in SCENARIOS:
        plain = [text(tensor) for tensor in scenario(rank)]
        with Traced() as traced:
            left = [text(tensor) for tensor in scenario(rank)]
        scenario(rank)
        found[scenario.__name__] = {
            **{"plain": plain, "left": left, "rows": traced.rows, "wrote": traced.wrote, "aloft": traced.left},
            "given": text(numbers(rank)),
        }
    found["late"], found["forgotten"] = late(rank), forgotten(rank)
    pairs = zip(before, surroundings(), strict=True)
    found["restored"] = [
        now.keys() == then.keys() and all(now[key] is then[key] for key in then) for then, now in pairs
    ]
    (out / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(Path(sys.argv[1]))
