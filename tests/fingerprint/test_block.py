"""Block digests: equal for equal records in any order, different for anything else."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts import At, write_block
from entries import Entry, tensor
from records import ENTRIES, open_recorder
from samebits.fingerprint.block import BlockSums, words_of
from samebits.fingerprint.reader import read
from samebits.fingerprint.records import Flag, Form, Kind, Moment, Phase, Site


@settings(max_examples=60, deadline=None)
@given(entries=ENTRIES, seed=st.integers(0, 2**32))
def test_block_digest_knows_no_order_and_no_numbers(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("order")
    # Records of one site keep their order among themselves: it gives them their occurrence.
    shuffled = random.Random(seed).sample(entries, len(entries))
    again = {site: [e for e in entries if e.site == site] for site in {e.site for e in entries}}
    shuffled = [again[entry.site].pop(0) for entry in shuffled]
    first, second = open_recorder(folder / "a"), open_recorder(folder / "b", rank=1)
    for number in range(5):
        second.site(Site(Phase.DATA, Kind.BUFFER, f"other numbers {number}"))
        second.form(Form("other", (number,)))
    at = At(0, Moment.STEP, 3, "state")
    assert write_block(first, at, entries) == write_block(second, at, shuffled)


@settings(max_examples=100, deadline=None)
@given(
    entries=ENTRIES.filter(bool),
    data=st.data(),
    what=st.sampled_from(["output", "site", "form", "flags", "source", "drop", "repeat", "moment", "step", "rung"]),
)
def test_block_digest_sees_any_change(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject, what: str
) -> None:
    folder = tmp_path_factory.mktemp("change")
    at = At(0, Moment.STEP, 3, "state")
    other_at = {"moment": At(0, Moment.SAVED, 3, "state"), "step": At(0, Moment.STEP, 4, "state")}
    other_at["rung"] = At(0, Moment.STEP, 3, "metrics")
    index = data.draw(st.integers(0, len(entries) - 1))
    old, bit = entries[index], data.draw(st.integers(0, 63))
    site = Site(old.site.phase, old.site.kind, old.site.name + "x", old.site.scope)
    edits: dict[str, list[Entry]] = {
        "output": [Entry(old.site, old.form, (old.output[0], old.output[1] ^ 1 << bit), old.flags, old.source)],
        "site": [Entry(site, old.form, old.output, old.flags, old.source)],
        "form": [Entry(old.site, Form("f", (*old.form.shape, 1)), old.output, old.flags, old.source)],
        "flags": [Entry(old.site, old.form, old.output, old.flags ^ Flag.INPUT, old.source)],
        "source": [Entry(old.site, old.form, old.output, old.flags, old.source ^ 1 << bit)],
        "drop": [],
        "repeat": [old, old],
    }
    changed = entries[:index] + edits.get(what, [old]) + entries[index + 1 :]
    first = write_block(open_recorder(folder / "a"), at, entries)
    second = write_block(open_recorder(folder / "b"), other_at.get(what, at), changed)
    assert first != second


def test_a_name_cannot_pass_for_name_and_scope() -> None:
    assert Site(Phase.STATE, Kind.RNG, "ab", "c").hash() != Site(Phase.STATE, Kind.RNG, "a", "bc").hash()
    assert Form("float32", (1, 23)).hash() != Form("float32", (12, 3)).hash()


def test_occurrences_are_counted_per_site_and_block(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    one, two = (tensor(Phase.DATA, Kind.BATCH, name, (1,), 0) for name in ("one", "two"))
    write_block(recorder, At(0, Moment.STEP, 1, "state"), [one, two, one, one])
    write_block(recorder, At(0, Moment.STEP, 2, "state"), [one, two])
    recorder.seal()
    file = read(tmp_path / "a", deep=True)
    assert [file.records(block)["occurrence"].tolist() for block in file.blocks] == [[0, 0, 1, 2], [0, 0]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, 0, 0, 0), (0, 0, 0, 0)], "stands twice"),
        ([(0, 0, 1, 0)], "occurrence of its site is missing"),
        ([(0, 0, 0, 0), (0, 0, 2, 0)], "occurrence of its site is missing"),
        ([(0, 0, 0, 32)], "unknown flag"),
        ([(1, 0, 0, 0)], "not in the tables"),
        ([(0, 1, 0, 0)], "not in the tables"),
    ],
)
def test_records_that_no_recorder_writes_have_no_digest(rows: list[tuple[int, int, int, int]], said: str) -> None:
    """rows: site, form, occurrence, flags."""
    sums = BlockSums()
    sums.extend([bytes(16)], [bytes(8)])
    data = b"".join(struct.pack("<IIIIQQQ", *row, 0, 1, 2) for row in rows)
    with pytest.raises(ValueError, match=said):
        sums.of(Moment.STEP, 1, 2, words_of(data, len(rows)))
