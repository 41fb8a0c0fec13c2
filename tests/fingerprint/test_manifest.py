"""The manifest: read back as written, small at thousands of ranks, useless after any change."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts import coordinates, make_pins, make_plan
from samebits.fingerprint.manifest import (
    ArtifactError,
    BlockName,
    Manifest,
    Planted,
    RankFile,
    Unhealthy,
    read_manifest,
    read_table,
    run_fingerprint,
    write_table,
)
from samebits.fingerprint.paths import Artifact, write_whole
from samebits.spec.pins import Pins


def rank_file(rank: int, world: int, pins: Pins | None = None) -> RankFile:
    return RankFile(
        rank=rank,
        bytes=100 + rank,
        check=f"{rank:032x}",
        records=10,
        skipped=1,
        deep=True,
        coordinates=coordinates(rank, world),
        pins=pins or make_pins(rank),
    )


def manifest(world: int = 2, **changes: Any) -> Manifest:
    made = Manifest(
        digest="d",
        launch="l",
        plan=make_plan(world=world),
        blocks=(BlockName(moment="step", step=1, rungs=(("state", 1), ("metrics", 1))),),
        ranks=tuple(rank_file(rank, world) for rank in range(world)),
        planted=(Planted(fault="ulp", rank=0, moment="step", step=1, kind="parameter", name="w", scope=""),),
        unhealthy=(Unhealthy(rank=0, step=1, name="lm loss", value="nan"),),
        table="0" * 64,
        clocks="",
        run_fingerprint="sb1-x",
    )
    return dataclasses.replace(made, **changes)


TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


@settings(max_examples=40, deadline=None)
@given(pins=st.lists(st.builds(Pins, software=TEXTS, environment=TEXTS, placement=TEXTS), min_size=1, max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, pins: list[Pins]) -> None:
    artifact = Artifact(tmp_path_factory.mktemp("trip"))
    written = manifest(ranks=tuple(rank_file(rank, len(pins), own) for rank, own in enumerate(pins)))
    written.write(artifact)
    assert read_manifest(artifact) == written
    assert list(artifact.folder.iterdir()) == [artifact.manifest]


def test_pins_that_ranks_share_stand_once(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    libraries = {f"lib{number}.so": f"{number:040x}" for number in range(200)}
    pins = [make_pins(rank, libraries=libraries) for rank in range(64)]
    pins[5] = make_pins(5, libraries={**libraries, "lib0.so": "other"})
    written = manifest(ranks=tuple(rank_file(rank, 64, pins[rank]) for rank in range(64)))
    written.write(artifact)
    assert artifact.manifest.stat().st_size < 64_000
    again = read_manifest(artifact)
    assert again == written
    assert again.ranks[0].pins.libraries is again.ranks[63].pins.libraries


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_change_or_cut_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, cut: bool
) -> None:
    artifact = Artifact(tmp_path_factory.mktemp("changed"))
    manifest().write(artifact)
    data = bytearray(artifact.manifest.read_bytes())
    position = int(place * len(data))
    data[position] ^= 1 << bit
    artifact.manifest.write_bytes(data[:position] if cut else data)
    with pytest.raises(ArtifactError, match=r"manifest\.json: does not match its own digest.*samebits collect"):
        read_manifest(artifact)


def test_a_longer_one_is_refused(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    manifest().write(artifact)
    artifact.manifest.write_bytes(artifact.manifest.read_bytes() + b"\n")
    with pytest.raises(ArtifactError, match="does not match its own digest"):
        read_manifest(artifact)


def test_a_missing_one_means_not_finished(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json: cannot be read.*the arm is not finished"):
        read_manifest(Artifact(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 1}, "format is 1, must be 2"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"ranks": [{"rank": 0}]}, "pins"),
        ({"pins": []}, "list index out of range"),
        ({"digest": 3}, "Manifest.digest: is 3"),
    ],
)
def test_another_content_under_a_right_digest_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    artifact = Artifact(tmp_path)
    manifest().write(artifact)
    content = json.loads(artifact.manifest.read_bytes().splitlines()[0]) | change
    body = json.dumps(content).encode()
    from samebits.fingerprint.manifest import _own_digest

    artifact.manifest.write_bytes(body + b"\n" + _own_digest(body) + b"\n")
    with pytest.raises(ArtifactError, match=f"manifest.json: .*{said}"):
        read_manifest(artifact)


def test_table_is_read_as_written(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    table = np.arange(2 * 1 * 32, dtype=np.uint8).reshape(2, 1, 32)
    sealed = manifest(table=write_table(artifact, table))
    assert (read_table(artifact, sealed) == table).all()
    with pytest.raises(ArtifactError, match="is not the table"):
        read_table(artifact, manifest())
    artifact.table.unlink()
    with pytest.raises(ArtifactError, match=r"table\.npy: cannot be read"):
        read_table(artifact, sealed)


def test_table_of_another_shape_is_refused(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    sealed = manifest(table=write_table(artifact, np.zeros((2, 2, 32), np.uint8)))
    with pytest.raises(ArtifactError, match=r"table\.npy: has shape \(2, 2, 32\)"):
        read_table(artifact, sealed)


def test_run_fingerprint_depends_on_digest_ranks_and_their_order() -> None:
    one, two = bytes(16), bytes(range(16))
    known = {
        run_fingerprint("d", [one, two]),
        run_fingerprint("d", [two, one]),
        run_fingerprint("d", [one]),
        run_fingerprint("d", [one, one]),
        run_fingerprint("e", [one, two]),
    }
    assert len(known) == 5
    assert all(len(text) == 30 and text.startswith("sb1-") for text in known)


def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    write_whole(path, b"older")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"newer")
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]
