"""Observed pins: what is read, what must never be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from samebits import determinism
from samebits.run import observe
from samebits.run.elf import build_id


@pytest.mark.parametrize("name", sorted({*(variable.name for variable in determinism.ACCEPTED), *determinism.RECORDED}))
def test_whatever_a_recipe_may_set_is_read_back(name: str) -> None:
    assert observe.environment([(name, "1")]) == {name: "1"}


@pytest.mark.parametrize("name", ["NCCL_API_KEY", "NVTE_TOKEN", "GLOO_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HOME"])
def test_a_variable_that_may_hold_a_secret_is_not_read(name: str) -> None:
    assert observe.environment([(name, "hunter2")]) == {}


def test_the_versions_of_what_computes_are_read() -> None:
    found = observe.software()
    assert found.keys() >= {"python", "torch", "torch-build", "numpy", "megatron-core", "libc", "samebits"}


def test_loaded_libraries_are_named_with_what_tells_two_builds_apart() -> None:
    found = observe.libraries()
    assert "libtorch_cpu.so" in found
    assert not any(name.startswith("libnss_") for name in found)


def test_a_build_id_is_the_one_that_the_linker_wrote(tmp_path: Path) -> None:
    wanted = "00112233445566778899aabbccddeeff00112233"
    source, library = tmp_path / "x.c", tmp_path / "x.so"
    source.write_text("int x = 1;\n")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,--build-id=0x{wanted}", "-o", str(library), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs gcc")
    assert build_id(library) == wanted


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), b"not a library" * 100])
def test_a_file_without_a_build_id_is_known_by_its_size(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "y.so"
    path.write_bytes(content)
    assert build_id(path) == f"size {len(content)}"


def test_a_library_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    assert build_id(tmp_path / "z.so") == "unreadable"


def test_an_edited_source_changes_the_digest_of_the_code(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    before = observe._tree(tmp_path, [path])
    path.write_text("x = 2\n")
    assert observe._tree(tmp_path, [path]) != before
