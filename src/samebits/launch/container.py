"""How a command gets into an image, one adapter per engine: pure functions from an image to words of a command line.

Whatever the engine: paths are the same inside and outside; the working directory is /, so that no file of somebody's
folder is imported; the image is read-only; home and user site-packages stay outside; network, host name, IPC and
/dev/shm are the node's, which NCCL and gloo need; variables of the task (SLURM_*, CUDA_VISIBLE_DEVICES) get through;
signals that Slurm sends to the step reach the rank, and its exit status comes back.

Charliecloud was run here. Of pyxis 0.24, enroot 3.4 to 4.1 and apptainer 1.5 the source was read; podman (4) was
neither run nor read.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samebits.recipe.cluster import Engine
from samebits.recipe.image import Image, ImageError
from samebits.recipe.problem import Problem

_SQUASHFS = (".sqfs", ".sqsh", ".squashfs")


@dataclass(frozen=True)
class Mount:
    """A folder that ranks see inside the image. path: absolute, the same inside and outside."""

    path: Path
    writable: bool


@dataclass(frozen=True)
class Entry:
    """How an image is entered. srun: further options of srun. command: what stands before the command that runs inside.
    environment: what the engine needs outside, to be set where it is not set yet."""

    srun: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Wanted:
    """Parameters of an engine's adapter. mounts: outer ones first, so that none hides another."""

    image: Image
    mounts: tuple[Mount, ...]
    gpus: bool
    python: str


def enter(
    engine: Engine, image: Image | None, mounts: Sequence[Mount], *, gpus: bool, python: str = "python3"
) -> Entry:
    """Return how a rank enters the image; an empty entry without one: the rank runs on the bare node.

    python: the interpreter inside. Raises ImageError where the engine cannot run this image, or mount these paths.
    """
    if image is None:
        return Entry()
    if engine == "none":
        rule = "must be absent where the cluster file says `engine: none`"
        way_out = "name the engine of the nodes in the cluster file, or delete the recipe's section container"
        raise _refusal(image, rule, way_out)
    ordered = tuple(sorted(map(_mountable, mounts), key=lambda mount: mount.path.parts))
    return _ADAPTERS[engine](_Wanted(image, ordered, gpus, python))


def _mountable(mount: Mount) -> Mount:
    """Return a mount that no engine takes apart: they do at colons and commas, enroot's table at spaces."""
    path = str(mount.path)
    if not mount.path.is_absolute() or any(letter in ":,\\" or letter.isspace() for letter in path):
        rule = "must be an absolute path without colon, comma, backslash and white space, which engines cannot mount"
        raise ImageError(Problem("mount", path, rule, "move it, or give a link to it a plain name"))
    return mount


def _pyxis(wanted: _Wanted) -> Entry:
    """Enter by pyxis: srun's plug-in enters the namespaces and executes the command in its own process: signals and
    exit status are the rank's. Driver libraries come in where NVIDIA_VISIBLE_DEVICES is set, by the image or
    outside."""
    options = [
        f"--container-image={_enroot_name(wanted.image)}",
        "--container-workdir=/",
        # enroot would unpack it writable per step; a rank must find what the digest says, in every arm.
        "--container-readonly",
        "--no-container-mount-home",
        # Not a program that the recipe does not name. The cost: an image newer than the driver is not given CUDA's
        # compatibility libraries, which entry points of NVIDIA's images look for.
        "--no-container-entrypoint",
        # Whatever enroot.conf says, ranks have the user's own id: what they write is the user's.
        "--no-container-remap-root",
    ]
    if wanted.mounts:
        words = (f"{mount.path}:{mount.path}{'' if mount.writable else ':ro'}" for mount in wanted.mounts)
        options.append(f"--container-mounts={','.join(words)}")
    needed = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if wanted.gpus else {}
    return Entry(srun=tuple(options), environment=needed)


def _enroot_name(image: Image) -> str:
    """Return HOST#REPOSITORY:sha256:HEX, the one way to write a digest that enroot 3.0.1 to 4.1 understand.

    `@sha256:` is new in enroot 4; enroot 3 takes what stands before it for a user and imports `sha256` of Docker Hub.
    """
    if image.file is not None:
        return str(_file(image, image.file, "pyxis"))
    host, path = _place(image)
    return f"{'registry-1.docker.io' if host == 'docker.io' else host}#{path}:{image.digest}"


def _apptainer(wanted: _Wanted) -> Entry:
    """Enter by apptainer: its starter passes signals on to the command where no terminal is attached, and ends as the
    command ended. Slurm signals both, so that a rank may see a signal twice. Not --cleanenv: Slurm's variables come
    from outside."""
    command = ["apptainer", "exec", *(["--nv"] if wanted.gpus else [])]
    # `--no-home` alone mounts the home after all where the working directory is in it.
    command += ["--no-mount", "home,cwd", "--pwd", "/"]
    for mount in wanted.mounts:
        command += ["--bind", f"{mount.path}:{mount.path}{'' if mount.writable else ':ro'}"]
    return Entry(command=(*command, str(wanted.image.file or f"docker://{_full_name(wanted.image)}")))


