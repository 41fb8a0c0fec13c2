"""requirements.lock resolves from the package index as a stranger's machine reaches it: `make lock-check`.

uv resolves for an interpreter that is not here, which pip does not: it reads environment markers by its own. Only
metadata is read. connection_pool alone has no wheel, and needs no compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHEELS = ("--only-binary", ":all:", "--no-binary", "connection-pool")
Resolve = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Resolve:
    """Resolves requirements that are files or standard input; skips where the package index is out of reach."""
    uv = pytest.importorskip("uv", reason="uv is not installed: `make setup`", exc_type=ImportError).find_uv_bin()
    folder = tmp_path_factory.mktemp("index")
    # What a machine's owner has set for pip and uv (other indexes, folders of wheels) is not what a stranger has.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment |= {"UV_CACHE_DIR": str(folder / "cache"), "UV_PYTHON_DOWNLOADS": "never", "UV_HTTP_TIMEOUT": "20"}
    command = [uv, "pip", "compile", "--no-config", "--no-header", "--no-annotate", "--quiet"]
    command += ["--python", sys.executable, "--python-platform", "x86_64-manylinux_2_28"]

    def resolve(*words: object, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, words)],
            input=given,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    answer = resolve("-", given="packaging\n")
    if answer.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {answer.stderr.strip().splitlines()[-1]}")
    return resolve


@pytest.mark.parametrize(("python", "megatron"), [("3.11", "0.16.1"), ("3.12", "0.19.2"), ("3.13", "0.19.2")])
def test_the_lock_and_the_projects_own_bounds_resolve_from_the_package_index(
    resolve: Resolve, python: str, megatron: str
) -> None:
    project = ROOT / "pyproject.toml"
    sources = (ROOT / "requirements.lock", project, "--group", f"{project}:dev")

    found = resolve(*sources, *WHEELS, "--python-version", python)

    assert found.returncode == 0, found.stderr
    assert f"megatron-core=={megatron}" in found.stdout.split()


def test_a_lock_that_contradicts_torch_is_refused(resolve: Resolve) -> None:
    """As this one once was: a torch asks for one triton exactly."""
    lock = (ROOT / "requirements.lock").read_text()
    older = re.sub("^triton==[^;]+", "triton==3.7.0", lock, flags=re.MULTILINE)
    assert older != lock
    found = resolve("-", *WHEELS, "--python-version", "3.11", given=older)
    assert found.returncode != 0
    assert "torch==" in found.stderr
    assert "==3.7.0" in found.stderr
