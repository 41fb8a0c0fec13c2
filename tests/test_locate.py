"""What is named where a traced pair parts: the record that did it, never one that was brought a difference."""

from __future__ import annotations

import pytest

import artifacts
from samebits.artifact.site import Form, Kind, Phase
from samebits.judge.judgement import Symptom
from samebits.judge.locate import Located, Untraced
from traced import call, collective, given, located, on, op, other, received, sent

MM, ADD, SUM = (
    op("aten.mm.default", key=1, source=1, inputs=2),
    op("aten.add.Tensor", key=2, source=2),
    op("x.sum.default", key=3, source=3),
)
USUAL = [MM, ADD, SUM]


def found(reference: list, candidate: list, rank: int = 1, **limits: object) -> Located:
    """On one rank; the other records what the reference does."""
    result = located(lambda _: reference, on(rank, candidate, reference), **limits)
    assert isinstance(result, Located)
    return result


def place(result: Located) -> tuple[object, ...]:
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
    assert isinstance(result, Located)
    assert (result.origins[0].ranks, result.receivers, place(result)[1]) == ("1", "0", "aten.mm.default")


def test_a_collective_with_equal_inputs_everywhere_is_named_with_the_ranks_that_got_something_else() -> None:
    reduced = collective("0-2", key=4, source=4)
    result = located(lambda _: [MM, reduced], on(1, [MM, other(reduced)], [MM, reduced]), world=3)
    assert isinstance(result, Located)
    assert (place(result)[1], result.symptom, result.origins[0].ranks) == ("all_reduce", Symptom.COLLECTIVE, "1")


def test_the_second_collective_of_a_group_is_held_against_the_second_of_its_members() -> None:
    first, second = collective("0-1", key=4, source=4), collective("0-1", key=5, source=5)
    fed = collective("0-1", key=6, source=6)
    result = located(
        lambda _: [first, MM, second], lambda rank: [first, other(MM), fed] if rank else [first, MM, other(second)]
    )
    assert isinstance(result, Located)
    assert (result.origins[0].ranks, result.receivers) == ("1", "0")


def test_a_message_is_named_only_where_what_was_sent_is_equal() -> None:
    def pipeline(sender: list, receiver: list):
        return lambda rank: receiver if rank else sender

    usual = pipeline([MM, sent(1)], [received(0), ADD])
    broken = pipeline([MM, sent(1)], [other(received(0)), *later(ADD)])
    result = located(usual, broken)
    assert isinstance(result, Located)
    assert (place(result)[:3], result.symptom) == (("receive", "recv", "from 0"), Symptom.COLLECTIVE)
    brought = pipeline([other(MM), other(sent(1))], [other(received(0)), *later(ADD)])
    result = located(usual, brought)
    assert isinstance(result, Located)
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
    assert isinstance(result, Located)
    assert (result.origins[0].ranks, result.receivers) == ("0", "1")


def test_who_finds_bytes_that_another_rank_reduced_unseen_is_no_origin() -> None:
    """torch's DDP reduces gradients where nothing is seen; they are found in the update."""
    found_there = op("before aten._foreach_add_.List", "AdamW", key=5, source=None, kind=Kind.GIVEN, phase=Phase.UPDATE)
    result = located(lambda _: [MM, found_there], lambda rank: [other(MM) if rank else MM, other(found_there)], world=2)
    assert isinstance(result, Located)
    assert (result.origins[0].ranks, result.receivers, place(result)[1]) == ("1", "0", "aten.mm.default")


def test_of_two_ranks_that_find_other_bytes_the_one_in_the_earlier_phase_is_the_origin() -> None:
    early = given("before aten.add.Tensor", key=4)
    late = op("before aten._foreach_add_.List", "AdamW", key=5, source=None, kind=Kind.GIVEN, phase=Phase.UPDATE)
    result = located(lambda _: [early, late], lambda rank: [other(early) if rank else early, other(late)])
    assert isinstance(result, Located)
    assert (result.origins[0].ranks, result.receivers) == ("1", "0")


def test_a_receiver_whose_sender_was_not_traced_says_so() -> None:
    reduced = collective("0-2", key=4, source=4)
    result = located(lambda _: [MM, reduced], on(1, [MM, other(reduced)], [MM, reduced]), world=3, traced=[0, 1])
    assert isinstance(result, Located)
    assert result.unseen == {2}


@pytest.mark.parametrize(("rank", "step"), [(1, 2), (1, 3), (0, 2)])
def test_a_pair_that_parts_where_nothing_was_traced_says_where(rank: int, step: int) -> None:
    part = artifacts.altered("metric:lm loss", rank=rank, step=step)
    result = located(lambda _: USUAL, on(0, [other(MM)], USUAL), traced=[0], also=[part])
    if step == 3:
        assert isinstance(result, Located)
        assert (result.origins[0].ranks, result.receivers) == ("0", "1")
    else:
        assert result == Untraced(step, "step", frozenset({rank}))


def test_data_that_was_read_differs_before_any_operation() -> None:
    plain = artifacts.altered("metric:lm loss", rank=1, step=4)
    read = op("tokens", "", key=1, source=None, kind=Kind.BATCH, phase=Phase.DATA)
    result = located(lambda _: [read, *USUAL], on(1, [other(read), *later(MM, ADD)], [read, *USUAL]), also=[plain])
    assert isinstance(result, Located)
    assert (place(result)[:2], result.symptom) == (("batch", "tokens"), Symptom.DATA)


# what the ranks suggest


def test_the_largest_group_of_origins_is_named_first() -> None:
    result = located(lambda _: USUAL, lambda rank: [MM, ADD, other(SUM)] if rank else [other(MM), ADD, SUM], world=3)
    assert isinstance(result, Located)
    assert [origin.ranks for origin in result.origins] == ["1-2", "0"]
    assert place(result)[1] == "x.sum.default"


@pytest.mark.parametrize(
    ("ranks", "says"), [({0, 1, 2}, "All 3 ranks"), ({1}, "Rank 1 alone"), ({0, 2}, "Ranks 0, 2 of 3")]
)
def test_the_pattern_over_ranks_is_said(ranks: set[int], says: str) -> None:
    result = located(lambda _: USUAL, lambda rank: [other(MM), ADD, SUM] if rank in ranks else USUAL, world=3)
    assert isinstance(result, Located)
    assert result.pattern.startswith(says)


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
    from samebits.judge.symptom import WORDS

    assert set(Kind) == set(WORDS)
