"""Observed pins: what is read, what must never be."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from samebits.recipe import determinism
from samebits.worker import pins
from samebits.worker.pins import build_id

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", sorted({*(variable.name for variable in determinism.ACCEPTED), *determinism.RECORDED}))
def test_whatever_a_recipe_may_set_is_read_back(name: str) -> None:
    assert pins.environment([(name, "1")]) == {name: "1"}


@pytest.mark.parametrize("name", ["NCCL_API_KEY", "NVTE_TOKEN", "GLOO_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HOME"])
def test_a_variable_that_may_hold_a_secret_is_not_read(name: str) -> None:
    assert pins.environment([(name, "hunter2")]) == {}


@pytest.mark.parametrize("name", ["NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_RAS_ADDR", "NCCL_DEBUG_FILE"])
def test_an_address_or_file_of_one_allocation_is_kept_and_never_compared(name: str) -> None:
    assert pins.environment([(name, "n1:4711")]) == {}
    assert pins.placement(CPU, {name: "n1:4711"})[name] == "n1:4711"


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "HOSTNAME"])
def test_what_a_scheduler_sets_anew_for_each_job_is_not_compared(name: str) -> None:
    assert pins.environment([(name, "1")]) == {}


def test_the_scheduler_names_node_job_and_switches_where_there_is_one() -> None:
    slurm = {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "4711", "SLURM_TOPOLOGY_ADDR": "top.leaf3.n7"}
    found = pins.placement(CPU, slurm)
    assert (found["node"], found["job"], found["topology"]) == ("n7", "4711", "top.leaf3.n7")
    assert found["host"] == socket.gethostname()


def test_without_a_scheduler_the_node_is_the_host_and_no_job_is_made_up() -> None:
    found = pins.placement(CPU, {"SLURM_JOB_ID": ""})
    assert found["node"] == found["host"] == socket.gethostname()
    assert not found.keys() & {"job", "topology"}


def test_a_gpu_is_found_by_uuid_and_bus_and_older_torch_names_no_bus() -> None:
    old = SimpleNamespace(uuid="1-2")
    new = SimpleNamespace(uuid="1-2", pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    assert pins.gpu_place(old) == {"gpu-uuid": "1-2"}
    assert pins.gpu_place(new) == {"gpu-uuid": "1-2", "gpu-bus": "00000000:1B:00.0"}


def test_the_image_is_the_launchers_word_and_absent_without_it() -> None:
    assert pins.image({"SAMEBITS_IMAGE": "sha256:ab"}) == {"image": "sha256:ab"}
    assert pins.image({"SAMEBITS_IMAGE": ""}) == pins.image({}) == {}


def test_numa_nodes_are_counted_where_they_can_be_seen(tmp_path: Path) -> None:
    for name in ("node0", "node1", "node10", "has_cpu", "online"):
        (tmp_path / name).mkdir()
    assert pins.numa_nodes(tmp_path) == {"numa-nodes": "3"}
    assert pins.numa_nodes(tmp_path / "hidden") == {}


def test_gpus_and_their_peers_are_counted_without_the_own_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: {own, other} <= {0, 1, 2})
    assert [pins._peers(torch.device("cuda", own)) for own in range(4)] == [2, 2, 2, 0]


def test_a_cpu_has_no_gpu_pins() -> None:
    assert not [name for name in pins.hardware(CPU) if name.startswith("gpu")]


def test_the_versions_of_what_computes_are_read() -> None:
    found = pins.software()
    assert found.keys() >= {"python", "torch", "torch-build", "numpy", "megatron-core", "libc", "samebits"}


def test_loaded_libraries_are_named_with_what_tells_two_builds_apart() -> None:
    found = pins.libraries()
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
    before = pins.tree(tmp_path, [path])
    path.write_text("x = 2\n")
    assert pins.tree(tmp_path, [path]) != before


def test_what_an_environment_in_the_temporary_folder_installs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone in /tmp has its torch there; what is made at run time lies there, too, and does not count."""
    monkeypatch.setattr(pins.sys, "prefix", "/tmp/clone/.venv")
    monkeypatch.setattr(pins.tempfile, "gettempdir", lambda: "/tmp")
    assert pins._matters("/tmp/clone/.venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so")
    assert not pins._matters("/tmp/tmpx81/kernel.so")
