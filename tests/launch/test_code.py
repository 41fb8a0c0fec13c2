"""The copy of the sources that a job's ranks run: whole, and enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import samebits
from samebits.launch.code import freeze
from samebits.plan import arms

SITE = Path(torch.__file__).parents[1]
"""Where torch, numpy and megatron are; its .pth files, which lead to this checkout, are not read."""

IMPORT_ALL = """
import importlib, pkgutil, sys
import samebits.worker
for module in pkgutil.walk_packages(samebits.worker.__path__, "samebits.worker."):
    if module.name.rpartition(".")[2] not in ("sitecustomize", "triton_kernel"):
        importlib.import_module(module.name)
print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "samebits"), sep="\\n")
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    freeze(tmp_path / "launch" / "code")
    return tmp_path / "launch" / "code"


def in_a_rank(target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python as in an image that holds torch and megatron, but not samebits."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{target}{os.pathsep}{SITE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", "-W", "ignore", *arguments]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def test_all_that_a_rank_imports_is_in_the_copy(target: Path) -> None:
    done = in_a_rank(target, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    loaded = [Path(line) for line in done.stdout.splitlines()]
    assert target / "samebits" / "worker" / "main.py" in loaded
    assert target / "samebits" / "fingerprint" / "paths.py" in loaded
    assert all(path.is_relative_to(target) for path in loaded)


def test_a_rank_starts_from_the_copy_and_says_what_it_lacks(target: Path) -> None:
    done = in_a_rank(target, "-m", "samebits.worker.main", "/no/artifact")
    assert done.returncode == 1
    assert "RANK and SLURM_PROCID are not set" in done.stderr
    assert str(target / "samebits" / "worker" / "rendezvous.py") in done.stderr


def test_the_copy_is_what_the_arms_key_counts(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "_STARTING", ())
    digest = arms.sources_digest()
    monkeypatch.setattr(samebits, "__file__", str(target / "samebits" / "__init__.py"))
    assert arms.sources_digest() == digest
    source = target / "samebits" / "worker" / "main.py"
    source.write_text(source.read_text() + "\n")
    assert arms.sources_digest() != digest


def test_what_runs_on_the_host_alone_is_not_copied(target: Path) -> None:
    package = target / "samebits"
    assert sorted(path.name for path in package.iterdir() if path.is_dir()) == ["fingerprint", "spec", "worker"]
    assert not {"cli.py", "arms.py", "recipe.py"} & {path.name for path in package.iterdir()}
    assert not list(package.rglob("*.pyc"))
