"""Exports an artifact as Parquet, for pandas, polars and DuckDB: one row a record, one row a block, all ranks.

    export(Artifact(folder), Path("out"))       # out/records.parquet, out/blocks.parquet

Only a certified artifact is exported. Digests are text of fixed length, never numbers.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from samebits.compare.certify import Certified, certify
from samebits.compare.records import opened
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.reader import Block, FingerprintFile
from samebits.fingerprint.records import Flag

ROWS = 1 << 16
"""Rows that are gathered for one row group; a rank's last block may add to them."""

RECORDS = pa.schema(
    [
        ("rank", pa.int32()),
        ("moment", pa.string()),
        ("step", pa.int64()),
        ("seq", pa.int32()),
        ("phase", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("scope", pa.string()),
        ("occurrence", pa.uint32()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("flags", pa.uint32()),
        ("input", pa.string()),
        ("output", pa.string()),
        ("value", pa.float64()),
    ]
)
BLOCKS = pa.schema(
    [
        ("rank", pa.int32()),
        ("moment", pa.string()),
        ("step", pa.int64()),
        ("rung", pa.string()),
        ("records", pa.int64()),
        ("skipped", pa.int64()),
        ("digest", pa.string()),
        ("chain", pa.string()),
        ("started_ns", pa.int64()),
        ("ended_ns", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Exported:
    """The two files that were written, with their numbers of rows."""

    records: Path
    blocks: Path
    record_rows: int
    block_rows: int


def export(artifact: Artifact, folder: Path) -> Exported:
    """Write both files, each under another name until it is complete. Raises ArtifactError for a damaged artifact."""
    certified = certify(artifact)
    folder.mkdir(parents=True, exist_ok=True)
    records, blocks = folder / "records.parquet", folder / "blocks.parquet"
    record_rows = write(records, RECORDS, groups(_record_tables(certified)))
    block_rows = write(blocks, BLOCKS, groups(_block_tables(certified)))
    return Exported(records, blocks, record_rows, block_rows)


def write(path: Path, schema: Any, tables: Iterator[Any]) -> int:
    """Write tables as Parquet, a row group each, and return the number of rows. A failure leaves no file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    rows = 0
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table, row_group_size=len(table))
                rows += len(table)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def groups(tables: Iterator[Any]) -> Iterator[Any]:
    """Gather small tables into row groups."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _record_tables(certified: Certified) -> Iterator[Any]:
    for file in certified.manifest.ranks:
        rank = _Rank(file.rank, opened(certified, file.rank))
        for block in rank.file.blocks:
            yield _record_table(rank, block)


class _Rank:
    """One rank's file, and the columns of its tables as text."""

    def __init__(self, rank: int, file: FingerprintFile) -> None:
        self.rank = rank
        self.file = file
        self.sites = [
            pa.array([_utf8(text(site)) for site in file.sites], pa.string())
            for text in map(operator.attrgetter, ("phase", "kind", "name", "scope"))
        ]
        self.dtypes = pa.array([form.dtype for form in file.forms], pa.string())
        self.shapes = pa.array([list(form.shape) for form in file.forms], pa.list_(pa.int64()))


def _utf8(text: str) -> str:
    """Escape lone surrogates, which Parquet cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _record_table(rank: _Rank, block: Block) -> Any:
    records = rank.file.records(block)
    count = len(records)
    sites, forms = (pa.array(np.ascontiguousarray(records[name])) for name in ("site", "form"))
    known = (records["flags"] & Flag.INPUT) != 0
    valued = (records["flags"] & Flag.VALUE) != 0
    columns = [
        np.full(count, rank.rank, np.int32),
        [block.moment.name.lower()] * count,
        np.full(count, block.step, np.int64),
        np.arange(count, dtype=np.int32),
        *(column.take(sites) for column in rank.sites),
        np.ascontiguousarray(records["occurrence"]),
        rank.dtypes.take(forms),
        rank.shapes.take(forms),
        np.ascontiguousarray(records["flags"]),
        [f"{int(word):016x}" if there else None for word, there in zip(records["input"], known, strict=True)],
        _hex(records["output"]),
        pa.array(np.ascontiguousarray(records["output"][:, 0]).view("<f8"), mask=~valued, from_pandas=False),
    ]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, type=entry.type)
        for column, entry in zip(columns, RECORDS, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=RECORDS)


def _hex(outputs: NDArray[np.uint64]) -> list[str]:
    """Return each output digest as 32 hex digits, in the order of its bytes."""
    text = outputs.tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]


def _block_tables(certified: Certified) -> Iterator[Any]:
    for file in certified.manifest.ranks:
        rows = [
            {
                "rank": file.rank,
                "moment": block.moment.name.lower(),
                "step": block.step,
                "rung": block.rung,
                "records": block.records,
                "skipped": block.skipped,
                "digest": block.digest.hex(),
                "chain": block.chain.hex(),
                "started_ns": block.started,
                "ended_ns": block.ended,
            }
            for block in opened(certified, file.rank).blocks
        ]
        yield pa.Table.from_pylist(rows, schema=BLOCKS)
