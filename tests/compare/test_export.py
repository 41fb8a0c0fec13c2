"""Parquet export: every record and block of every rank, digests as text, nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import artifacts
import evidence
from entries import Entry, tensor
from samebits.compare import export as module
from samebits.compare.certify import certify
from samebits.compare.export import export
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.records import Flag, Kind, Phase


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference", change=artifacts.skipped("parameter:w0"))


def test_every_record_of_every_rank_is_a_row_with_its_exact_digest(artifact: Artifact, tmp_path: Path) -> None:
    exported = export(artifact, tmp_path)
    rows = pq.read_table(exported.records).to_pylist()
    expected = []
    for file in (certify(artifact).file(rank) for rank in range(2)):
        for block in file.blocks:
            for seq, record in enumerate(file.records(block)):
                site, form = file.sites[record["site"]], file.forms[record["form"]]
                words = [int(word) for word in record["output"]]
                expected.append(
                    {
                        "rank": file.header.coordinates.rank if file.header else -1,
                        "moment": block.moment.name.lower(),
                        "step": block.step,
                        "seq": seq,
                        "phase": str(site.phase),
                        "kind": str(site.kind),
                        "name": site.name,
                        "scope": site.scope,
                        "occurrence": int(record["occurrence"]),
                        "dtype": form.dtype,
                        "shape": list(form.shape),
                        "flags": int(record["flags"]),
                        "input": None,
                        "output": b"".join(word.to_bytes(8, "little") for word in words).hex(),
                        "value": record["output"][:1].view("<f8")[0] if record["flags"] & Flag.VALUE else None,
                    }
                )
    assert rows == expected
    assert exported.record_rows == len(expected)


def test_blocks_carry_digest_and_chain_as_text(artifact: Artifact, tmp_path: Path) -> None:
    exported = export(artifact, tmp_path)
    rows = pq.read_table(exported.blocks).to_pylist()
    table = certify(artifact).table
    assert exported.block_rows == len(rows) == 14
    assert [row["digest"] + row["chain"] for row in rows] == [bytes(cell).hex() for rank in table for cell in rank]
    assert sum(row["skipped"] for row in rows) == 14


def test_no_digest_is_a_number(artifact: Artifact, tmp_path: Path) -> None:
    schema = pq.read_schema(export(artifact, tmp_path).records)
    assert {str(schema.field(name).type) for name in ("input", "output")} == {"string"}


def test_rows_are_written_group_by_group(artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pq.read_table(export(artifact, tmp_path / "whole").records)
    monkeypatch.setattr(module, "ROWS", 30)
    parts = export(artifact, tmp_path / "parts").records
    assert pq.ParquetFile(parts).num_row_groups > 3
    assert pq.read_table(parts).equals(whole)


def test_a_damaged_artifact_is_refused_and_nothing_written(tmp_path: Path) -> None:
    artifact = evidence.written(tmp_path / "arm")
    artifact.manifest.unlink()
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        export(artifact, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_that_fails_midway_leaves_the_old_file_and_no_other(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = export(artifact, tmp_path).records.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "_record_table", fail)
    with pytest.raises(OSError, match="No space"):
        export(artifact, tmp_path)
    assert (tmp_path / "records.parquet").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks.parquet", "records.parquet"]


def test_a_name_that_utf8_cannot_hold_is_spelled_out(tmp_path: Path) -> None:
    def rename(at: artifacts.At, entries: list[Entry]) -> list[Entry]:
        return [*entries, tensor(Phase.STATE, Kind.BUFFER, "a\ud800", (1,), 0)]

    exported = export(evidence.written(tmp_path / "arm", change=rename), tmp_path / "out")
    assert r"a\ud800" in pq.read_table(exported.records)["name"].to_pylist()
