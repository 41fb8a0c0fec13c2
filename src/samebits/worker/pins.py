"""Observed pins: software, hardware and settings of this rank, read back after start-up, before the first step.

Only variables of an allow-list are read from the environment: the rest may hold secrets.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import samebits
from samebits.spec import rank_sources
from samebits.spec.pins import Pins
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe, Recipe, TokenData, built_in
from samebits.worker.hooks import Training
from samebits.worker.trainer.data import file_digest

DISTRIBUTIONS = (
    "torch",
    "numpy",
    "megatron-core",
    "transformer-engine",
    "transformer-engine-torch",
    "apex",
    "flash-attn",
    "triton",
    "mamba-ssm",
    "causal-conv1d",
    "nvidia-modelopt",
    "psutil",
)
ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CAUSAL_CONV1D_DETERMINISTIC",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LC_ALL",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "MAMBA_DETERMINISTIC",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS",
    "NUMEXPR_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_CACHE_AUTOTUNING",
    "TRITON_CACHE_DIR",
)
PREFIXES = ("NCCL_", "NVTE_", "GLOO_", "TRITON_AUTOTUNE_", "TORCH_NCCL_")
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""A variable of an allowed prefix is left out where its name holds one of these."""
PLACES = (
    *("NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_RAS_ADDR"),
    *("NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
"""Allowed, and kept with the placement: they hold an address, a host name or a file that a job writes, which two
allocations cannot share, and change no number."""
IMAGE = "SAMEBITS_IMAGE"
"""Set by the launcher before it starts the ranks: digest of the image, `sha256:HEX`."""
_SCHEDULED = {"node": "SLURMD_NODENAME", "job": "SLURM_JOB_ID", "topology": "SLURM_TOPOLOGY_ADDR"}


def observe(training: Training) -> Pins:
    """Return the pins of this process as they are now."""
    return Pins(
        software={**software(), **image(os.environ)},
        libraries=_shared(libraries(), training.plan),
        hardware=hardware(training.device),
        runtime={**runtime(training.device), **megatron(training.chunks), "clock": training.clock.source},
        environment=environment(os.environ.items()),
        code=code(),
        data=data(training.plan.recipe),
        placement=placement(training.device, os.environ),
    )


def software() -> dict[str, str]:
    """Return the versions of the distributions that take part in the numbers, and of what they were built with."""
    found = {
        "python": platform.python_version(),
        "samebits": samebits.__version__,
        "libc": "-".join(platform.libc_ver()),
    }
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found["torch-build"] = str(torch.version.git_version)
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        found["driver"] = _driver()
    return found


def image(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the digest of the container image as the launcher states it; nothing where the variable is not set.

    The launcher verified the image before it started the ranks; from inside the container nobody can tell.
    """
    return {"image": variables[IMAGE]} if variables.get(IMAGE) else {}


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0] if path.exists() else "unknown"


def libraries() -> dict[str, str]:
    """Return the shared objects mapped into this process with their build ids, or sizes where they have none.

    Left out: files made at run time (their names are random), Python's own extension modules (its version pins them;
    which of them are loaded depends on what was imported) and name-service plug-ins (which depend on the host's setup).
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return {}
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if ".so" in line}
    return {Path(path).name: build_id(Path(path)) for path in sorted(paths) if _matters(path)}


def _shared(found: dict[str, str], plan: Plan) -> dict[str, str]:
    """Leave out extension modules for a command: it is observed after its restore, which imports some of them."""
    if not isinstance(plan.recipe, CommandRecipe):
        return found
    files = {str(vars(module).get("__file__")) for module in [*sys.modules.values()] if isinstance(module, ModuleType)}
    extensions = {Path(file).name for file in files if file.endswith(".so")}
    return {name: build for name, build in found.items() if name not in extensions}


def _matters(path: str) -> bool:
    installed = path.startswith((sys.prefix, sys.base_prefix))
    made_here = path.startswith((tempfile.gettempdir(), "/dev/shm", "/memfd")) and not installed
    return not made_here and "/lib-dynload/" not in path and not Path(path).name.startswith("libnss_")


def hardware(device: torch.device) -> dict[str, str]:
    """Return the models of CPU and GPU, never serial numbers, so that two nodes of one kind agree."""
    found = {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu-capability": torch.backends.cpu.get_cpu_capability(),
        **numa_nodes(Path("/sys/devices/system/node")),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = properties.name
        found["gpu-capability"] = f"{properties.major}.{properties.minor}"
        found["gpu-memory"] = str(properties.total_memory)
        found["gpus"] = str(torch.cuda.device_count())
        found["gpu-peers"] = str(_peers(device))
    return found


def numa_nodes(folder: Path) -> dict[str, str]:
    """Return the number of NUMA nodes; no entry where the container hides them."""
    number = len(list(folder.glob("node[0-9]*")))
    return {"numa-nodes": str(number)} if number else {}


def _peers(device: torch.device) -> int:
    """Count the other visible devices whose memory this one can read, over NVLink or PCIe."""
    own = torch.cuda.current_device() if device.index is None else device.index
    others = (other for other in range(torch.cuda.device_count()) if other != own)
    return sum(torch.cuda.can_device_access_peer(own, other) for other in others)


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def runtime(device: torch.device) -> dict[str, str]:
    """Return the settings in force, read back from the libraries themselves."""
    found = {
        "device": device.type,
        "threads": str(torch.get_num_threads()),
        "interop-threads": str(torch.get_num_interop_threads()),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "fill_uninitialized_memory": str(torch.utils.deterministic.fill_uninitialized_memory),  # type: ignore[attr-defined]
        "matmul-precision": torch.get_float32_matmul_precision(),
        "default-dtype": str(torch.get_default_dtype()),
        "backend": torch.distributed.get_backend() if torch.distributed.is_initialized() else "none",
        "mkldnn": str(torch.backends.mkldnn.is_available()),  # type: ignore[no-untyped-call]
        "byteorder": sys.byteorder,
        "float-repr": sys.float_repr_style,
    }
    if device.type == "cuda":
        found["cudnn-benchmark"] = str(torch.backends.cudnn.benchmark)
        found["cudnn-deterministic"] = str(torch.backends.cudnn.deterministic)
        found["tf32"] = f"{torch.backends.cuda.matmul.allow_tf32} {torch.backends.cudnn.allow_tf32}"
    return found


_MEGATRON = ("deterministic_mode", "cross_entropy_loss_fusion", "moe_router_fusion")


def megatron(chunks: Sequence[Any]) -> dict[str, str]:
    """Return the options of Megatron's model configuration that bear on determinism; none for other models."""
    config = getattr(chunks[0], "config", None)
    return {name: str(getattr(config, name)) for name in _MEGATRON if hasattr(config, name)}


def environment(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the allow-listed variables, without those of PLACES."""
    return {name: value for name, value in sorted(variables) if _allowed(name) and name not in PLACES}


def _allowed(name: str) -> bool:
    return name in ENVIRONMENT or (name.startswith(PREFIXES) and not any(word in name for word in SECRETS))


def placement(device: torch.device, variables: Mapping[str, str]) -> dict[str, str]:
    """Return where this rank ran.

    node: the scheduler's name of it, for a container may have a host name of its own. boot: the kernel's id of this
    start of the machine, the same in all its containers.
    """
    found = {"host": socket.gethostname(), "pid": str(os.getpid()), "kernel": platform.release()}
    found["node"] = found["host"]
    found |= {name: variables[variable] for name, variable in _SCHEDULED.items() if variables.get(variable)}
    found |= {name: variables[name] for name in PLACES if name in variables}
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        found["boot"] = boot.read_text().strip()
    if device.type == "cuda":
        found |= gpu_place(torch.cuda.get_device_properties(device))
    return found


def gpu_place(properties: Any) -> dict[str, str]:
    """Return the GPU's UUID and its PCI bus id as in nvidia-smi (`00000000:1B:00.0`); older torch has no bus id."""
    found = {"gpu-uuid": str(properties.uuid)}
    if hasattr(properties, "pci_bus_id"):
        bus, device = f"{properties.pci_bus_id:02X}", f"{properties.pci_device_id:02X}"
        found["gpu-bus"] = f"{properties.pci_domain_id:08X}:{bus}:{device}.0"
    return found


_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")


def build_id(path: Path) -> str:
    """Return the build id of a shared object in hex; `size N` without one, `unreadable` for an unreadable file.

    It stands in an ELF note (System V ABI, gABI chapter 5); only 64-bit little-endian files are read.
    """
    try:
        with path.open("rb") as stream:
            found = _read(stream.read(1 << 16))
        return found or f"size {path.stat().st_size}"
    except OSError:
        return "unreadable"
    except struct.error:
        return f"size {path.stat().st_size}"


def _read(data: bytes) -> str | None:
    """Return the build id from the beginning of an ELF file, where program headers and GNU notes stand."""
    fields = _HEADER.unpack_from(data)
    if fields[0] != b"\x7fELF" or fields[1:3] != (2, 1):
        return None
    offset, size, count = fields[7], fields[11], fields[12]
    for index in range(count):
        kind, _, start, _, _, length, _, _ = _PROGRAM.unpack_from(data, offset + index * size)
        if kind == _PT_NOTE and (found := _note(data[start : start + length])):
            return found
    return None


def _note(data: bytes) -> str | None:
    at = 0
    while at + _NOTE.size <= len(data):
        names, size, kind = _NOTE.unpack_from(data, at)
        at += _NOTE.size + (names + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID:
            return data[at : at + size].hex()
        at += (size + 3) // 4 * 4
    return None


def code() -> dict[str, str]:
    """Return the digests of the Python sources of samebits and, where it is imported, of Megatron Core."""
    own = Path(samebits.__file__).parent
    found = {"samebits": tree(own, rank_sources(own))}
    if megatron := sys.modules.get("megatron.core"):
        theirs = Path(str(megatron.__file__)).parent
        found["megatron-core"] = tree(theirs, theirs.glob("**/*.py"))
    return found


def data(recipe: Recipe) -> dict[str, str]:
    """Return the digests of the training data; for a command those of its inputs, scripts included.

    Raises OSError where a file is missing.
    """
    if isinstance(recipe, CommandRecipe):
        folder = Path(recipe.command.folder)
        return {path: file_digest(folder / path) for path in recipe.command.inputs}
    tokens = built_in(recipe).data
    if isinstance(tokens, TokenData):
        return {Path(tokens.path).name: file_digest(Path(tokens.path))}
    return {"stream": f"seed {tokens.stream_seed}, numpy {np.__version__.split('.')[0]}"}


def tree(root: Path, files: Iterable[Path]) -> str:
    """Return one digest of the names and bytes of these files below `root`."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(files):
        state.update(f"{path.relative_to(root)} {hashlib.blake2b(path.read_bytes()).hexdigest()}\n".encode())
    return state.hexdigest()
