"""What is named where a traced pair parts: the record that did it, never one that was brought a difference."""

from __future__ import annotations

import dataclasses

import pytest

import artifacts
from samebits.compare.results import Symptom
from samebits.fingerprint.records import Flag, Form, Kind, Phase
from samebits.localize.locate import LocatedPair, Untraced
from traced import call, collective, given, located, on, op, other, received, sent

MM, ADD, SUM = (
    op("aten.mm.default", key=1, source=1, inputs=2),
    op("aten.add.Tensor", key=2, source=2),
    op("x.sum.default", key=3, source=3),
)
USUAL = [MM, ADD, SUM]


def found(reference: list, candidate: list, rank: int = 1, **limits: object) -> LocatedPair:
    """On one rank; the other records what the reference does."""
    result = located(lambda _: reference, on(rank, candidate, reference), **limits)
    assert isinstance(result, LocatedPair)
    return result


def place(result: LocatedPair) -> tuple[object, ...]:
    assert result.cause is not None
    return result.cause.kind, result.cause.name, result.cause.scope, result.cause.occurrence


def later(*entries):
    """The same records with other inputs and outputs: what a difference spreads to."""
    return [
        op(one.site.name, one.site.scope, key=("later", one.output), source=("later", one.source)) for one in entries
    ]


def test_equal_pairs_have_nothing_to_locate() -> None:
    assert located(lambda _: USUAL, lambda _: USUAL) is None


def test_the_first_operation_with_equal_inputs_and_another_output_is_named() -> None:
    result = found(USUAL, [other(MM), *later(ADD, SUM)])
    assert place(result) == ("op", "aten.mm.default", "layer", 0)
    assert (result.symptom, result.inputs, result.origins[0].ranks, result.receivers) == (Symptom.KERNEL, 2, "1", "")


def test_what_is_equal_before_it_is_counted() -> None:
    before = found([MM, MM, collective("0-1"), ADD, SUM], [MM, MM, collective("0-1"), ADD, other(SUM)]).before
    assert (before.operations, before.gemms, before.collectives) == (3, 2, 1)


@pytest.mark.parametrize(
    "name", ["aten.view.default", "aten.slice.Tensor", "aten.cat.default", "aten.add_.Tensor", "aten.copy_.default"]
)
def test_an_operation_that_cannot_differ_is_never_named(name: str) -> None:
    fixed = op(name, key=7, source=7)
    result = found([MM, SUM, fixed], [MM, SUM, other(fixed)])
    assert result.cause is None
    assert name in result.refused
    assert result.suspect == "op:x.sum.default in layer"


@pytest.mark.parametrize(
    "name",
    ["aten.sum.dim_IntList", "aten.index_add_.default", "lib.add.default", "aten.embedding_dense_backward.default"],
)
def test_an_operation_that_sums_or_belongs_to_a_library_is_named(name: str) -> None:
    able = op(name, key=7, source=7)
    assert place(found([MM, able], [MM, other(able)]))[1] == name


def test_bytes_that_nobody_seen_wrote_are_named_and_not_their_reader() -> None:
    bytes_ = given("before aten.add.Tensor", "layer.mlp", key=5)
    result = found([MM, bytes_, ADD], [MM, other(bytes_), *later(ADD)])
    assert place(result)[:3] == ("given", "before aten.add.Tensor", "layer.mlp")


def test_a_call_is_named_where_it_goes_another_way_inside() -> None:
    inside = op("aten.slice.Tensor", "layer/Split.forward", key=4, source=4)
    moved = op("aten.slice.Tensor", "layer/Split.forward", key=5, source=5, form=Form("float32", (4, 3)))
    whole = call("Split.forward", "layer", key=6, source=6)
    result = found([MM, inside, whole], [MM, moved, other(whole)])
    assert place(result)[:3] == ("call", "Split.forward", "layer")
    assert "aten.slice.Tensor" in result.refused


