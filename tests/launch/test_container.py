"""Each engine's command line, word by word; charliecloud's for real where it is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from samebits.launch import container
from samebits.launch.container import Entry, Mount, enter
from samebits.recipe.cluster import Engine
from samebits.recipe.image import Image, ImageError

HEX = "ab" * 32
FILE = Image("train.sqfs", f"sha256:{HEX}", Path("/images/train.sqfs"))
REGISTRY = Image("registry.example/nvidia/pytorch", f"sha256:{HEX}")
MOUNTS = (Mount(Path("/work/results/x"), writable=True), Mount(Path("/work"), writable=False))
ENGINES: tuple[Engine, ...] = typing.get_args(Engine)

PYXIS = (
    "--container-workdir=/",
    "--container-readonly",
    "--no-container-mount-home",
    "--no-container-entrypoint",
    "--no-container-remap-root",
    "--container-mounts=/work:/work:ro,/work/results/x:/work/results/x",
)
APPTAINER = (
    *("--no-mount", "home,cwd", "--pwd", "/"),
    *("--bind", "/work:/work:ro", "--bind", "/work/results/x:/work/results/x"),
)
PODMAN = (
    *("podman", "run", "--rm", "--read-only", "--entrypoint=", "--workdir=/", "--env-host"),
    *("--network=host", "--ipc=host", "--uts=host", "--pid=host", "--cgroups=disabled", "--userns=keep-id"),
    "--security-opt=label=disable",
)
PODMAN_END = (
    *("--volume=/work:/work:ro", "--volume=/work/results/x:/work/results/x"),
    f"registry.example/nvidia/pytorch@sha256:{HEX}",
)
CHARLIECLOUD = (
    *("env", "--block-signal=HUP,INT,QUIT,TERM,USR1,USR2", "ch-run", "--cd=/"),
    *("--bind=/work:/work", "--bind=/work/results/x:/work/results/x", "/images/train.sqfs", "--"),
    *("python3", "-ISc", container._INSIDE),
)

GOLDEN: list[tuple[Engine, Image, bool, Entry]] = [
    (
        *("pyxis", FILE, True),
        Entry(
            srun=("--container-image=/images/train.sqfs", *PYXIS),
            environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
        ),
    ),
    ("pyxis", FILE, False, Entry(srun=("--container-image=/images/train.sqfs", *PYXIS))),
    (
        *("pyxis", REGISTRY, False),
        Entry(srun=(f"--container-image=registry.example#nvidia/pytorch:sha256:{HEX}", *PYXIS)),
    ),
    ("apptainer", FILE, True, Entry(command=("apptainer", "exec", "--nv", *APPTAINER, "/images/train.sqfs"))),
    (
        *("apptainer", REGISTRY, False),
        Entry(command=("apptainer", "exec", *APPTAINER, f"docker://registry.example/nvidia/pytorch@sha256:{HEX}")),
    ),
    ("charliecloud", FILE, True, Entry(command=CHARLIECLOUD, environment=container._person())),
    ("charliecloud", FILE, False, Entry(command=CHARLIECLOUD, environment=container._person())),
    ("podman", REGISTRY, True, Entry(command=(*PODMAN, "--device=nvidia.com/gpu=all", *PODMAN_END))),
    ("podman", REGISTRY, False, Entry(command=(*PODMAN, *PODMAN_END))),
]


@pytest.mark.parametrize(("engine", "image", "gpus", "entry"), GOLDEN)
def test_an_engine_is_asked_for_exactly_this(engine: Engine, image: Image, gpus: bool, entry: Entry) -> None:
    assert enter(engine, image, MOUNTS, gpus=gpus) == entry


def test_every_engine_has_a_golden_line_or_is_none() -> None:
    assert {engine for engine, *_ in GOLDEN} == set(ENGINES) - {"none"}


@pytest.mark.parametrize("engine", ENGINES)
def test_without_an_image_ranks_run_on_the_bare_node(engine: Engine) -> None:
    assert enter(engine, None, MOUNTS, gpus=True) == Entry((), (), {})


def test_a_name_without_host_is_docker_hubs_for_every_engine() -> None:
    for name, full in (("debian", "library/debian"), ("nvidia/cuda", "nvidia/cuda"), ("index.docker.io/a/b", "a/b")):
        image = Image(name, f"sha256:{HEX}")
        assert enter("podman", image, (), gpus=False).command[-1] == f"docker.io/{full}@sha256:{HEX}"
        assert enter("apptainer", image, (), gpus=False).command[-1] == f"docker://docker.io/{full}@sha256:{HEX}"
        first = enter("pyxis", image, (), gpus=False).srun[0]
        assert first == f"--container-image=registry-1.docker.io#{full}:sha256:{HEX}"


def test_without_mounts_pyxis_is_given_no_empty_option() -> None:
    assert not [word for word in enter("pyxis", FILE, (), gpus=False).srun if "mounts" in word]


@pytest.mark.parametrize(
    ("engine", "image", "said"),
    [
        ("none", FILE, "must be absent where the cluster file says `engine: none`; name the engine"),
        ("none", REGISTRY, "must be absent"),
        ("charliecloud", REGISTRY, r"must be a SquashFS file .* engine charliecloud; make one with `ch-image pull`"),
        ("charliecloud", Image("a.sif", "", Path("/a.sif")), "'/a.sif', must be a SquashFS file"),
        ("pyxis", Image("a.sif", "", Path("/a.sif")), "must be a SquashFS file .*; make one with `enroot import"),
        ("podman", FILE, "must be a registry's image with engine podman, .*; push it"),
    ],
)
def test_an_image_that_an_engine_cannot_run_is_refused(engine: Engine, image: Image, said: str) -> None:
    with pytest.raises(ImageError, match=rf"^container\.image is .*{said}"):
        enter(engine, image, (), gpus=False)


@pytest.mark.parametrize("path", ["/a:b", "/a,b", "/a b", "/a\\b", "relative"])
def test_a_path_that_would_break_a_command_line_is_refused(path: str) -> None:
    for engine in ("pyxis", "apptainer", "charliecloud"):
        with pytest.raises(ImageError, match=r"^mount is .*, must be an absolute path"):
            enter(engine, FILE, (Mount(Path(path), writable=False),), gpus=False)


# Charliecloud for real.

SIGNALS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"saw TERM\\n"), sys.exit(5)))
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"saw USR1\\n"))
os.write(1, b"up\\n")
time.sleep(30)
"""


