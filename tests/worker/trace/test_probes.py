"""Rung op: calls beneath the dispatcher, with stand-ins for the libraries and Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = """
import ctypes
import torch


def _add(target, value):
    for index in range(target.numel()):
        at = target.data_ptr() + 4 * index
        ctypes.c_float.from_address(at).value += value


def wgrad_gemm_accum_fp32(x, gradient, main_grad):
    _add(main_grad, float(x.numpy().sum() * gradient.numpy().sum()))


def generic_gemm(A, transA, B, transB, D, quantizer, output_dtype, bias, bias_type, gelu, gelu_in, grad, workspace):
    made = torch.zeros(3) if D is None else D
    _add(made, float(A.numpy().sum()))
    _add(workspace, HIDDEN)
    return made, None


def get_version():
    return torch.zeros(1)


HIDDEN = 1.0
"""
"""Writes by addresses, as compiled code does."""

START = """
import json, sys
sys.path[:0] = sys.argv[1:4]
from samebits.worker.trace import library_calls as probes
probes.install()
import torch
import fused_weight_gradient_mlp_cuda as fused
import transformer_engine_torch as te
from fused_weight_gradient_mlp_cuda import wgrad_gemm_accum_fp32
from insides import Inside, traced
from samebits.worker.capture.digest import digest
from samebits.fingerprint.records import Kind, Flag, inputs_of
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    for name in ("fused_weight_gradient_mlp_cuda", "transformer_engine_torch"):
        (tmp_path / f"{name}.py").write_text(STAND_IN)
    return tmp_path


def run(libraries: Path, code: str, **environment: str) -> object:
    """What the code leaves in `found`."""
    here = Path(__file__).parents[2]
    command = [sys.executable, "-c", f"{START}\n{code}\nprint(json.dumps(found))", str(here), str(here.parent / "src")]
    done = subprocess.run(
        [*command, str(libraries)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_fused_weight_gradient_is_a_call_that_writes_its_buffer(libraries: Path) -> None:
    code = """
buffer = torch.zeros(4)
def step():
    x, gradient = torch.ones(2), torch.ones(2)
    buffer.zero_()
    wgrad_gemm_accum_fp32(x, gradient, buffer)
    buffer * 2
seen = traced(step)
row = seen.one("fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32", Kind.CALL)
found = [seen.names, row.output == digest(torch.full((4,), 4.0)), inputs_of(row.flags)]
"""
    names = ["op:aten.ones.default"] * 2 + ["op:aten.zero_.default"]
    call = "call:fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32"
    assert run(libraries, code) == [[*names, call, "op:aten.mul.Tensor"], True, 3]


def test_what_a_call_was_given_explains_what_it_left(libraries: Path) -> None:
    code = """
def step(value):
    out = torch.empty(3)
    te.generic_gemm(torch.full((2,), value), True, torch.ones(2), False, None, None, None, None, None, False, None,
                    False, torch.empty(4))
name = "transformer_engine_torch.generic_gemm"
rows = [traced(lambda: step(value)).one(name, Kind.CALL) for value in (1.0, 1.0, 2.0)]
found = [rows[0] == rows[1], rows[0].source == rows[2].source, rows[0].output == rows[2].output]
"""
    found = run(libraries, code.replace("rows[0] == rows[1]", "repr(rows[0]) == repr(rows[1])"))
    assert found == [True, False, False]


def test_room_to_work_in_is_neither_input_nor_output(libraries: Path) -> None:
    code = """
workspace = torch.zeros(4)
rest = None, None, None, None, None, False, None, False, workspace
def step():
    te.generic_gemm(torch.ones(2), True, torch.ones(2), False, *rest)
first = [repr(row) for row in traced(step).rows]
te.HIDDEN = 5.0
workspace.add_(3)
found = [repr(row) for row in traced(step).rows] == first, [row.site.name for row in traced(step).rows]
"""
    same, names = run(libraries, code)  # type: ignore[misc]
    assert same
    call = "transformer_engine_torch.generic_gemm"
    assert names == ["aten.ones.default", "aten.ones.default", call, f"{call}#1", f"{call}#2"]


def test_memory_that_nobody_filled_is_no_input_of_a_call(libraries: Path) -> None:
    code = """
rest = None, None, None, None, False, None, False, torch.empty(4)
def step(value):
    target = torch.empty(3)
    target.numpy()[:] = value
    te.generic_gemm(torch.ones(2), True, torch.ones(2), False, target, *rest)
name = "transformer_engine_torch.generic_gemm"
rows = [traced(lambda: step(value)).one(name, Kind.CALL) for value in (1.0, 2.0)]
found = [rows[0].source == rows[1].source, inputs_of(rows[0].flags)]
"""
    assert run(libraries, code) == [True, 2]


def test_outside_a_traced_step_a_probe_is_inert_and_what_computes_nothing_has_none(libraries: Path) -> None:
    code = """
buffer = torch.zeros(4)
fused.wgrad_gemm_accum_fp32(torch.ones(1), torch.ones(1), buffer)
def step():
    te.get_version()
found = [buffer.tolist(), traced(step).names, hasattr(te.get_version, "__wrapped__")]
"""
    assert run(libraries, code) == [[1.0] * 4, ["op:aten.zeros.default"], False]


TRITON = """
import triton
import triton.language as tl


@triton.jit
def doubled(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count) * 2, mask=at < count)
"""


def test_a_triton_kernel_is_a_call_by_its_name(libraries: Path) -> None:
    (libraries / "kernels.py").write_text(TRITON)
    code = """
import kernels
def step():
    source, target = torch.arange(5.0), torch.empty(5)
    kernels.doubled[(1,)](source, target, 5, BLOCK=8)
    target + 1
seen = traced(step)
calls = seen.of("triton.doubled", Kind.CALL), seen.of("triton.doubled#1", Kind.CALL)
found = [seen.names, [row.output == digest(torch.arange(5.0) * n) for n, (row,) in zip((1, 2), calls)],
         inputs_of(calls[0][0].flags)]
"""
    names = ["op:aten.arange.default", "call:triton.doubled", "call:triton.doubled#1", "op:aten.add.Tensor"]
    assert run(libraries, code, TRITON_INTERPRET="1") == [names, [True, True], 1]


def test_a_hidden_writer_without_a_probe_shows_before_who_reads_it(libraries: Path) -> None:
    code = """
def step():
    x = torch.zeros(3)
    te.get_version()
    fused._add(x, 2.0)
    x + 1
found = traced(step).names[-2:]
"""
    assert run(libraries, code) == ["given:overwritten before aten.add.Tensor", "op:aten.add.Tensor"]


def test_an_injected_process_has_the_probes_too(libraries: Path) -> None:
    code = """
import sys
sys.path[:0] = sys.argv[1:3]
from samebits.worker.inject import bootstrap as entry
entry.begin()
assert "torch" not in sys.modules
import fused_weight_gradient_mlp_cuda as fused
print(fused._samebits_probed, fused.wgrad_gemm_accum_fp32.__module__)
"""
    source = Path(__file__).parents[3] / "src"
    command = [sys.executable, "-c", code, str(source), str(libraries)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "samebits.worker.trace.library_calls"]
