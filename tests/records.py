"""Random records and blocks for property tests, and a recorder for them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from artifacts import coordinates, make_pins, make_plan
from entries import Entry
from samebits.fingerprint.format import Header
from samebits.fingerprint.records import RUNGS, Flag, Form, Kind, Moment, Phase, Site
from samebits.fingerprint.writer import Recorder

WORD = st.integers(0, 2**64 - 1)
SITE = st.builds(
    Site, st.sampled_from(Phase), st.sampled_from(Kind), st.text(max_size=8), st.sampled_from(["", "chunk0", "chunk1"])
)
FORM = st.builds(
    Form, st.sampled_from(["float32", "bfloat16", "int"]), st.lists(st.integers(0, 9), max_size=3).map(tuple)
)
FLAGS = st.integers(0, 7).map(Flag)
ENTRIES = st.lists(st.builds(Entry, SITE, FORM, st.tuples(WORD, WORD), FLAGS, WORD), max_size=12)
BLOCKS = st.lists(
    st.tuples(st.sampled_from(Moment), st.integers(0, 2**32), st.sampled_from(RUNGS), ENTRIES),
    max_size=6,
    unique_by=lambda block: block[:2],
)


def open_recorder(path: Path, rank: int = 0) -> Recorder:
    place = coordinates(rank, 2)
    return Recorder(path, Header(digest="d", launch="l", coordinates=place, plan=make_plan(), pins=make_pins(rank)))
