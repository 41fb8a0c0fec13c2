"""How fast the digest is beside its peers, on one thread: `python bench/digest.py [--json FILE]`.

Interleaved rounds over the same 32 MiB of float32 bits, medians, and the ratio to `torch.hash_tensor` as the median of
the rounds' ratios: on a noisy machine the two of one round share its noise. Of the peers only sha256 and blake2b see
all that the digest sees.

Where a CUDA device is, the same on it: the kernel beside torch's operations and beside a plain read of the same bytes
(the sum of them as int64), and a thousand small tensors in one launch and in a thousand. Elsewhere `device` is null.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

import numpy as np
import torch

from samebits.worker.capture.digest import DIGEST_ID, digest, torch_digest
from samebits.worker.capture.staging import adding, by_torch

BYTES = 32 << 20
ROUNDS = 15
SMALL_ELEMENTS = 1024
SMALL_CALLS, SMALL_BATCHES = 200, 50
GROUP = 1000
DEVICE_BYTES = 64 << 20, 1 << 30
READ = "plain read, int64 sum"
HASH_TENSOR = "torch.hash_tensor int64 view"
RESULTS = Path(__file__).parent / "results" / "digest.json"


@dataclass(frozen=True)
class Throughput:
    """ratio: speed relative to torch.hash_tensor on the int64 view of the same bytes."""

    name: str
    gigabytes_per_second: float
    ratio: float


@dataclass(frozen=True)
class Latency:
    """Microseconds a call for 1,024 float32 values: the median and the least of the batches."""

    name: str
    median_us: float
    least_us: float


@dataclass(frozen=True)
class DeviceThroughput:
    """share: speed relative to the plain read of the same bytes; the goal is 0.8 for the kernel."""

    name: str
    bytes: int
    gigabytes_per_second: float
    share: float


@dataclass(frozen=True)
class Bar:
    rule: str
    measured: float
    limit: float
    holds: bool


def seconds(call: Callable[[], object], repeat: int = 1) -> float:
    """CPU seconds of this thread, which does all the work: what a stopwatch shows where no other process interferes."""
    begin = time.thread_time()
    for _ in range(repeat):
        call()
    return (time.thread_time() - begin) / repeat


def peers() -> dict[str, Callable[[], object]]:
    tensor = torch.randn(BYTES // 4, generator=torch.Generator().manual_seed(0))
    words, strided = tensor.view(torch.int64), tensor.view(-1, 1024).t()
    raw = tensor.numpy().view(np.uint8).data
    return {
        "digest": lambda: digest(tensor),
        HASH_TENSOR: lambda: torch.hash_tensor(words),
        "torch.hash_tensor float32": lambda: torch.hash_tensor(tensor),
        "zlib.crc32": lambda: zlib.crc32(raw),
        "hashlib.sha256": lambda: hashlib.sha256(raw).digest(),
        "hashlib.blake2b": lambda: hashlib.blake2b(raw).digest(),
        "digest, transposed tensor": lambda: digest(strided),
        "torch_digest (device path)": lambda: torch_digest(tensor),
    }


def throughput() -> list[Throughput]:
    calls = peers()
    for call in calls.values():
        call()
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    return [
        Throughput(
            name,
            BYTES / statistics.median(times[name] for times in rounds) / 1e9,
            statistics.median(times[HASH_TENSOR] / times[name] for times in rounds),
        )
        for name in calls
    ]


def latency() -> list[Latency]:
    tensor = torch.randn(SMALL_ELEMENTS)
    words, raw = tensor.view(torch.int64), tensor.numpy().tobytes()
    calls: dict[str, Callable[[], object]] = {
        "digest": lambda: digest(tensor),
        HASH_TENSOR: lambda: torch.hash_tensor(words).item(),
        "hashlib.sha256": lambda: hashlib.sha256(raw).digest(),
    }
    batches = [{name: seconds(call, SMALL_CALLS) for name, call in calls.items()} for _ in range(SMALL_BATCHES)]
    return [
        Latency(
            name,
            1e6 * statistics.median(batch[name] for batch in batches),
            1e6 * min(batch[name] for batch in batches),
        )
        for name in calls
    ]


def group_latency() -> list[Latency]:
    """Microseconds a tensor, of GROUP of them, by what stands in for the kernel where Triton is missing."""
    tensors = [torch.randn(SMALL_ELEMENTS) for _ in range(GROUP)]
    sums = torch.zeros(GROUP, 2, dtype=torch.int64)
    times = [seconds(lambda: by_torch(tensors, sums)) / GROUP for _ in range(5)]
    return [Latency(f"torch operations, of a group of {GROUP}", 1e6 * statistics.median(times), 1e6 * min(times))]


def device_seconds(call: Callable[[], object]) -> float:
    """Between two events on the stream, launches included."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def device_rounds(calls: dict[str, Callable[[], object]]) -> list[dict[str, float]]:
    for call in calls.values():
        call()
        call()
    return [{name: device_seconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]


def device_throughput(device: torch.device, nbytes: int) -> list[DeviceThroughput]:
    words = torch.randint(-(2**62), 2**62, (nbytes // 8,), device=device)
    sums, add = torch.zeros(1, 2, dtype=torch.int64, device=device), adding(device)
    calls: dict[str, Callable[[], object]] = {
        READ: words.sum,
        "digest": lambda: add([words], sums),
        "digest by torch operations": lambda: by_torch([words], sums),
    }
    rounds = device_rounds(calls)
    return [
        DeviceThroughput(
            name,
            nbytes,
            nbytes / statistics.median(times[name] for times in rounds) / 1e9,
            statistics.median(times[READ] / times[name] for times in rounds),
        )
        for name in calls
    ]


def device_group(device: torch.device) -> list[Latency]:
    """Microseconds a tensor: GROUP small ones in one launch, in a launch each, and by torch's operations."""
    tensors = [torch.randn(SMALL_ELEMENTS, device=device) for _ in range(GROUP)]
    sums, add = torch.zeros(GROUP, 2, dtype=torch.int64, device=device), adding(device)
    rounds = device_rounds(
        {
            "one launch": lambda: add(tensors, sums),
            "one by one": lambda: [add([tensor], sums[:1]) for tensor in tensors],
            "torch operations": lambda: by_torch(tensors, sums),
        }
    )
    return [
        Latency(
            name,
            1e6 * statistics.median(times[name] for times in rounds) / GROUP,
            1e6 * min(times[name] for times in rounds) / GROUP,
        )
        for name in rounds[0]
    ]


def on_device() -> dict[str, object]:
    if not torch.cuda.is_available():
        return {"device": None, "device_missing": f"no CUDA device, torch {torch.__version__}"}
    device = torch.device("cuda", torch.cuda.current_device())
    found = {
        "name": torch.cuda.get_device_name(device),
        "path": "torch operations" if adding(device) is by_torch else "Triton kernel",
        "throughput": [asdict(speed) for nbytes in DEVICE_BYTES for speed in device_throughput(device, nbytes)],
        "group": [asdict(small) for small in device_group(device)],
    }
    return {"device": found}


def bars(speeds: list[Throughput], latencies: list[Latency]) -> list[Bar]:
    by_name = {speed.name: speed for speed in speeds}
    ratio, small = by_name["digest"].ratio, latencies[0].median_us
    beside_sha256 = ratio / by_name["hashlib.sha256"].ratio
    return [
        Bar("at least 0.22 x torch.hash_tensor on the int64 view", ratio, 0.22, ratio >= 0.22),
        Bar("goal: at least 0.3 x torch.hash_tensor", ratio, 0.3, ratio >= 0.3),
        Bar("faster than sha256", beside_sha256, 1.0, beside_sha256 > 1),
        Bar("at most 40 us for 1,024 float32 values", small, 40.0, small <= 40),
        Bar("goal: at most 20 us", small, 20.0, small <= 20),
    ]


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")


def machine() -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def show(speeds: list[Throughput], latencies: list[Latency], held: list[Bar]) -> None:
    print(f"{BYTES >> 20} MiB, one thread, median of {ROUNDS} rounds" + " " * 6 + "GB/s  x hash_tensor")
    for speed in speeds:
        print(f"  {speed.name:44}{speed.gigabytes_per_second:7.2f}{speed.ratio:9.3f}")
    print(f"{SMALL_ELEMENTS} float32 values" + " " * 24 + "median us     least")
    for small in latencies:
        print(f"  {small.name:44}{small.median_us:7.1f}{small.least_us:9.1f}")
    for bar in held:
        print(f"  {'holds ' if bar.holds else 'MISSED'}  {bar.rule}: {bar.measured:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where to write the result")
    target: Path = parser.parse_args().json
    torch.set_num_threads(1)
    before = machine()
    speeds, latencies = throughput(), latency() + group_latency()
    held = bars(speeds, latencies)
    show(speeds, latencies, held)
    remote = on_device()
    print(json.dumps(remote, indent=2))
    result = {
        "digest_id": DIGEST_ID,
        "machine": before,
        "bytes": BYTES,
        "rounds": ROUNDS,
        "throughput": [asdict(speed) for speed in speeds],
        "latency": [asdict(small) for small in latencies],
        "bars": [asdict(bar) for bar in held],
        **remote,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
