"""Digests of blocks: the same for the same records, whatever order they were taken in and however sites are numbered.

    layout digest = sha256( (site hash, form hash, occurrence, flags) of each record, sorted by site hash, occurrence )
    block digest  = sha256-128( head · layout digest · (input, output) of each record in that order )
    chain         = sha256-128( chain before · block digest )

A step's layout is nearly always that of the step before: it is sorted and hashed once, and compared from then on.
sha256 because processors have instructions for it (1.5 GB/s here, twice blake2b) and every Python has it.

The tables of a fingerprint file: the sites and forms that its records name by number.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samebits.fingerprint.records import (
    KNOWN_FLAGS,
    RECORD,
    Flag,
    Form,
    Kind,
    Moment,
    Phase,
    Site,
    form_hash,
    site_hash,
)

DIGEST_BYTES = 16
NO_CHAIN = bytes(DIGEST_BYTES)

Words = NDArray[np.uint64]

_WORDS = RECORD.itemsize // 8
_LAYOUT_WORDS = 2
_ROW = np.dtype([("site", "<u8", (2,)), ("form", "<u8"), ("occurrence", "<u4"), ("flags", "<u4")])
_HEAD = struct.Struct("<16sBBQQ32s").pack


@dataclass(frozen=True)
class BlockSum:
    """digest: 16 bytes. skipped: records that carry no digest."""

    digest: bytes
    skipped: int


@dataclass(frozen=True)
class _Layout:
    """columns: the first 16 bytes of each record as they lie in the file. order: sorts the records. rows, values: room
    to work in, kept because fresh memory costs more than the copying."""

    columns: bytes
    order: NDArray[np.intp]
    digest: bytes
    skipped: int
    rows: Words
    values: Words

    def sorted_values(self, words: Words) -> Words:
        """uint64 (n, 3): input and output of each record."""
        words.take(self.order, axis=0, out=self.rows, mode="clip")
        np.copyto(self.values, self.rows[:, _LAYOUT_WORDS:])
        return self.values


def words_of(data: bytes | memoryview, records: int, offset: int = 0) -> Words:
    """uint64 (records, 5): RECORDs as plain words, which numpy handles faster than structures."""
    return np.frombuffer(data, "<u8", records * _WORDS, offset).reshape(-1, _WORDS)


class BlockSums:
    """Sums up the blocks of one file. Its site and form numbers grow as the file's tables do."""

    def __init__(self) -> None:
        self._sites = np.empty((0, 2), "<u8")
        self._forms = np.empty(0, "<u8")
        self._layouts: dict[tuple[Moment, int], _Layout] = {}

    def extend(self, sites: Iterable[bytes], forms: Iterable[bytes]) -> None:
        """Hashes of further entries of the file's tables, in order."""
        self._sites = np.concatenate([self._sites, np.frombuffer(b"".join(sites), "<u8").reshape(-1, 2)])
        self._forms = np.concatenate([self._forms, np.frombuffer(b"".join(forms), "<u8")])

    def of(self, moment: Moment, step: int, rung: int, words: Words) -> BlockSum:
        """words: see `words_of`.

        Raises ValueError where a record has no site, form or known flag, or where the occurrences of a site are not
        0, 1, 2, ...
        """
        columns = words[:, :_LAYOUT_WORDS].tobytes()
        layout = self._layouts.get((moment, rung))
        if layout is None or layout.columns != columns:
            layout = self._layouts[moment, rung] = self._lay_out(columns)
        state = hashlib.sha256(_HEAD(b"samebits-block-1", moment, rung, step, len(words), layout.digest))
        state.update(layout.sorted_values(words).data)
        return BlockSum(state.digest()[:DIGEST_BYTES], layout.skipped)

    def _lay_out(self, columns: bytes) -> _Layout:
        numbers = np.frombuffer(columns, "<u4").reshape(-1, 4)
        rows = np.empty(len(numbers), dtype=_ROW)
        try:
            rows["site"] = self._sites[numbers[:, 0]]
            rows["form"] = self._forms[numbers[:, 1]]
        except IndexError as error:
            raise ValueError(f"a record's site or form is not in the tables: {error}") from error
        rows["occurrence"], rows["flags"] = numbers[:, 2], numbers[:, 3]
        order = np.lexsort((rows["occurrence"], rows["site"][:, 1], rows["site"][:, 0]))
        rows = rows[order]
        _check_rows(rows)
        skipped = int(np.count_nonzero(rows["flags"] & Flag.SKIPPED))
        return _Layout(
            columns=columns,
            order=order,
            digest=hashlib.sha256(rows.tobytes()).digest(),
            skipped=skipped,
            rows=np.empty((len(rows), _WORDS), "<u8"),
            values=np.empty((len(rows), _WORDS - _LAYOUT_WORDS), "<u8"),
        )


