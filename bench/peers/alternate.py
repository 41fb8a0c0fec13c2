"""One rank that trains and records each step another way: `python -m peers.alternate FOLDER --kinds off state ...`.

The parent is `bench/capture.py`. Rounds run through the kinds forwards and backwards in turn, so that no kind always
follows the same one. Fails where a step that should be recorded was not. Writes `FOLDER/samples.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from peers.recording import Peer, Recorded
from samebits.fingerprint.reader import read
from samebits.fingerprint.records import RUNGS, Kind, Moment, Site
from samebits.spec.plan import Plan
from samebits.worker.capture.state import gradient_items, state_items
from samebits.worker.hooks import Training, Watcher
from samebits.worker.pins import observe
from samebits.worker.record import CaptureWatcher
from samebits.worker.trainer.train import train

Items = list[tuple[Site, torch.Tensor]]
MakePeers = Callable[[], dict[str, Peer]]


@dataclasses.dataclass
class Samples:
    """Per kind, one entry a step. wall, processor, inside: seconds; processor counts every thread of the process,
    inside is wall time within capture. covered: kind of state -> items that a peer's digests hold, of how many.
    last: digests of a kind's last step. final: digest of the state after the last step."""

    wall: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    processor: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    inside: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    bytes: dict[str, list[int]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    records: dict[str, list[int]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    digests: dict[str, list[int]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    covered: dict[str, dict[str, tuple[int, int]]] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    last: dict[str, list[tuple[str, Any]]] = dataclasses.field(default_factory=dict)
    final: str = ""


class Alternating(Watcher):
    """Times each step from before the first look to after the last.

    order: the kind of each step. plans: of the kinds that capture serves. peers: makes those of the other kinds, once
    Megatron is loaded.
    """

    def __init__(self, capture: CaptureWatcher, order: list[str], plans: dict[str, Plan], peers: MakePeers) -> None:
        self.samples = Samples()
        self._capture, self._order, self._plans, self._make_peers = capture, order, plans, peers
        self._items: Items = []

    def on_start(self, training: Training) -> None:
        self._peers = self._make_peers()
        self.samples.versions = {kind: peer.version for kind, peer in self._peers.items()}
        # CaptureWatcher gets ready for the highest rung that a step is recorded at.
        training.plan = self._plans[max(set(self._order) & set(RUNGS), key=RUNGS.index, default="off")]
        self._capture.on_start(training)

    def on_step_begin(self, training: Training) -> None:
        self._kind = self._order[training.step - 1]
        self._peer = self._peers.get(self._kind)
        training.plan = self._plans.get(self._kind, self._plans["off"])
        self._size = self._capture.recorder.path.stat().st_size
        if self._peer is not None:
            self._look(training, state_items)
            self._peer.prepare()
        self._inside = 0.0
        self._started, self._used = time.perf_counter(), time.process_time()
        self._timed(self._capture.on_step_begin, training)
        if self._peer is not None:
            self._peer.begin(training)

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        self._timed(self._capture.on_batch, training, micro_batch, batch)

    def on_gradients(self, training: Training) -> None:
        self._look(training, gradient_items)
        self._timed(self._capture.on_gradients, training)

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        self._timed(self._capture.on_step_end, training, metrics)
        if self._peer is not None:
            self._peer.end()
        samples, kind = self.samples, self._kind
        samples.wall[kind].append(time.perf_counter() - self._started)
        samples.processor[kind].append(time.process_time() - self._used)
        samples.inside[kind].append(self._inside)
        if self._peer is None:
            samples.bytes[kind].append(self._capture.recorder.path.stat().st_size - self._size)
        else:
            self._note(training, self._peer.recorded())

    def on_final(self, training: Training) -> None:
        self._capture.on_final(training)

    def _timed(self, point: Callable[..., None], *arguments: object) -> None:
        started = time.perf_counter()
        point(*arguments)
        self._inside += time.perf_counter() - started

    def _note(self, training: Training, found: Recorded) -> None:
        if len(found.distinct) < 2:
            sys.exit(f"{self._kind} recorded {len(found.distinct)} distinct digests in step {training.step}, needs 2")
        self.samples.bytes[self._kind].append(found.size)
        self.samples.records[self._kind].append(found.records)
        self.samples.digests[self._kind].append(len(found.digests))
        self._look(training, state_items)
        if self._items:
            self.samples.covered[self._kind] = covered(self._items, self._peer.digest, found)
            self.samples.last[self._kind] = found.digests
            self._items.clear()

    def _look(self, training: Training, items: Callable[[Training], Iterable[tuple[Site, Any]]]) -> None:
        """In a peer's last step, whose time is not used: copies of the state before and after it, and of gradients."""
        if self._peer is not None and self._kind not in self._order[training.step :]:
            self._items += [(site, tensor.clone()) for site, tensor in tensors_of(items(training))]


def tensors_of(items: Iterable[tuple[Site, Any]]) -> Iterator[tuple[Site, torch.Tensor]]:
    """Tensors and random streams; those of one value, or all zero, are left out, for chance could find them."""
    for site, value in items:
        stream = isinstance(value, bytes) and site.kind is Kind.RNG
        tensor = torch.frombuffer(bytearray(value), dtype=torch.uint8) if stream else value
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 1 and tensor.any():
            yield site, tensor.detach()


def covered(items: Items, digest: Callable[[torch.Tensor], Any], found: Recorded) -> dict[str, tuple[int, int]]:
    """By kind: sites of which the record holds the digest of some copy, and all sites. A digest of 0 says nothing."""
    held: dict[Site, bool] = defaultdict(bool)
    for site, tensor in items:
        held[site] |= digest(tensor) in found.distinct - {0}
    kinds = sorted({site.kind for site in held})
    of = {kind: [seen for site, seen in held.items() if site.kind is kind] for kind in kinds}
    return {str(kind): (sum(seen), len(seen)) for kind, seen in of.items()}


def count_rungs(path: Path, order: list[str], plans: dict[str, Plan], samples: Samples) -> None:
    """Records of the fingerprint file, which is read as a comparison would read it."""
    file = read(path, deep=True)
    samples.final = file.blocks[-1].digest.hex()
    for step, kind in enumerate(order, 1):
        block = file.block(Moment.STEP, step)
        if kind in plans and (block is None) == plans[kind].capture:
            sys.exit(f"step {step} at {kind}: {block or 'no block'} in {path.name}")
        if block is not None:
            distinct = {tuple(output) for output in file.records(block)["output"].tolist()}
            if block.rung != kind or len(distinct) < 2:
                sys.exit(f"step {step} at {kind}: rung {block.rung}, {len(distinct)} distinct digests")
            samples.records[kind].append(block.records)
            samples.digests[kind].append(block.records - block.skipped)
            rows = file.records(block)
            samples.last[kind] = [(str(file.sites[row["site"]]), row["output"].tolist()) for row in rows]


def peers_of(kinds: list[str], packages: Path | None, scratch: Path) -> dict[str, Peer]:
    peers: dict[str, Peer] = {}
    for kind in kinds:
        if kind == "debug-mode":
            from peers.debug_mode import DebugModePeer  # noqa: PLC0415 - measured alone where it is not asked for

            peers[kind] = DebugModePeer()
        elif kind.startswith("msprobe-") and packages is not None:
            from peers.msprobe_dump import MsprobePeer  # noqa: PLC0415 - the same

            peers[kind] = MsprobePeer(kind.removeprefix("msprobe-"), packages, scratch / kind)
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds plans.json: name of each rung -> plan")
    parser.add_argument("--kinds", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True, help="one more follows, to look at the state")
    parser.add_argument("--packages", type=Path, help="folder with msprobe")
    options = parser.parse_args()
    texts = json.loads((options.folder / "plans.json").read_text())
    plans = {name: Plan.from_json(text) for name, text in texts.items()}
    kinds = options.kinds
    order = [kind for number in range(options.rounds + 1) for kind in (kinds if number % 2 == 0 else kinds[::-1])]
    capture = CaptureWatcher(options.folder / "rank-00000.fp", "bench", observe)
    peers = functools.partial(peers_of, kinds, options.packages, options.folder)
    watcher = Alternating(capture, order, plans, peers)
    train(plans["off"], options.folder / "checkpoints", [watcher])
    capture.recorder.seal()
    count_rungs(capture.recorder.path, order, plans, watcher.samples)
    (options.folder / "samples.json").write_text(json.dumps(vars(watcher.samples)))


if __name__ == "__main__":
    main()