def lacking() -> str | None:
    for tool in ("ch-run", "mksquashfs", "ldd"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not Path("/dev/fuse").exists():
        return "/dev/fuse is not there"
    return None


def tree(root: Path) -> None:
    """Python with its standard library, sh and env, as this machine has them."""
    for folder in ("bin", "dev", "proc", "sys", "tmp", "etc", "usr/bin", "var/tmp", "mnt/0", "ch"):
        (root / folder).mkdir(parents=True)
    python = Path(sys.executable).resolve()
    for program in (python, Path("/bin/sh"), Path(shutil.which("env") or "")):
        copy(program.resolve(), root / "usr/bin" / program.name)
        for word in subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split():
            if word.startswith("/"):
                copy(Path(word).resolve(), root / word[1:])
    (root / "bin/sh").symlink_to("/usr/bin/sh")
    (root / "usr/bin/python3").symlink_to(python.name)
    library = Path(sysconfig.get_path("stdlib"))
    wanted = ["*.py", "encodings", "collections", "re", "importlib", "lib-dynload", "json"]
    for entry in (entry for pattern in wanted for entry in library.glob(pattern)):
        target = root / "usr/lib" / library.name / entry.name
        (shutil.copytree if entry.is_dir() else copy)(entry, target)
    for name in ("passwd", "group"):
        (root / "etc" / name).touch()
    (root / "ch/environment").write_text("OF_THE_IMAGE=a=b\n")


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    if reason := lacking():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("image")
    tree(folder / "root")
    file = folder / "small.sqfs"
    command = ["mksquashfs", folder / "root", file, "-noappend", "-quiet", "-no-progress", "-Xcompression-level", "1"]
    subprocess.run(command, check=True, timeout=120)
    found = Image(file.name, "", file)
    tried = run(found, "sh", "-c", ":")
    if "FUSE" in tried.stderr or "namespaces" in tried.stderr:
        pytest.skip(f"this machine lets ch-run mount nothing: {tried.stderr}")
    assert tried.returncode == 0, tried.stderr
    return found


def command(image: Image, *words: str, mounts: Sequence[Mount] = ()) -> tuple[list[str], Mapping[str, str]]:
    entry = enter("charliecloud", image, mounts, gpus=False)
    return [*entry.command, *words], {**entry.environment, "PATH": os.environ["PATH"], "SLURM_PROCID": "3"}


def run(image: Image, *words: str, mounts: Sequence[Mount] = ()) -> subprocess.CompletedProcess[str]:
    line, environment = command(image, *words, mounts=mounts)
    return subprocess.run(line, env=environment, cwd="/tmp", capture_output=True, text=True, timeout=60, check=False)


def start(image: Image, *words: str) -> subprocess.Popen[str]:
    """In a process group of its own, to be signalled as a whole, as Slurm does with a step."""
    line, environment = command(image, *words)
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("status", [0, 7, 255])
def test_the_exit_status_comes_back(image: Image, status: int) -> None:
    assert run(image, "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_rank_that_dies_of_a_signal_says_which(image: Image, signum: signal.Signals) -> None:
    assert run(image, "sh", "-c", f"kill -{signum.value} $$").returncode == 128 + signum


def test_variables_of_task_and_image_are_seen_and_the_folder_is_the_root(image: Image) -> None:
    said = run(image, "env", "RANK=2", "sh", "-c", "echo $SLURM_PROCID $RANK $OF_THE_IMAGE $PWD")
    assert said.stdout == "3 2 a=b /\n", said.stderr


def test_a_mount_is_seen_and_written_to_and_the_image_is_not(image: Image, tmp_path: Path) -> None:
    folder = Path("/tmp") / f"samebits-mount-{os.getpid()}"
    folder.mkdir()
    try:
        said = run(image, "sh", "-c", f"echo x > {folder}/seen", mounts=[Mount(folder, writable=True)])
        assert (said.returncode, (folder / "seen").read_text()) == (0, "x\n"), said.stderr
    finally:
        shutil.rmtree(folder)
    assert "Read-only file system" in run(image, "sh", "-c", "echo x > /etc/seen").stderr


def test_a_path_that_the_image_has_not_cannot_be_mounted(image: Image) -> None:
    said = run(image, "sh", "-c", ":", mounts=[Mount(Path("/var/lib"), writable=False)])
    assert said.returncode != 0
    assert "/var/lib" in said.stderr


def test_network_and_host_name_are_the_nodes(image: Image) -> None:
    program = (
        "import os; print(os.uname().nodename, os.readlink('/proc/self/ns/net'), os.readlink('/proc/self/ns/ipc'))"
    )
    here = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert run(image, "python3", "-c", program).stdout == here


def test_signals_to_the_step_reach_the_rank_and_its_answer_comes_back(image: Image) -> None:
    step = start(image, "python3", "-c", SIGNALS)
    assert step.stdout is not None
    assert step.stdout.readline() == "up\n"
    os.killpg(step.pid, signal.SIGUSR1)
    assert step.stdout.readline() == "saw USR1\n"
    os.killpg(step.pid, signal.SIGTERM)
    assert step.stdout.readline() == "saw TERM\n"
    assert step.wait(20) == 5
    step.stdout.close()


def test_a_rank_without_a_handler_ends_at_a_signal_and_not_as_a_success(image: Image) -> None:
    step = start(image, "python3", "-c", "import time; print('up', flush=True); time.sleep(30)")
    assert step.stdout is not None
    assert step.stdout.readline() == "up\n"
    os.killpg(step.pid, signal.SIGTERM)
    assert step.wait(20) == 128 + signal.SIGTERM
    step.stdout.close()


def test_many_ranks_of_two_images_run_at_once_and_none_takes_the_image_from_another(
    image: Image, tmp_path: Path
) -> None:
    assert image.file is not None
    other = Image("other.sqfs", "", Path(shutil.copy(image.file, tmp_path / "other.sqfs")))
    # The first ones end while the later ones still have modules to import.
    program = "import sys, time; time.sleep(float(sys.argv[1])); import json, decimal; print(json.dumps(sys.argv[1]))"
    steps = [start((image, other)[n % 2], "python3", "-c", program, str(n / 8)) for n in range(8)]
    said = [step.communicate(timeout=60)[0] for step in steps]
    assert said == [f'"{n / 8}"\n' for n in range(8)]
    assert [step.returncode for step in steps] == [0] * 8
