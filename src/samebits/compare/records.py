"""Compares two blocks of one rank record by record. Records with the same identity are held against each other.

A record's identity is its site (phase, kind, name, scope) and its occurrence: its number among those of the same site
in that block. Each file numbers its own sites and forms (dtype and shape); they are renumbered in common, so that whole
columns can be compared at once: a step may hold tens of thousands of records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samebits.compare.align import DIGEST_BYTES, Pair, Pairing
from samebits.compare.certify import Certified
from samebits.compare.results import Difference, RecordView
from samebits.fingerprint.paths import ArtifactError
from samebits.fingerprint.reader import FingerprintFile
from samebits.fingerprint.records import Flag, Form, Kind, Moment, Phase, Site

_PHASES = {phase: number for number, phase in enumerate(Phase)}
_SUMMARIES = frozenset({(Kind.METRIC, "params-norm")})
"""Metrics of the state that the step ends with: recorded with the update, and consequences of the state's items."""

Key = tuple[Moment, int]
Ignored = Callable[["Item"], bool]


@dataclass(frozen=True)
class Item:
    """One identity that differs.

    reference, candidate: row in that side's block, None without counterpart. same_form: whether dtype and shape are
    equal. same_input: None where an input digest is not known on both sides.
    """

    site: Site
    occurrence: int
    reference: int | None
    candidate: int | None
    same_form: bool
    same_input: bool | None

    @property
    def phase(self) -> int:
        """Position of its phase in a step, in causal order."""
        return len(_PHASES) if self.is_summary else _PHASES[self.site.phase]

    @property
    def is_summary(self) -> bool:
        return (self.site.kind, self.site.name) in _SUMMARIES

    @property
    def lone(self) -> bool:
        return self.reference is None or self.candidate is None


@dataclass(frozen=True)
class BlockDifference:
    """What differs between two blocks.

    items: identities that differ, in the reference's order; what only the candidate has stands before the next record
    that both have, and a summary of state behind all. compared: number of identities in either block. sites: of all.
    """

    items: tuple[Item, ...]
    compared: int
    sites: frozenset[Site]
    reference: Side
    candidate: Side

    def view(self, item: Item) -> Difference:
        site = item.site
        return Difference(
            phase=site.phase,
            kind=site.kind,
            name=site.name,
            scope=site.scope,
            occurrence=item.occurrence,
            reference=self.reference.view(item.reference),
            candidate=self.candidate.view(item.candidate),
        )


@dataclass(frozen=True)
class Side:
    """One block of one rank of one arm. records: RECORD, shape (n,)."""

    file: FingerprintFile
    records: NDArray[np.void]

    def site(self, row: int) -> Site:
        return self.file.sites[int(self.records[row]["site"])]

    def form(self, row: int) -> Form:
        return self.file.forms[int(self.records[row]["form"])]

    def view(self, row: int | None) -> RecordView | None:
        return None if row is None else record_view(self.file, self.records[row])


def record_view(file: FingerprintFile, record: np.void) -> RecordView:
    output = np.asarray(record["output"], "<u8")
    return RecordView(
        form=str(file.forms[record["form"]]),
        digest=output.tobytes().hex(),
        value=repr(float(output[:1].view("<f8")[0])) if record["flags"] & Flag.VALUE else None,
        skipped=bool(record["flags"] & Flag.SKIPPED),
    )