def test_an_operation_inside_a_call_is_named_itself_where_its_inputs_are_equal() -> None:
    inside = op("lib.sum.default", "layer/Split.forward", key=4, source=4)
    whole = call("Split.forward", "layer", key=6, source=6)
    assert place(found([MM, inside, whole], [MM, other(inside), other(whole)]))[1] == "lib.sum.default"


def test_a_call_whose_inputs_differ_does_not_cover_what_happens_inside() -> None:
    inside = op("aten.slice.Tensor", "layer/Split.forward", key=4, source=4)
    moved = op("aten.slice.Tensor", "layer/Split.forward", key=5, source=5)
    whole, fed = call("Split.forward", "layer", key=6, source=6), call("Split.forward", "layer", key=7, source=7)
    assert place(found([MM, inside, whole], [MM, moved, fed]))[0] == "op"


def test_a_draw_is_an_rng_fault() -> None:
    drawn = op("aten.bernoulli_.float", key=4, source=4)
    assert found([MM, drawn], [MM, other(drawn)]).symptom is Symptom.RNG


def test_an_operation_more_is_named_where_it_was_done() -> None:
    more = op("aten.tanh.default", key=9, source=9)
    result = found(USUAL, [MM, more, ADD, SUM])
    assert (place(result)[1], result.symptom) == ("aten.tanh.default", Symptom.CONTROL_FLOW)
    assert (
        result.around
        == (
            "op:aten.mm.default in layer",
            "op:aten.tanh.default in layer  <- only in the candidate",
            "op:aten.add.Tensor in layer",
            "op:x.sum.default in layer",
        )[0:4]
    )


def test_an_operation_less_is_named_where_it_was_left_out() -> None:
    result = found(USUAL, [MM, SUM])
    assert (place(result)[1], result.symptom) == ("aten.add.Tensor", Symptom.CONTROL_FLOW)
    assert "only in the reference" in "".join(result.around)


def test_one_more_of_a_kind_that_is_there_already_is_found_by_what_follows() -> None:
    more = op("aten.add.Tensor", key="more", source="more")
    result = found([MM, ADD, SUM], [MM, more, ADD, SUM])
    assert place(result) == ("op", "aten.add.Tensor", "layer", 0)
    assert result.symptom is Symptom.CONTROL_FLOW
    assert "only the candidate did it" in result.why


def test_other_arguments_are_control_flow() -> None:
    result = found(USUAL, [MM, op("aten.add.Tensor", key=2, source="other argument"), SUM])
    assert (place(result)[1], result.symptom) == ("aten.add.Tensor", Symptom.CONTROL_FLOW)


# across ranks


def test_who_is_brought_a_difference_by_a_collective_is_a_receiver() -> None:
    reduced = collective("0-1", key=4, source=4)
    fed = collective("0-1", key=5, source=5)
    result = located(lambda _: [MM, reduced], lambda rank: [other(MM), fed] if rank else [MM, other(reduced)])
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers, place(result)[1]) == ("1", "0", "aten.mm.default")


def test_a_collective_with_equal_inputs_everywhere_is_named_with_the_ranks_that_got_something_else() -> None:
    reduced = collective("0-2", key=4, source=4)
    result = located(lambda _: [MM, reduced], on(1, [MM, other(reduced)], [MM, reduced]), world=3)
    assert isinstance(result, LocatedPair)
    assert (place(result)[1], result.symptom, result.origins[0].ranks) == ("all_reduce", Symptom.COLLECTIVE, "1")


def test_the_second_collective_of_a_group_is_held_against_the_second_of_its_members() -> None:
    first, second = collective("0-1", key=4, source=4), collective("0-1", key=5, source=5)
    fed = collective("0-1", key=6, source=6)
    result = located(
        lambda _: [first, MM, second], lambda rank: [first, other(MM), fed] if rank else [first, MM, other(second)]
    )
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers) == ("1", "0")


