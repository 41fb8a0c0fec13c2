"""One process, one small model, no process group; knows nothing of samebits unless it is told to say --watch."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader


def hooked(_: object = None) -> list[str]:
    """Of this process, whose multiprocessing started it."""
    return [type(finder).__name__ for finder in sys.meta_path if type(finder).__module__.startswith("samebits")]


def main() -> None:
    options = parsed()
    out = Path(options.out)
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    if options.watch:
        import samebits

        samebits.watch(model, optimizer)
    forward = torch.compile(model, backend="eager") if options.compile else model
    samples = [torch.full((4,), float(number)) for number in range(64)]
    context = options.workers or None
    loader = DataLoader(
        samples,
        batch_size=4,
        num_workers=1 if context else 0,
        multiprocessing_context=context,
        generator=torch.Generator().manual_seed(1),
        shuffle=True,
    )
    if options.load:
        loaded = torch.load(Path(options.load) / f"step-{options.start}.pt", weights_only=False)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        torch.set_rng_state(loaded["rng"])
    for step, batch in enumerate(loader, 1):
        if step <= options.start:
            continue
        if step == options.fail:
            raise ValueError(f"step {step} fails")
        optimizer.zero_grad()
        forward(batch).square().sum().backward()
        optimizer.step()
        if options.spawn and step == 1:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                (out / "hooked").write_text(repr(pool.map(hooked, [None])))
        if step % 2 == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            torch.save(content, Path(options.save) / f"step-{step}.pt")
        if step == options.steps:
            break
    (out / "result").write_text(repr([one.tolist() for one in model.parameters()]))
    (out / "modules").write_text("\n".join(sys.modules))
    if options.exit:
        os._exit(0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--load")
    parser.add_argument("--from", dest="start", type=int, default=0)
    parser.add_argument("--fail", type=int, default=0)
    parser.add_argument("--workers", choices=("fork", "spawn"))
    for name in ("exit", "spawn", "watch", "compile"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
