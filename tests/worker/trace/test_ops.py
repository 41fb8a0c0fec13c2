"""Rung op: what is recorded of dispatched operations, and that it is the same in every equal run."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from insides import Inside, traced
from samebits.fingerprint.records import Flag, Form, Kind, Phase, Site, inputs_of
from samebits.worker.capture.digest import digest
from samebits.worker.capture.reading import Reader, Reading, Row, bits
from samebits.worker.trace.dispatch import TracingError, signature_of, unwaited
from samebits.worker.trace.memory_writes import Origins, placed
from samebits.worker.trace.texts import plain_text
from samebits.worker.trace.trace import quiet


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(x)
        return hidden * 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(self.first(x))
        return hidden


def test_an_operation_has_its_inputs_before_and_its_output_after() -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    row = traced(lambda: x @ y).one("aten.mm.default")
    assert row.output == digest(x @ y)
    assert str(row.form) == "float32[3, 5]"
    assert row.site.phase is Phase.FORWARD
    assert Flag(row.flags & 0xFF) == Flag.INPUT
    assert inputs_of(row.flags) == 2


def sources_of(function: Callable[[], Any], name: str) -> int:
    return traced(function).one(name).source


def test_the_input_digest_tells_of_every_bit_every_form_every_order_and_every_plain_argument() -> None:
    x, y = torch.arange(4.0), torch.arange(4.0) + 1
    other = x.clone()
    other.view(torch.int32)[3] ^= 1
    base = sources_of(lambda: torch.add(x, y), "aten.add.Tensor")
    assert sources_of(lambda: torch.add(x.clone(), y), "aten.add.Tensor") == base
    changed = [
        lambda: torch.add(other, y),
        lambda: torch.add(y, x),
        lambda: torch.add(x, y, alpha=2),
        lambda: torch.add(x.view(2, 2), y.view(2, 2)),
        lambda: torch.add(x.view(torch.int32), y.view(torch.int32)),
    ]
    digests = [sources_of(one, "aten.add.Tensor") for one in changed]
    assert len({base, *digests}) == 1 + len(changed)


def test_a_plain_float_counts_by_its_exact_bits() -> None:
    x = torch.ones(3)
    one, other = 0.1, 0.1 + 2**-56
    assert one != other
    found = {sources_of(lambda value=value: x * value, "aten.mul.Tensor") for value in (one, other)}
    assert len(found) == 2


def test_what_an_operation_writes_into_its_arguments_is_an_output() -> None:
    x, y = torch.zeros(3), torch.ones(3)
    seen = traced(lambda: x.add_(y))
    assert not seen.of("aten.add_.Tensor#1"), "what it returns is its argument"
    row = seen.one("aten.add_.Tensor")
    assert row.output == digest(torch.ones(3))
    assert inputs_of(row.flags) == 2
    out = torch.empty(3)
    row = traced(lambda: torch.add(y, y, out=out)).one("aten.add.out")
    assert row.output == digest(out)
    assert inputs_of(row.flags) == 2, "what lay in the output before is no input"


def test_each_tensor_of_a_list_that_is_written_has_a_record() -> None:
    tensors = [torch.full((2,), float(value)) for value in range(3)]
    seen = traced(lambda: torch._foreach_add_(tensors, 1))
    names = ["aten._foreach_add_.Scalar", "aten._foreach_add_.Scalar#1", "aten._foreach_add_.Scalar#2"]
    assert [seen.one(name).output for name in names] == [digest(tensor) for tensor in tensors]


def test_a_number_that_an_operation_returns_is_recorded_exactly() -> None:
    x = torch.tensor([0.1, 0.2])
    row = traced(lambda: x.sum().item()).one("aten._local_scalar_dense.default")
    assert row.flags & Flag.VALUE
    assert row.output[0] == bits(float(x.sum()))


def test_operations_stand_in_the_scope_of_their_module_forward_and_backward() -> None:
    model, x = Model(), torch.randn(2, 4)
    seen = traced(lambda: model(x).sum().backward(), model)
    found = [(row.site.phase, row.site.scope) for row in seen.of("aten.mm.default")]
    forward = [(Phase.FORWARD, "first.inner"), (Phase.FORWARD, "second.inner")]
    # Of the first layer's only the weight's gradient is wanted.
    backward = [(Phase.BACKWARD, "second.inner")] * 2 + [(Phase.BACKWARD, "first.inner")]
    assert found == forward + backward
    muls = [row.site.scope for row in seen.of("aten.mul.Tensor") if row.site.phase is Phase.BACKWARD]
    assert muls == ["second", "first"]
    accumulated = [row.site.scope for row in seen.rows if row.site.phase is Phase.BACKWARD and "sum" in row.site.name]
    assert not accumulated


def test_a_write_into_a_view_belongs_to_the_module_that_made_it_in_the_backward_pass_too() -> None:
    class Writing(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(x)
            hidden[0].mul_(2)
            return hidden

    model = Model()
    model.first = Writing()
    seen = traced(lambda: model(torch.randn(2, 4)).sum().backward(), model)
    scopes = {row.site.scope for row in seen.rows if row.site.phase is Phase.BACKWARD}
    assert scopes == {"", "first", "first.inner", "second", "second.inner"}


def test_a_second_forward_in_the_backward_pass_stands_in_its_modules_and_its_own_backward_too() -> None:
    model = Model()

    def step() -> None:
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).sum().backward()

    found = [(row.site.phase, row.site.scope) for row in traced(step, model).of("aten.mm.default")]
    names = ["first.inner", "second.inner"]
    again = [(Phase.BACKWARD, name) for name in (*names, "second.inner", "second.inner", "first.inner", "first.inner")]
    assert found == [*((Phase.FORWARD, name) for name in names), *again]


def test_the_update_stands_in_the_scope_of_the_optimizers_class() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 4)).sum().backward()
    with Inside(model, optimizer).step(Phase.UPDATE) as seen:
        optimizer.step()
    assert {(row.site.phase, row.site.scope) for row in seen.rows} == {(Phase.UPDATE, "SGD")}


def test_empty_memory_is_counted_and_shows_where_it_is_read() -> None:
    def step() -> None:
        torch.empty(3) + 1

    seen = traced(step)
    assert seen.names == ["given:before aten.add.Tensor", "op:aten.add.Tensor"]
    assert seen.skipped == {"uninitialised": 1}


def test_a_copy_into_empty_memory_is_not_of_what_lay_there() -> None:
    x = torch.arange(3.0)

    def step(before: float) -> Row:
        target = torch.full((3,), before)
        return traced(lambda: target.copy_(x)).one("aten.copy_.default")

    assert step(1.0) == step(2.0)


@pytest.mark.parametrize("beta", [0, 0.0])
def test_a_first_argument_times_zero_is_not_read(beta: float) -> None:
    x = torch.randn(2, 3, 3)

    def step(before: float, beta: float) -> list[Row]:
        buffer = torch.full((2, 3, 3), before)
        return traced(lambda: torch.baddbmm(buffer, x, x, beta=beta)).rows

    assert step(1.0, beta) == step(2.0, beta)
    assert step(1.0, 1) != step(2.0, 1)


def test_every_input_is_explained_by_an_earlier_record() -> None:
    x = torch.randn(4, 4)

    def step() -> None:
        whole = x * 2
        whole.t() @ whole
        whole[1:] + 1
        whole[1:] + 2

    names = traced(step).names
    assert names == [
        "given:before aten.mul.Tensor",
        "op:aten.mul.Tensor",
        "op:aten.t.default",
        "op:aten.mm.default",
        "op:aten.slice.Tensor",
        "given:before aten.add.Tensor",
        "op:aten.add.Tensor",
        "op:aten.slice.Tensor",
        "op:aten.add.Tensor",
    ]


def poke(tensor: torch.Tensor, value: float) -> None:
    """As a kernel that the dispatcher does not see."""
    ctypes.c_float.from_address(tensor.data_ptr()).value = value


def test_a_hidden_writer_shows_before_the_first_that_reads_it() -> None:
    x = torch.zeros(4)

    def step(hidden: bool) -> list[str]:
        def run() -> None:
            y = x + 1
            if hidden:
                poke(y, 7.0)
            y * 2
            y * 3

        return traced(run).names

    assert step(False) == ["given:before aten.add.Tensor", "op:aten.add.Tensor", *["op:aten.mul.Tensor"] * 2]
    expected = ["given:before aten.add.Tensor", "op:aten.add.Tensor", "given:overwritten before aten.mul.Tensor"]
    assert step(True) == [*expected, *["op:aten.mul.Tensor"] * 2]


def test_a_hidden_writer_behind_a_write_to_the_whole_shows_too() -> None:
    buffer = torch.ones(8)

    def run() -> None:
        buffer.zero_()
        poke(buffer[4:], 7.0)
        buffer[4:] + 1

    assert "given:before aten.add.Tensor" in traced(run).names


def test_a_view_of_what_was_written_whole_is_given_but_nobody_overwrote_it() -> None:
    buffer = torch.ones(8)

    def run() -> None:
        buffer[4:] + 1
        buffer.zero_()
        buffer[4:] + 1
        buffer[4:].add_(1)
        buffer * 2

    given = [name for name in traced(run).names if name.startswith("given")]
    assert given == [*["given:before aten.add.Tensor"] * 2, "given:before aten.mul.Tensor"]


def test_bytes_that_a_collective_brought_are_no_hidden_writers() -> None:
    x = torch.zeros(4)
    with Inside().step() as seen:
        y = x + 1
        poke(y, 7.0)
        seen.trace.wrote(y)
        y * 2
    assert seen.names == ["given:before aten.add.Tensor", "op:aten.add.Tensor", "op:aten.mul.Tensor"]


def test_memory_that_is_used_again_is_not_taken_for_what_it_was() -> None:
    origins, freed = Origins(), [torch.ones(4) for _ in range(5000)]
    place = placed(freed[0])[1]
    for tensor in freed:
        origins.leave(tensor, place, (1, 2))
    assert [origins.known(tensor, place) for tensor in freed] == [(1, 2)] * 5000
    del freed, tensor
    # Without care some of these have the identity of a freed one: an allocator gives back what it got.
    made = [torch.ones(4) for _ in range(5000)]
    assert [origins.known(tensor, place) for tensor in made] == [None] * 5000


def test_a_view_says_which_view_it_is_and_reads_nothing() -> None:
    x = torch.randn(8, 4)
    rows = [traced(lambda start=start: x[start : start + 2]).one("aten.slice.Tensor") for start in (2, 4)]
    assert rows[0].output != rows[1].output
    assert [inputs_of(row.flags) for row in rows] == [0, 0]
    other = traced(lambda: (x + 1)[2:4]).one("aten.slice.Tensor")
    assert other == rows[0]


def test_a_transposed_tensor_is_another_input_than_one_of_the_same_bytes() -> None:
    square = torch.randn(4, 4)
    found = {sources_of(lambda x=x: x @ square, "aten.mm.default") for x in (square, square.t())}
    assert len(found) == 2
    row = traced(lambda: square.t() @ square).one("aten.mm.default")
    assert row.flags & Flag.STRIDED


@pytest.mark.parametrize(
    "view", [lambda x: x.t(), lambda x: x[:, 1:3], lambda x: x[::2, ::3], lambda x: x[1].expand(5, 6), lambda x: x[:0]]
)
def test_one_changed_element_of_any_view_changes_the_input(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(6, 6)
    before = sources_of(lambda: view(x) + 1, "aten.add.Tensor")
    touched = 0
    for index in range(36):
        changed = x.clone()
        changed.view(torch.int32).view(-1)[index] ^= 1
        seen = not torch.equal(view(changed), view(x))
        touched += seen
        assert (sources_of(lambda c=changed: view(c) + 1, "aten.add.Tensor") != before) == seen
    assert touched == len({int(one) for one in view(torch.arange(36).view(6, 6)).reshape(-1)})


def test_a_conjugate_view_is_read_as_its_values() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    assert sources_of(lambda: x.conj() + 1, "aten.add.Tensor") != sources_of(lambda: x + 1, "aten.add.Tensor")
    assert not any("overwritten" in name for name in traced(lambda: (x + 1).conj() + 1).names)


def test_a_tensor_above_the_limit_keeps_its_form_and_says_so() -> None:
    x = torch.zeros(64)
    row = traced(lambda: x + 1, limit=100).one("aten.add.Tensor")
    assert str(row.form) == "float32[64]"
    assert Flag(row.flags & 0xFF) == Flag.SKIPPED | Flag.INPUT | Flag.PARTIAL
    assert row.output == (0, 0)


_PASSES = (Phase.FORWARD, Phase.BACKWARD)


def test_the_first_record_of_a_site_has_a_stack_and_the_backward_that_of_its_forward() -> None:
    model = Model()
    inside = Inside(model)
    with inside.step() as seen:
        model(torch.randn(2, 4)).sum().backward()
    sites = [row.site for row in seen.rows if row.site.name == "aten.mul.Tensor" and row.site.scope == "first"]
    forward, backward = (next(site for site in sites if site.phase is phase) for phase in _PASSES)
    assert seen.stack(forward)[0].file == "test_ops.py"
    assert "Layer.forward" in seen.stack(forward)[0].function
    assert seen.stack(backward) == seen.stack(forward)
    assert not any("torch/nn/modules/module.py" in frame.file for frame in seen.stack(forward))
    model.zero_grad()
    with inside.step() as again:
        model(torch.randn(2, 4)).sum().backward()
    assert not [note for note in again.notes if note["type"] == "stacks"]


def test_further_outputs_have_the_stack_of_the_first() -> None:
    seen = traced(lambda: torch.arange(4.0).split(2))
    assert seen.stack(seen.one("aten.split.Tensor#1").site) == seen.stack(seen.one("aten.split.Tensor").site) != ()


def test_what_stands_inside_quiet_is_not_recorded() -> None:
    def run() -> None:
        with quiet():
            torch.ones(3) + 1

    assert traced(run).names == []


def test_recorded_or_not_the_step_computes_the_same() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = Model()
        torch.nn.functional.dropout(model(torch.randn(2, 4))).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    plain, found = run(), []
    traced(lambda: found.extend(run()))
    assert all(map(torch.equal, plain, found))
    assert len(found) == 2


def test_a_backward_pass_in_another_thread_breaks_nothing() -> None:
    model = Model()

    def run() -> None:
        loss = model(torch.randn(2, 4)).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        model.first.inner.weight.grad + 1

    seen = traced(run, model)
    # That thread has no mode of torch's: what it left is there without a writer.
    assert seen.names[-2:] == ["given:before aten.add.Tensor", "op:aten.add.Tensor"]


def test_threads_that_are_traced_write_whole_records() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    def work(mode: Any) -> None:
        with mode:
            for _ in range(200):
                torch.ones(16) + 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Inside().step() as seen:
            mode = _get_current_dispatch_mode()
            threads = [threading.Thread(target=work, args=(mode,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(seen.of("aten.add.Tensor")) == 600
    assert not seen.of("before aten.add.Tensor", Kind.GIVEN)


def test_subclasses_of_tensors_are_seen_by_what_is_inside_them() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(torch.ones(3), torch.zeros(3))
    seen = traced(lambda: pair + 1)
    assert seen.names.count("op:aten.add.Tensor") == 2
    assert seen.skipped["subclass"] >= 1


def test_fake_tensors_and_function_transforms_work_as_without() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run() -> None:
        with FakeTensorMode():
            assert (torch.ones(3) + 1).shape == (3,)
        x = torch.arange(3.0)
        assert torch.equal(torch.func.grad(lambda y: (y * y).sum())(x), 2 * x)
        assert torch.equal(torch.func.vmap(lambda y: y * 2)(x), 2 * x)
        assert torch.func.jacrev(lambda y: y * y)(x).shape == (3, 3)

    assert "op:aten.mul.Tensor" in traced(run).names


def test_meta_and_sparse_tensors_are_counted_not_read() -> None:
    def run() -> None:
        torch.ones(3, device="meta") + 1
        torch.eye(3).to_sparse().coalesce()

    assert traced(run).skipped["unreadable"] > 0


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_region_runs_as_compiled_and_is_named(backend: str) -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(Layer(), torch.nn.Linear(4, 4))
    compiled = torch.compile(model[0], backend=backend)
    x = torch.randn(2, 4)
    expected = compiled(x)
    frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with Inside(torch.nn.Sequential(compiled, model[1])).step() as seen:
        again = compiled(x)
        (again.sum() + model[1](x).sum()).backward()
    assert torch.equal(expected, again)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames, "it was not compiled again"
    left = next(note for note in seen.notes if note["type"] == "left-alone")
    assert "0" in left["names"]
    torch._dynamo.reset()


def test_a_region_that_is_compiled_in_a_traced_step_is_compiled_all_the_same() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    seen = traced(lambda: compiled(torch.ones(3)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    assert any(note["type"] == "left-alone" for note in seen.notes)
    torch._dynamo.reset()


TWIN = """
import sys, json, random
sys.path[:0] = sys.argv[1:3]
import torch
ballast = [torch.empty(int(sys.argv[3]) * 7 + n) for n in range(int(sys.argv[3]))]
del ballast[:: 2]
sys.path.insert(0, f"{sys.argv[1]}/worker/trace")
import test_ops, insides
torch.manual_seed(1)
model = test_ops.Model()
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
def step():
    for _ in range(3):
        x = torch.randn(8, 4)
        part = torch.empty(8, 4)
        part[2:].copy_(x[2:])
        part[:2].zero_()
        loss = torch.utils.checkpoint.checkpoint(model, part, use_reentrant=False).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