def test_a_message_is_named_only_where_what_was_sent_is_equal() -> None:
    def pipeline(sender: list, receiver: list):
        return lambda rank: receiver if rank else sender

    usual = pipeline([MM, sent(1)], [received(0), ADD])
    broken = pipeline([MM, sent(1)], [other(received(0)), *later(ADD)])
    result = located(usual, broken)
    assert isinstance(result, LocatedPair)
    assert (place(result)[:3], result.symptom) == (("receive", "recv", "from 0"), Symptom.COLLECTIVE)
    brought = pipeline([other(MM), other(sent(1))], [other(received(0)), *later(ADD)])
    result = located(usual, brought)
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, place(result)[1], result.receivers) == ("0", "aten.mm.default", "1")


def test_messages_are_held_against_each_other_by_their_number_whatever_their_order() -> None:
    """The second one sent is waited for first."""
    second, first = received(0, number=2), received(0, number=1)
    sends = [sent(1, number=1), MM, sent(1, number=2)]
    usual = lambda rank: [second, first] if rank else sends  # noqa: E731
    broken = lambda rank: (  # noqa: E731
        [other(second), first] if rank else [sends[0], other(MM), other(sends[2])]
    )
    result = located(usual, broken)
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers) == ("0", "1")


def test_who_finds_bytes_that_another_rank_reduced_unseen_is_no_origin() -> None:
    """torch's DDP reduces gradients where nothing is seen; they are found in the update."""
    found_there = op("before aten._foreach_add_.List", "AdamW", key=5, source=None, kind=Kind.GIVEN, phase=Phase.UPDATE)
    result = located(lambda _: [MM, found_there], lambda rank: [other(MM) if rank else MM, other(found_there)], world=2)
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers, place(result)[1]) == ("1", "0", "aten.mm.default")


def test_of_two_ranks_that_find_other_bytes_the_one_in_the_earlier_phase_is_the_origin() -> None:
    early = given("before aten.add.Tensor", key=4)
    late = op("before aten._foreach_add_.List", "AdamW", key=5, source=None, kind=Kind.GIVEN, phase=Phase.UPDATE)
    result = located(lambda _: [early, late], lambda rank: [other(early) if rank else early, other(late)])
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers) == ("1", "0")


def test_a_receiver_whose_sender_was_not_traced_says_so() -> None:
    reduced = collective("0-2", key=4, source=4)
    result = located(lambda _: [MM, reduced], on(1, [MM, other(reduced)], [MM, reduced]), world=3, traced=[0, 1])
    assert isinstance(result, LocatedPair)
    assert result.unseen == {2}


@pytest.mark.parametrize(("rank", "step"), [(1, 2), (1, 3), (0, 2)])
def test_a_pair_that_parts_where_nothing_was_traced_says_where(rank: int, step: int) -> None:
    part = artifacts.altered("metric:lm loss", rank=rank, step=step)
    result = located(lambda _: USUAL, on(0, [other(MM)], USUAL), traced=[0], also=[part])
    if step == 3:
        assert isinstance(result, LocatedPair)
        assert (result.origins[0].ranks, result.receivers) == ("0", "1")
    else:
        assert result == Untraced(step, "step", frozenset({rank}))


def test_data_that_was_read_differs_before_any_operation() -> None:
    plain = artifacts.altered("metric:lm loss", rank=1, step=4)
    read = op("tokens", "", key=1, source=None, kind=Kind.BATCH, phase=Phase.DATA)
    result = located(lambda _: [read, *USUAL], on(1, [other(read), *later(MM, ADD)], [read, *USUAL]), also=[plain])
    assert isinstance(result, LocatedPair)
    assert (place(result)[:2], result.symptom) == (("batch", "tokens"), Symptom.DATA)