_SIGNALS = "HUP,INT,QUIT,TERM,USR1,USR2"

_INSIDE = """\
import os, signal, sys
if os.path.exists("/ch/environment"):
    with open("/ch/environment") as lines:
        os.environ.update(line.rstrip("\\n").split("=", 1) for line in lines if "=" in line)
child = os.fork()
if child == 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvp(sys.argv[1], sys.argv[1:])
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""
"""Sets the image's own variables, as `ch-run --set-env` does, which fails where an image has none."""


def _charliecloud(wanted: _Wanted) -> Entry:
    """Enter by Charliecloud: ch-run of a SquashFS file (measured with 0.31).

    It stays as the file system's server, so that what happens to it happens to the rank. On SIGTERM it unmounts and
    ends with status 0, which would look like success; SIGUSR1 kills it; a rank killed by a signal gives status 1. Hence
    signals are blocked in it, with GNU env (coreutils 8.31), and unblocked for the rank alone, by a small parent inside
    that turns a signal into status 128 + N. A signal must go to the whole step, as Slurm's do.

    Each rank has a mount of its own in a mount namespace of its own, so that all can use ch-run's one default mount
    point, below /var/tmp. Not --join: with it one rank's end takes the image from the others.

    A mount's path must exist in the image, for ch-run makes none in a read-only one; below /tmp, which is the node's
    (or its TMPDIR's), any does. Its mounts are all writable. The NVIDIA driver's libraries must be in the image:
    `ch-fromhost --nvidia` before packing it.
    """
    file = _file(wanted.image, wanted.image.file, "charliecloud")
    binds = [f"--bind={mount.path}:{mount.path}" for mount in wanted.mounts]
    guard = ("env", f"--block-signal={_SIGNALS}")
    inside = (wanted.python, "-ISc", _INSIDE)
    return Entry(command=(*guard, "ch-run", "--cd=/", *binds, str(file), "--", *inside), environment=_person())


def _person() -> dict[str, str]:
    """Return variables without which ch-run refuses to start: USER; it names its folder below /var/tmp."""
    try:
        own = pwd.getpwuid(os.getuid())
    except KeyError:
        return {"USER": str(os.getuid()), "HOME": "/"}
    return {"USER": own.pw_name, "HOME": own.pw_dir}


def _podman(wanted: _Wanted) -> Entry:
    """Enter by podman, rootless, with crun. podman passes signals on and ends with the command's status; where Slurm
    tracks processes by cgroup, the rank has each signal from Slurm as well."""
    if wanted.image.file is not None:
        rule = "must be a registry's image with engine podman, which cannot run an image file"
        raise _refusal(wanted.image, rule, "push it to a registry, or set another engine in the cluster file")
    command = ["podman", "run", "--rm", "--read-only", "--entrypoint=", "--workdir=/", "--env-host"]
    command += ["--network=host", "--ipc=host", "--uts=host"]
    # As process 1 of its own namespace a rank would ignore every signal that it has no handler for.
    command += ["--pid=host"]
    # In Slurm's cgroup: its limits hold, and it can kill what it started.
    command += ["--cgroups=disabled", "--userns=keep-id"]
    # SELinux would hide unlabelled mounts; relabelling them (:z) would change the files.
    command += ["--security-opt=label=disable", *(["--device=nvidia.com/gpu=all"] if wanted.gpus else [])]
    command += [f"--volume={mount.path}:{mount.path}{'' if mount.writable else ':ro'}" for mount in wanted.mounts]
    return Entry(command=(*command, _full_name(wanted.image)))


_ADAPTERS: dict[Engine, Callable[[_Wanted], Entry]] = {
    "pyxis": _pyxis,
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
    "podman": _podman,
}


def _file(image: Image, file: Path | None, engine: Engine) -> Path:
    """Return the image's file, which must be SquashFS."""
    if file is not None and file.suffix in _SQUASHFS:
        return file
    make = {
        "pyxis": "`enroot import -o NAME.sqsh docker://...`",
        "charliecloud": "`ch-image pull`, then `ch-convert -o squash NAME NAME.sqfs`",
    }[engine]
    rule = f"must be a SquashFS file ({', '.join(_SQUASHFS)}) with engine {engine}"
    raise _refusal(image, rule, f"make one with {make}, then `samebits image lock NAME`")


def _full_name(image: Image) -> str:
    return f"{'/'.join(_place(image))}@{image.digest}"


def _place(image: Image) -> tuple[str, str]:
    """Return (host, repository), as Docker fills in what a name leaves out."""
    first, slash, rest = image.name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        return ("docker.io" if first == "index.docker.io" else first), rest
    return "docker.io", image.name if slash else f"library/{image.name}"


def _refusal(image: Image, rule: str, way_out: str) -> ImageError:
    return ImageError(Problem("container.image", str(image.file or image.name), rule, way_out))