def _check_rows(rows: NDArray[np.void]) -> None:
    """rows: sorted."""
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (rows["site"][1:] == rows["site"][:-1]).all(axis=1)
    before = np.roll(rows["occurrence"], 1)
    if (rows["occurrence"] != np.where(again, before + 1, 0)).any():
        raise ValueError("a record stands twice, or an occurrence of its site is missing")
    if (rows["flags"] & ~np.uint32(KNOWN_FLAGS)).any():
        raise ValueError("a record has an unknown flag")


def next_chain(chain: bytes, digest: bytes) -> bytes:
    """Running digest of all blocks so far; starts as NO_CHAIN."""
    return hashlib.sha256(b"samebits-chain-1" + chain + digest).digest()[:DIGEST_BYTES]


def encode(sites: Sequence[Site], forms: Sequence[Form]) -> bytes:
    """Payload of a TABLES frame."""
    body = {
        "sites": [[site.phase, site.kind, site.name, site.scope] for site in sites],
        "forms": [[form.dtype, list(form.shape)] for form in forms],
    }
    return json.dumps(body).encode()


class Tables:
    """Filled frame by frame, built when asked for: who compares chains never needs them, who checks records needs
    the hashes only."""

    def __init__(self) -> None:
        self._site_rows: list[tuple[str, str, str, str]] = []
        self._form_rows: list[tuple[str, tuple[int, ...]]] = []
        self._known: set[tuple[object, ...]] = set()
        self._sites: list[Site] = []
        self._forms: list[Form] = []
        self._sums = BlockSums()
        self._summed = (0, 0)

    def add(self, payload: bytes) -> None:
        """payload: of a TABLES frame. Raises ValueError, TypeError or KeyError where it is none."""
        body = json.loads(payload)
        sites = [(phase, kind, name, scope) for phase, kind, name, scope in body["sites"]]
        forms = [(dtype, tuple(shape)) for dtype, shape in body["forms"]]
        unknown = ({row[0] for row in sites} - _PHASES.keys()) | ({row[1] for row in sites} - _KINDS.keys())
        if unknown:
            raise ValueError(f"unknown phase or kind {min(unknown)!r}")
        self._known |= {*sites, *forms}
        self._site_rows += sites
        self._form_rows += forms
        if len(self._known) != len(self._site_rows) + len(self._form_rows):
            raise ValueError("a site or form has two numbers")

    @property
    def sites(self) -> list[Site]:
        """In the order of their numbers."""
        for phase, kind, name, scope in self._site_rows[len(self._sites) :]:
            self._sites.append(Site(_PHASES[phase], _KINDS[kind], name, scope))
        return self._sites

    @property
    def forms(self) -> list[Form]:
        """In the order of their numbers."""
        self._forms += [Form(dtype, shape) for dtype, shape in self._form_rows[len(self._forms) :]]
        return self._forms

    @property
    def sums(self) -> BlockSums:
        """Knows all entries so far."""
        sites, forms = self._summed
        if (len(self._site_rows), len(self._form_rows)) != self._summed:
            self._sums.extend(
                (site_hash(*row) for row in self._site_rows[sites:]),
                (form_hash(*row) for row in self._form_rows[forms:]),
            )
            self._summed = len(self._site_rows), len(self._form_rows)
        return self._sums


_PHASES = {str(phase): phase for phase in Phase}
_KINDS = {str(kind): kind for kind in Kind}
