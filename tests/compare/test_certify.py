"""Certify: what a comparison reads is what collect sealed, or nothing is compared."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts import altered, write_artifact
from samebits.compare import certify as certify_module
from samebits.compare import collect as collect_module
from samebits.compare.certify import certify
from samebits.compare.collect import collect
from samebits.fingerprint.manifest import Manifest, read_manifest, read_table, write_table
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import read


def refusal(artifact: Artifact) -> str:
    with pytest.raises(ArtifactError) as caught:
        certify(artifact)
    return str(caught.value)


def collected(folder: Path, **options: Any) -> Artifact:
    artifact = write_artifact(folder, **options)
    collect(artifact.folder)
    return artifact


def flip_record(artifact: Artifact, rank: int, block: int) -> None:
    path = artifact.fingerprint(rank)
    data = bytearray(path.read_bytes())
    data[read(path, deep=True).blocks[block].offset + 25] ^= 2
    path.write_bytes(data)


def test_certified_files_are_those_of_the_table(tmp_path: Path) -> None:
    artifact = collected(tmp_path / "a")
    certified = certify(artifact)
    assert certified.manifest == read_manifest(artifact)
    file = certified.file(1)
    assert certified.file(1) is file
    assert [block.chain for block in file.blocks] == [bytes(row[16:]) for row in certified.table[1]]
    assert len(file.records(file.blocks[0])) == file.blocks[0].records


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("damage", ["gone", "cut", "longer", "other", "surplus"])
def test_certify_sees_a_file_changed_after_collect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: bool, damage: str
) -> None:
    artifact, other = collected(tmp_path / "a"), write_artifact(tmp_path / "b", launch="some-other-start-19")
    path = artifact.fingerprint(1)
    assert path.stat().st_size == other.fingerprint(1).stat().st_size
    damages: dict[str, Callable[[], object]] = {
        "gone": path.unlink,
        "cut": lambda: os.truncate(path, 4000),
        "longer": lambda: path.write_bytes(path.read_bytes() + b"\0"),
        "other": lambda: shutil.copy(other.fingerprint(1), path),
        "surplus": lambda: shutil.copy(path, artifact.fingerprint(2)),
    }
    damages[damage]()
    monkeypatch.setattr(certify_module, "DEEP_BYTES", 0 if light else 1 << 30)
    message = refusal(artifact)
    assert ("rank-00002.fp" if damage == "surplus" else "rank 1") in message
    assert "\n" not in message


def test_certify_of_small_artifacts_sees_a_flipped_record(tmp_path: Path) -> None:
    artifact = collected(tmp_path / "a")
    flip_record(artifact, 1, 2)
    assert "rank 1, rank-00001.fp: frame" in refusal(artifact)


def test_large_artifacts_see_a_flipped_record_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = collected(tmp_path / "a")
    monkeypatch.setattr(certify_module, "DEEP_BYTES", 0)
    flip_record(artifact, 1, 2)
    file = certify(artifact).file(1)
    file.records(file.blocks[1])
    with pytest.raises(ArtifactError, match=r"rank-00001\.fp: saved state of step 2: its digest differs"):
        file.records(file.blocks[2])


def test_large_artifacts_see_a_flipped_table_when_a_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = collected(tmp_path / "a")
    path = artifact.fingerprint(1)
    data = bytearray(path.read_bytes())
    data[data.index(b"exp_avg")] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(certify_module, "DEEP_BYTES", 0)
    certified = certify(artifact)
    certified.file(0)
    with pytest.raises(ArtifactError, match=r"rank 1, rank-00001\.fp: frame 1 \(tables\): checksum differs"):
        certified.file(1)


def test_large_artifacts_rely_on_what_the_ranks_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = write_artifact(tmp_path / "a")
    monkeypatch.setattr(collect_module, "DEEP_BYTES", 0)
    assert [rank.deep for rank in collect(artifact.folder).ranks] == [False, False]
    assert [rank.deep for rank in collect(artifact.folder, deep=True).ranks] == [True, True]
    flip_record(artifact, 1, 2)
    with pytest.raises(ArtifactError, match="rank 1"):
        collect(artifact.folder, deep=True)


def test_manifest_and_table_of_two_artifacts_do_not_pass(tmp_path: Path) -> None:
    artifact = collected(tmp_path / "a")
    other = collected(tmp_path / "b", change=altered("parameter:w0", rank=0, step=1))
    own = artifact.table.read_bytes()
    shutil.copy(other.table, artifact.table)
    assert "table.npy: is not the table that the manifest seals" in refusal(artifact)
    shutil.copy(other.manifest, artifact.manifest)
    assert "rank 0, rank-00000.fp: ends with check" in refusal(artifact)
    artifact.table.write_bytes(own)
    assert "table.npy: is not the table that the manifest seals" in refusal(artifact)


def test_large_artifacts_see_a_piece_taken_out_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = collected(tmp_path / "a")
    monkeypatch.setattr(certify_module, "DEEP_BYTES", 0)
    data = artifact.fingerprint(1).read_bytes()
    artifact.fingerprint(1).write_bytes(data[:5000] + data[5040:])
    told = f"rank 1, rank-00001.fp: has {len(data) - 40} bytes, the manifest says {len(data)}"
    assert told in refusal(artifact)


def test_a_file_exchanged_after_it_was_certified_is_refused(tmp_path: Path) -> None:
    artifact, other = collected(tmp_path / "a"), write_artifact(tmp_path / "b", launch="some-other-start-19")
    certified = certify(artifact)
    shutil.copy(other.fingerprint(1), artifact.fingerprint(1))
    with pytest.raises(ArtifactError, match=r"rank 1, rank-00001\.fp: ends with check"):
        certified.file(1)


def test_a_table_that_is_not_of_the_files_is_refused(tmp_path: Path) -> None:
    artifact = collected(tmp_path / "a")
    table = read_table(artifact, read_manifest(artifact)).copy()
    table[1, 2, 3] ^= 1
    resealed(artifact, table=write_table(artifact, table))
    assert "rank 1, rank-00001.fp: its block digests are not those of table.npy" in refusal(artifact)


def resealed(artifact: Artifact, **changes: Any) -> Manifest:
    manifest = dataclasses.replace(read_manifest(artifact), **changes)
    manifest.write(artifact)
    return manifest


def test_a_manifest_that_contradicts_its_table_is_refused(tmp_path: Path) -> None:
    artifact = collected(tmp_path / "a")
    ranks = read_manifest(artifact).ranks
    resealed(artifact, run_fingerprint="sb1-other")
    assert "manifest.json: its run fingerprint is not that of table.npy" in refusal(artifact)
    resealed(artifact, ranks=ranks[:1])
    assert "table.npy: has shape (2, 7, 32)" in refusal(artifact)
    resealed(artifact, ranks=ranks[::-1])
    assert "manifest.json: does not have all 2 ranks" in refusal(artifact)


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), name=st.sampled_from(["manifest", "table"]))
def test_one_flipped_bit_in_manifest_or_table_is_refused(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, name: str
) -> None:
    artifact = Artifact(_shared(tmp_path_factory))
    path = getattr(artifact, name)
    whole = path.read_bytes()
    data = bytearray(whole)
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        message = refusal(artifact)
    finally:
        path.write_bytes(whole)
    assert message.startswith(str(path))
    assert "\n" not in message


_FOLDERS: list[Path] = []


def _shared(factory: pytest.TempPathFactory) -> Path:
    if not _FOLDERS:
        _FOLDERS.append(collected(factory.mktemp("shared") / "a").folder)
    return _FOLDERS[0]