rows = insides.traced(step, model).rows
print(json.dumps([[str(row.site), str(row.form), list(row.output), int(row.flags), row.source] for row in rows]))
"""


def test_two_processes_with_other_addresses_record_the_same() -> None:
    here, source = Path(__file__).parents[2], Path(__file__).parents[3] / "src"

    def run(ballast: int, **environment: str) -> str:
        command = [sys.executable, "-c", TWIN, str(here), str(source), str(ballast)]
        return subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout

    first = run(0, PYTHONHASHSEED="1")
    assert first.count("given") >= 10
    assert run(50, PYTHONHASHSEED="2", MALLOC_PERTURB_="165", MALLOC_MMAP_THRESHOLD_="4096") == first


def test_nothing_is_left_behind_when_a_step_ends() -> None:
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    traced(lambda: torch.ones(3))
    gc.collect()
    assert _len_torch_dispatch_stack() == 0


def test_a_copy_to_the_host_that_nobody_waits_for_is_an_artifact() -> None:
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    copy, to = (signature_of(one) for one in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default))
    assert unwaited(copy, (here, there, True), {}) == "non-blocking"
    assert unwaited(copy, (here, there), {"non_blocking": True}) == "non-blocking"
    assert unwaited(to, (there,), {"device": torch.device("cpu"), "non_blocking": True}) == "non-blocking"
    others = [(here, there, False), (there, here, True), (here, here, True)]
    assert [unwaited(copy, args, {}) for args in others] == [None] * 3
    assert unwaited(to, (there,), {"device": torch.device("cpu")}) is None


def test_what_a_device_holds_is_given_only_where_its_digest_turns_out_to_be_another() -> None:
    site = Site(Phase.FORWARD, Kind.GIVEN, "before aten.mm.default", "")
    reading = Reading(site, Form("float32", (2,)), (1, 2), 0)
    rows = Reader(None).rows([reading._replace(unless=(1, 2)), reading._replace(unless=(1, 3)), reading])
    assert len(rows) == 2


@pytest.fixture
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_buffers_of_collectives_are_not_read_in_flight() -> None:
    from torch.distributed import _functional_collectives as functional

    def step() -> None:
        x = torch.ones(3)
        torch.distributed.all_reduce(x)
        functional.all_reduce(x, "sum", torch.distributed.group.WORLD) + 1

    seen = traced(step)
    assert not any("all_reduce" in name or "allreduce" in name for name in seen.names)
    assert seen.skipped["in-flight"] >= 2
    assert inputs_of(seen.one("_c10d_functional.wait_tensor.default").flags) == 0


def test_a_mode_of_the_program_that_is_left_inside_a_step_ends_the_run() -> None:
    """It takes the tracer's mode off torch's stack, and what follows is not seen."""
    mode, step = FlopCounterMode(display=False), Inside().step()
    mode.__enter__()
    step.__enter__()
    mode.__exit__(None, None, None)
    with pytest.raises(TracingError, match="FLOP counter"):
        step.__exit__(None, None, None)
    _pop_mode()


def test_a_mode_that_is_entered_inside_a_step_and_stays_keeps_its_place() -> None:
    mode = FlopCounterMode(display=False)
    with Inside().step() as seen:
        mode.__enter__()
        _ = torch.ones(2) + 1
    assert "op:aten.add.Tensor" in seen.names
    before = mode.get_total_flops()
    _ = torch.ones(2, 2) @ torch.ones(2, 2)
    assert mode.get_total_flops() > before
    mode.__exit__(None, None, None)
    assert not _get_current_dispatch_mode_stack()


def test_an_array_of_numbers_among_the_arguments_counts_by_its_bytes() -> None:
    first, second = np.arange(4.0), np.arange(4.0) + 1
    assert plain_text([first]) == plain_text([first.copy()])
    assert plain_text([first]) != plain_text([second])
    assert plain_text([first]) != plain_text([first.astype(np.float32)])
    assert plain_text([np.array([object()])]) == plain_text([np.array([object()])])