def test_bytes_that_a_hidden_writer_left_do_not_blame_the_call_in_which_they_are_read() -> None:
    bytes_ = given("overwritten before aten.mm.default", "layer/Scaled.backward", key=5)
    whole = call("Scaled.backward", "layer", key=6, source=6)
    result = found([MM, whole], [MM, bytes_, other(whole)])
    assert place(result)[:2] == ("given", "overwritten before aten.mm.default")


def test_of_calls_inside_each_other_the_outermost_with_equal_inputs_is_named() -> None:
    inside = op("aten.slice.Tensor", "layer/Outer.forward/Inner.forward", key=4, source=4)
    moved = op("aten.slice.Tensor", "layer/Outer.forward/Inner.forward", key=5, source=5)
    inner, outer = call("Inner.forward", "layer/Outer.forward", key=6, source=6), call("Outer.forward", "layer", key=7)
    result = found([MM, inside, inner, outer], [MM, moved, other(inner), other(outer)])
    assert place(result)[:2] == ("call", "Outer.forward")
    fed = call("Outer.forward", "layer", key=8, source=8)
    result = found([MM, inside, inner, outer], [MM, moved, other(inner), fed])
    assert place(result)[:2] == ("call", "Inner.forward")


def test_a_call_is_named_in_the_phase_in_which_it_went_another_way() -> None:
    def again(entry):
        return dataclasses.replace(entry, site=dataclasses.replace(entry.site, phase=Phase.BACKWARD))

    inside = op("aten.slice.Tensor", "layer/Split.forward", key=4, source=4)
    moved = op("aten.slice.Tensor", "layer/Split.forward", key=5, source=5)
    whole = call("Split.forward", "layer", key=6, source=6)
    usual = [inside, whole, again(inside), again(whole)]
    result = found(usual, [inside, whole, again(moved), again(other(whole))])
    assert result.cause is not None
    assert (result.cause.name, result.cause.phase) == ("Split.forward", "backward")


def test_a_collective_that_was_given_something_else_is_not_told_to_have_changed_it() -> None:
    """Its inputs differ, and nothing recorded made that: a hidden writer before it."""
    reduced = collective("0-1", key=4, source=4)
    fed = collective("0-1", key=5, source=5)
    result = located(lambda _: [MM, reduced], lambda rank: [MM, fed] if rank else [MM, other(reduced)])
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers, result.symptom) == ("1", "0", Symptom.KERNEL)
    assert "its inputs differ already" in result.why


def test_a_collective_too_many_on_all_ranks_is_control_flow() -> None:
    more, usual = collective("0-1", key=9, source=9), collective("0-1", key=4, source=4)
    result = located(lambda _: [MM, usual], lambda _: [MM, more, usual])
    assert isinstance(result, LocatedPair)
    assert result.symptom is Symptom.CONTROL_FLOW


def test_a_collective_whose_inputs_were_not_all_read_is_not_named() -> None:
    reduced = collective("0-1", key=4, source=4)
    reduced = dataclasses.replace(reduced, flags=reduced.flags | Flag.PARTIAL)
    result = located(lambda _: [MM, reduced], lambda _: [MM, other(reduced)])
    assert isinstance(result, LocatedPair)
    assert result.cause is None


def test_a_receiver_of_a_tensor_of_another_shape_is_a_receiver() -> None:
    sent_ = [collective("0-2", key=4, source=4, name="all_to_all_single")]
    fed = collective("0-2", key=5, source=5, name="all_to_all_single")
    other_shape = dataclasses.replace(other(sent_[0]), form=Form("float32", (2, 8)))
    result = located(lambda _: [MM, *sent_], lambda rank: [MM, other_shape] if rank else [other(MM), fed], world=3)
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, result.receivers, place(result)[1]) == ("0", "1-2", "aten.mm.default")


def test_a_functional_collective_that_waits_makes_no_rank_an_origin() -> None:
    wait = op("_c10d_functional.wait_tensor.default", key=4, source=4)
    result = located(lambda _: [MM, wait], lambda rank: [MM, other(wait)] if rank else [other(MM), other(wait)])
    assert isinstance(result, LocatedPair)
    assert (result.origins[0].ranks, place(result)[1]) == ("0", "aten.mm.default")