class RankRecords:
    """The two files of one rank. Raises ArtifactError where they are not those that the tables were made from."""

    def __init__(self, pairing: Pairing, rank: int) -> None:
        self.pairing = pairing
        self.rank = rank
        self._files = opened(pairing.reference, rank), opened(pairing.candidate, rank)
        sites: dict[Site, int] = {}
        forms: dict[Form, int] = {}
        self._sites = [_numbers(file.sites, sites) for file in self._files]
        self._forms = [_numbers(file.forms, forms) for file in self._files]
        self._site_of = list(sites)
        self._blocks = [{(block.moment, block.step): block for block in file.blocks} for file in self._files]

    def count(self, pairs: Sequence[Pair]) -> int:
        """Count the candidate's records in these blocks."""
        return sum(self._blocks[1][pair.moment, pair.step].records for pair in pairs)

    def compare(self, pair: Pair) -> BlockDifference:
        ours = self._side(self.pairing.reference, 0, pair.reference)
        theirs = self._side(self.pairing.candidate, 1, pair.candidate)
        keys, other_keys = self._keys(ours, 0), self._keys(theirs, 1)
        _, rows, other_rows = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
        changed = self._changed(ours.records[rows], theirs.records[other_rows])
        lone = np.setdiff1d(np.arange(len(keys)), rows, assume_unique=True)
        other_lone = np.setdiff1d(np.arange(len(other_keys)), other_rows, assume_unique=True)
        places = _places(len(other_keys), rows, other_rows)
        both = np.flatnonzero(changed)
        found = [
            *zip(
                rows[both].astype(float).tolist(), self._both(ours, theirs, rows[both], other_rows[both]), strict=True
            ),
            *zip(lone.astype(float).tolist(), self._alone(ours, 0, lone), strict=True),
            *zip(places[other_lone].tolist(), self._alone(theirs, 1, other_lone), strict=True),
        ]
        found.sort(key=lambda entry: (entry[0], entry[1].candidate or 0))
        present = {self._site_of[number] for number in np.unique(np.concatenate([keys, other_keys]) >> np.uint64(32))}
        return BlockDifference(
            items=tuple(sorted((item for _, item in found), key=lambda item: item.is_summary)),
            compared=len(rows) + len(lone) + len(other_lone),
            sites=frozenset(present),
            reference=ours,
            candidate=theirs,
        )

    def _side(self, certified: Certified, which: int, column: int) -> Side:
        name, file = certified.manifest.blocks[column], self._files[which]
        block = self._blocks[which].get((Moment[name.moment.upper()], name.step))
        table = certified.table[self.rank, column, :DIGEST_BYTES].tobytes()
        if block is None or block.digest != table:
            raise ArtifactError(
                f"{file.path}: its {name.moment} block of step {name.step} is not the one in the table; "
                f"`samebits collect {file.path.parent}` again"
            )
        return Side(file, file.records(block))

    def _keys(self, side: Side, which: int) -> NDArray[np.uint64]:
        keys: NDArray[np.uint64] = self._sites[which][side.records["site"]] << np.uint64(32)
        keys |= side.records["occurrence"].astype(np.uint64)
        if len(np.unique(keys)) != len(keys):
            raise ArtifactError(f"{side.file.path}: a record stands twice in one block; run the arm again")
        return keys

    def _changed(self, ours: NDArray[np.void], theirs: NDArray[np.void]) -> NDArray[np.bool_]:
        changed: NDArray[np.bool_] = self._forms[0][ours["form"]] != self._forms[1][theirs["form"]]
        changed |= (ours["flags"] != theirs["flags"]) | (ours["input"] != theirs["input"])
        changed |= (ours["output"] != theirs["output"]).any(axis=1)
        return changed

    def _both(self, ours: Side, theirs: Side, rows: NDArray[np.intp], other_rows: NDArray[np.intp]) -> list[Item]:
        """Build the items of identities that both sides have."""
        first, second = ours.records[rows], theirs.records[other_rows]
        form: NDArray[np.bool_] = self._forms[0][first["form"]] == self._forms[1][second["form"]]
        form &= (first["flags"] ^ second["flags"]) & Flag.SKIPPED == 0
        known = (first["flags"] & second["flags"] & Flag.INPUT != 0).tolist()
        equal = (first["input"] == second["input"]).tolist()
        columns = (
            rows.tolist(),
            other_rows.tolist(),
            form.tolist(),
            first["occurrence"].tolist(),
            first["site"].tolist(),
        )
        sites = ours.file.sites
        return [
            Item(sites[site], occurrence, row, other, same_form, same_input if is_known else None)
            for is_known, same_input, row, other, same_form, occurrence, site in zip(
                known, equal, *columns, strict=True
            )
        ]

    def _alone(self, side: Side, which: int, rows: NDArray[np.intp]) -> list[Item]:
        """Build the items of identities that only this side has."""
        records, sites = side.records[rows], side.file.sites
        columns = (rows, records["occurrence"], records["site"])
        return [
            Item(
                sites[site],
                occurrence,
                None if which else row,
                row if which else None,
                same_form=False,
                same_input=None,
            )
            for row, occurrence, site in zip(*(one.tolist() for one in columns), strict=True)
        ]


def opened(certified: Certified, rank: int) -> FingerprintFile:
    """Open a rank's file without keeping it: a process may not have thousands of files open."""
    return dataclasses.replace(certified, _files={}).file(rank)


def _numbers(entries: list[Site] | list[Form], known: dict[Site, int] | dict[Form, int]) -> NDArray[np.uint64]:
    """Number a file's entries so that equal ones of both files share a number; `known` is extended."""
    return np.array([known.setdefault(entry, len(known)) for entry in entries], np.uint64)  # type: ignore[arg-type]


def _places(length: int, rows: NDArray[np.intp], other_rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return where each row of the candidate stands among the rows of the reference.

    rows, other_rows: matching rows of reference and candidate. A row without counterpart is put half a place before the
    reference's row of the next record that both have, or behind all.
    """
    places = np.full(length + 1, np.inf)
    places[other_rows] = rows - 0.5
    following = np.where(np.isfinite(places[:-1]), np.arange(length), length)
    return places[np.minimum.accumulate(following[::-1])[::-1]] if length else places[:0]
