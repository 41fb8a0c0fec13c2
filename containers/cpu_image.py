"""The small container image of the tests: Debian 12, its Python, and torch and Megatron Core in the pinned versions.

    .venv/bin/python containers/cpu_image.py [FOLDER]

prints its path and sha256, and builds it first where it is not in FOLDER yet (default: SAMEBITS_TEST_CACHE, else
~/.cache/samebits-tests). Run it with `ch-run FILE -- python3 ...`; on a machine without a GPU megatron.core wants
`samebits.worker.trainer.cpu_backend.install()` before its import.

What it does not promise: the same bytes on another day. Debian's packages move; only the packing is repeatable.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DEBIAN = "bookworm"
PYTHON = (3, 11)
"""Debian 12's; ours must be the same, because compiled modules are copied from here to there."""
WANTED = ("torch", "numpy", "megatron-core", "psutil")
NAME = "samebits-cpu.sqfs"
LOCK = Path(__file__).parents[1] / "requirements.lock"
PROGRAMS = ("ch-run", "mmdebstrap", "mksquashfs", "chroot")
SECONDS = 600
"""Time limit of one step."""

MODULES = Path("usr/local/lib/python3.11/dist-packages")
MOUNT_TARGETS = ("dev", "proc", "sys", "tmp", "mnt/0")
"""ch-run cannot make folders in a packed image; `--bind` without a place puts the first one at /mnt/0."""
MOUNTED_FILES = ("etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group")
NEVER_READ = {"test", "tests", "include", "bin", "share", "__pycache__"}
"""Folders that make up a third of torch."""
CHANGING = ("var/log", "var/cache", "var/lib/apt", "usr/share/doc", "usr/share/man", "usr/share/locale")


class ImageError(RuntimeError):
    """The image cannot be built."""


@functools.cache
def missing() -> str | None:
    """Why this machine cannot build or run the image; None when it can."""
    if os.geteuid() != 0:
        return "the container image needs root"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"the container image needs {program}: .ci/run lists the packages"
    if not Path("/dev/fuse").exists():
        return "the container image needs /dev/fuse"
    if sys.version_info[:2] != PYTHON:
        return f"the container image needs Python {PYTHON[0]}.{PYTHON[1]}, as {DEBIAN} has, not {sys.version}"
    return None


def image(folder: Path | None = None) -> Path:
    """The packed image, from the cache when nothing that goes into it has changed."""
    cache = folder or _cache()
    cache.mkdir(parents=True, exist_ok=True)
    path = cache.absolute() / _key() / NAME
    with _locked(cache):
        if not path.exists():
            if reason := missing():
                raise ImageError(reason)
            _build(path)
            _remove_old(path)
    return path


def _cache() -> Path:
    return Path(os.environ.get("SAMEBITS_TEST_CACHE") or Path.home() / ".cache/samebits-tests")


def _key() -> str:
    """Digest of what goes in: versions, this builder, Debian's release (which the builder names)."""
    return hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Waits while another process builds; its time limits end that."""
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(path: Path) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="building-", dir=path.parents[1]) as made:
        root = Path(made) / "root"
        _install_debian(root)
        _copy_distributions(root / MODULES)
        _compile(root)
        _prepare_mounts(root)
        _pack(root, Path(made) / NAME)
        path.parent.mkdir(exist_ok=True)
        (Path(made) / NAME).rename(path)
    print(f"built {path} in {time.monotonic() - started:.0f} s", file=sys.stderr)


def _remove_old(path: Path) -> None:
    for old in path.parents[1].glob(f"*/{NAME}"):
        if old != path:
            shutil.rmtree(old.parent)


def _install_debian(root: Path) -> None:
    unread = [f"--dpkgopt=path-exclude=/{place}/*" for place in CHANGING if place.startswith("usr/share")]
    _call("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", *unread, DEBIAN, str(root))


def _copy_distributions(modules: Path) -> None:
    """Copies from the environment we run in: faster than to install, and surely what the tests outside run on."""
    pinned = _pinned()
    for distribution in _needed():
        name, version = canonicalize_name(distribution.name), distribution.version.partition("+")[0]
        if pinned.get(name, version) != version:
            raise ImageError(f"{name} {version} is installed, {LOCK.name} has {pinned[name]}: make setup")
        for file in distribution.files or ():
            if _is_read(file):
                target = modules / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)


def _is_read(file: importlib.metadata.PackagePath) -> bool:
    """Whether the image needs it; torch does not import without its shared memory's manager."""
    if file.name == "torch_shm_manager":
        return True
    return NEVER_READ.isdisjoint(file.parts) and ".." not in file.parts and file.suffix != ".a"


def _pinned() -> dict[str, str]:
    """Versions of the lock, for this interpreter and system."""
    lines = (line for line in LOCK.read_text().splitlines() if "==" in line and not line.startswith("#"))
    pins = [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate()]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def _needed() -> list[importlib.metadata.Distribution]:
    """What is wanted and all that it requires, extras aside."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_names = list(WANTED)
    while open_names:
        name = canonicalize_name(open_names.pop())
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            requirements = map(Requirement, found[name].requires or ())
            open_names += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return list(found.values())


def _compile(root: Path) -> None:
    """Compiles to files that hold no times: packing changes those of the sources, and the image cannot be written."""
    newer = r"/py31\d_\w+\.py$"  # torch carries a file for Python 3.12, which ours cannot read
    options = ("-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash", "-x", newer)
    _call("chroot", str(root), "python3", "-m", "compileall", *options, "/usr/lib/python3.11", f"/{MODULES}")


def _prepare_mounts(root: Path) -> None:
    for place in CHANGING:
        shutil.rmtree(root / place, ignore_errors=True)
    for place in MOUNT_TARGETS:
        (root / place).mkdir(parents=True, exist_ok=True)
    for place in MOUNTED_FILES:
        (root / place).unlink(missing_ok=True)  # resolv.conf may be a link to where nothing is
        (root / place).touch()


def _pack(root: Path, path: Path) -> None:
    """Quick rather than small; all times fixed, so that equal trees make equal files."""
    fixed = ("-mkfs-time", "0", "-all-time", "0", "-noappend", "-no-xattrs", "-no-progress", "-quiet")
    # What ch-run mounts over may hold what was there when we ran.
    empty = ("-wildcards", "-e", "dev/*", "proc/*", "sys/*", "tmp/*", "run/*")
    _call("mksquashfs", str(root), str(path), "-comp", "zstd", "-Xcompression-level", "1", *fixed, *empty)


def _call(*argv: str) -> None:
    """Quotes the end of what a command said when it fails."""
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        raise ImageError(f"{argv[0]}: exit {error.returncode}: {(error.stderr or error.stdout)[-2000:]}") from None
    except subprocess.TimeoutExpired:
        raise ImageError(f"{argv[0]}: not done within {SECONDS} s") from None


def main(arguments: list[str]) -> None:
    """Prints where the image is, and its sha256."""
    path = image(Path(arguments[0]) if arguments else None)
    with path.open("rb") as file:
        print(path, hashlib.file_digest(file, "sha256").hexdigest())


if __name__ == "__main__":
    main(sys.argv[1:])
