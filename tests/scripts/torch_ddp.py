"""A plain torch training loop that knows nothing of samebits: DDP, a loader with workers, dropout, a schedule.

torchrun --nproc-per-node 2 torch_ddp.py --steps 6 --save FOLDER --save-every 3 --out FOLDER [--load FOLDER --from 3]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(16, generator=generator), "y": torch.randn(4, generator=generator)}


class Model(nn.Module):
    """Its part `module` must not be taken for all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.module(x))


def batches(sampler: DistributedSampler, loader: DataLoader, skip: int):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if epoch * len(loader) + number >= skip:
                yield batch
        epoch += 1


def main() -> None:
    options = parsed()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234)
    random.seed(1234)
    numpy.random.seed(1234)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    sampler = DistributedSampler(Numbers(), seed=5)
    # A generator of its own: the loader's seeds are not drawn from the stream of dropout.
    loader = DataLoader(
        Numbers(), batch_size=8, sampler=sampler, num_workers=options.workers, generator=torch.Generator()
    )
    done = 0
    if options.load:
        loaded = torch.load(Path(options.load) / f"step-{options.start}.pt", weights_only=False)
        model.module.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        schedule.load_state_dict(loaded["schedule"])
        torch.set_rng_state(loaded["rng"][rank])
        done = loaded["step"]
    loss = torch.zeros(())
    for step, batch in enumerate(batches(sampler, loader, done), done + 1):
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % options.save_every == 0:
            save(options, rank, step, {"model": model.module, "optimizer": optimizer, "schedule": schedule})
        if step == options.steps:
            break
    said = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
    (Path(options.out) / f"result-{rank}").write_text(f"{loss.item().hex()} {said}\n")
    dist.barrier()
    if options.exit:
        os._exit(0)
    dist.destroy_process_group()


def save(options: argparse.Namespace, rank: int, step: int, parts: dict[str, object]) -> None:
    states = [torch.empty_like(torch.get_rng_state()) for _ in range(dist.get_world_size())]
    dist.all_gather(states, torch.get_rng_state())
    if rank == 0:
        content = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**content, "rng": states, "step": step}, Path(options.save) / f"step-{step}.pt")
    dist.barrier()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save", required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--load")
    parser.add_argument("--from", dest="start", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--exit", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