def test_two_operations_in_another_order_are_no_operation_too_many() -> None:
    first, second = op("aten.add.Tensor", key=1, source=1), op("aten.add.Tensor", key=2, source=2)
    result = found([MM, first, second], [MM, second, first])
    assert "only the" not in result.why


def test_an_untraced_sender_is_asked_for_where_origins_only_found_something() -> None:
    late = op("before aten.add.Tensor", "AdamW", key=5, source=None, kind=Kind.GIVEN, phase=Phase.UPDATE)
    reduced = collective("1-2", key=4, source=4)
    usual = {0: [MM, late], 1: [MM, reduced, late]}
    broken = {0: [MM, other(late)], 1: [MM, other(reduced), late]}
    result = located(lambda rank: usual.get(rank, []), lambda rank: broken.get(rank, []), world=3, traced=[0, 1])
    assert isinstance(result, LocatedPair)
    assert result.unseen == {2}


# what the ranks suggest


def test_the_largest_group_of_origins_is_named_first() -> None:
    result = located(lambda _: USUAL, lambda rank: [MM, ADD, other(SUM)] if rank else [other(MM), ADD, SUM], world=3)
    assert isinstance(result, LocatedPair)
    assert [origin.ranks for origin in result.origins] == ["1-2", "0"]
    assert place(result)[1] == "x.sum.default"


@pytest.mark.parametrize(
    ("ranks", "says"), [({0, 1, 2}, "All 3 ranks"), ({1}, "Rank 1 alone"), ({0, 2}, "Ranks 0, 2 of 3")]
)
def test_the_pattern_over_ranks_is_said(ranks: set[int], says: str) -> None:
    result = located(lambda _: USUAL, lambda rank: [other(MM), ADD, SUM] if rank in ranks else USUAL, world=3)
    assert isinstance(result, LocatedPair)
    assert result.pattern.startswith(says)


def test_the_pattern_is_of_the_ranks_that_part_at_the_named_place() -> None:
    result = located(lambda _: USUAL, lambda rank: [MM, ADD, other(SUM)] if rank else [other(MM), ADD, SUM], world=3)
    assert isinstance(result, LocatedPair)
    assert result.pattern.startswith("Ranks 1-2 of 3")


@pytest.mark.parametrize(
    "name", ["aten.silu.default", "aten.tanh.default", "aten.addcmul.default", "aten.pow.Tensor_Scalar"]
)
def test_what_a_vectorised_kernel_may_round_otherwise_can_be_named(name: str) -> None:
    able = op(name, key=7, source=7)
    assert place(found([MM, able], [MM, other(able)]))[1] == name


def test_the_table_tells_which_cells_differ() -> None:
    small, large = Form("float32", (4, 8)), Form("bfloat16", (64, 8))
    usual = [op("x.sum.default", key=n, source=n, form=small) for n in range(3)]
    usual += [op("x.sum.default", key=n, source=n, form=large) for n in range(3, 5)]
    broken = [*usual[:3], *(other(one) for one in usual[3:])]
    cells = [(cell.dtype, cell.shape, cell.same, cell.differing) for cell in found(usual, broken).cells]
    assert cells == [("bfloat16", "[64, 8]", 0, 2), ("float32", "[4, 8]", 3, 0)]


def test_what_was_brought_a_difference_is_in_no_cell() -> None:
    first, second = op("x.sum.default", key=1, source=1), op("x.sum.default", key=2, source=2)
    cells = found([first, second], [other(first), *later(second)]).cells
    assert sum(cell.same + cell.differing for cell in cells) <= 1


def test_kinds_of_records_have_words() -> None:
    from samebits.compare.diagnosis import WORDS

    assert set(Kind) == set(WORDS)
