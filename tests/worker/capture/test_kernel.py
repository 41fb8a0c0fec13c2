"""The kernel without a GPU: what it computes, by Triton's interpreter, and what compilers make of it for devices.

Each in a process of its own, because triton is imported there in another way than elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


def run(cache: Path, *command: str, interpret: str = "0") -> str:
    """What the command prints; its report is the failure's where it fails."""
    environment = os.environ | {
        "TRITON_INTERPRET": interpret,
        "TRITON_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def test_under_the_interpreter_the_kernel_gives_the_bits_of_the_cpu(tmp_path: Path) -> None:
    report = run(tmp_path, "-m", "pytest", "-p", "no:xdist", "-x", "tests/kernel_interpreted.py", interpret="1")
    assert "skipped" not in report


def test_compiled_for_devices_it_reads_16_bytes_at_once_and_spills_nothing(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, "-W", "error", "tests/kernel_targets.py"))
    assert set(found) == {"80", "90", "100"}
    for target in found.values():
        # A row's address, length and chunk, then the loop over whole chunks: 8 words a thread.
        assert target["loads"][:7] == [8, 8, 8, 16, 16, 16, 16]
        # Bytes are reversed by two permutations a word, not by a dozen shifts: 8 words, and the last one.
        assert target["reversals"] >= 18
        assert not target["local"]
        assert target["atomics"] == ["atom.global.gpu.relaxed.add.u64"] * 2
