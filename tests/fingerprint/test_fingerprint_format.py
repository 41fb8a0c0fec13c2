"""The fingerprint file: what is written is read, and nothing that was changed afterwards is ever certified."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts import (
    At,
    make_pins,
    make_plan,
    planted,
    write_artifact,
    write_block,
)
from entries import Entry, tensor
from records import BLOCKS, open_recorder
from samebits.compare.certify import certify
from samebits.compare.collect import collect
from samebits.fingerprint import format
from samebits.fingerprint.format import CHECK_BYTES, HEAD, PREFIX, FrameKind
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import FingerprintFile, read
from samebits.fingerprint.records import Flag, Kind, Moment, Phase, Site


@pytest.fixture(autouse=True, scope="module")
def no_sync() -> Iterator[None]:
    """Thousands of files are written here; none has to survive a lost machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


def key(entry: Entry, occurrence: int) -> tuple[object, ...]:
    return entry.site, entry.form, occurrence, int(entry.flags), entry.source, entry.output


def keys_read(file: FingerprintFile, index: int) -> list[tuple[object, ...]]:
    return [
        (file.sites[site], file.forms[form], occurrence, flags, source, tuple(output.tolist()))
        for site, form, occurrence, flags, source, output in file.records(file.blocks[index])
    ]


def keys_written(entries: list[Entry]) -> list[tuple[object, ...]]:
    seen: dict[Site, int] = {}
    rows = []
    for entry in entries:
        rows.append(key(entry, seen.get(entry.site, 0)))
        seen[entry.site] = seen.get(entry.site, 0) + 1
    return rows


@settings(max_examples=60, deadline=None)
@given(blocks=BLOCKS, deep=st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[tuple[Moment, int, str, list[Entry]]], deep: bool
) -> None:
    path = tmp_path_factory.mktemp("trip") / "rank-00000.fp"
    recorder = open_recorder(path)
    for moment, step, rung, entries in blocks:
        write_block(recorder, At(0, moment, step, rung), entries)
        recorder.note({"step": step})
    recorder.seal()
    file = read(path, deep=deep)
    assert file.fault is None
    assert file.header is not None
    assert file.header.plan == make_plan()
    assert file.header.pins == make_pins(0)
    assert [(b.moment, b.step, b.rung, b.records) for b in file.blocks] == [(*b[:3], len(b[3])) for b in blocks]
    assert [note["step"] for note in file.notes] == [block[1] for block in blocks]
    for index, block in enumerate(blocks):
        assert keys_read(file, index) == keys_written(block[3])
        assert file.blocks[index].skipped == sum(bool(entry.flags & Flag.SKIPPED) for entry in block[3])


@dataclass(frozen=True)
class Sample:
    """A collected artifact, the bytes of rank 1, and where they may be damaged."""

    artifact: Artifact
    other: Artifact
    path: Path
    data: bytes

    @property
    def frames(self) -> list[bytes]:
        return list(split(self.data))

    def refusals(self, data: bytes) -> list[str]:
        """What is said of these bytes in place of rank 1's file: by certify after collect, and by collect."""
        collect(self.artifact.folder)
        try:
            self.path.write_bytes(data)
            return [refusal(lambda: certify(self.artifact)), refusal(lambda: collect(self.artifact.folder))]
        finally:
            self.path.write_bytes(self.data)

    def assert_refused(self, data: bytes) -> None:
        for message in self.refusals(data):
            assert "rank 1, rank-00001.fp: " in message
            assert "\n" not in message


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ArtifactError) as caught:
        call()
    return str(caught.value)


def split(data: bytes) -> Iterator[bytes]:
    start = len(PREFIX)
    while start < len(data):
        length = HEAD.unpack(data[start : start + HEAD.size])[2]
        end = start + HEAD.size + length + CHECK_BYTES
        yield data[start:end]
        start = end


def sealed_again(parts: list[bytes]) -> bytes:
    """The frames with numbers and checks as a writer would have made them."""
    out, before = [PREFIX], format.NO_CHECK
    for number, part in enumerate(parts):
        kind = format.KINDS[HEAD.unpack(part[: HEAD.size])[0]]
        data, before = format.frame(kind, number, part[HEAD.size : -CHECK_BYTES], before)
        out.append(data)
    return b"".join(out)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("sample")
    note = planted("ulp", "parameter:w0", rank=1, step=2)
    artifact = write_artifact(folder / "a", steps=2, notes=[note])
    other = write_artifact(folder / "b", steps=2, notes=[note], launch="another start")
    path = artifact.fingerprint(1)
    return Sample(artifact, other, path, path.read_bytes())


def test_sample_itself_is_certified(sample: Sample) -> None:
    collect(sample.artifact.folder)
    assert certify(sample.artifact).manifest.planted[0].name == "w0"
    assert sealed_again(sample.frames) == sample.data


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_refused(sample: Sample, place: float, bit: int) -> None:
    data = bytearray(sample.data)
    data[int(place * len(data))] ^= 1 << bit
    sample.assert_refused(bytes(data))


def test_one_flipped_bit_in_any_byte_is_seen_by_the_reader(tmp_path: Path) -> None:
    """Every byte after the header, every 7th of its long text, bits in turn, in a file of two small blocks."""
    recorder = open_recorder(tmp_path / "whole")
    for step in (1, 2):
        entries = [
            tensor(Phase.DATA, Kind.BATCH, "tokens", (1,), step),
            tensor(Phase.STATE, Kind.RNG, "torch", (9,), 0),
        ]
        write_block(recorder, At(0, Moment.STEP, step, "state"), entries)
    recorder.note({"type": "remark"})
    recorder.seal()
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / "changed"
    header = len(PREFIX) + len(next(split(whole)))
    for position in [*range(len(PREFIX) + HEAD.size), *range(0, header, 7), *range(header, len(whole))]:
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        assert read(path, deep=True).fault is not None, position


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True))
def test_cut_at_any_length_is_refused(sample: Sample, place: float) -> None:
    sample.assert_refused(sample.data[: int(place * len(sample.data))])


def test_cut_between_frames_is_refused(sample: Sample) -> None:
    ends = np.cumsum([len(PREFIX)] + [len(part) for part in sample.frames])[:-1]
    for end in ends:
        sample.assert_refused(sample.data[:end])


@settings(max_examples=40, deadline=None)
@given(junk=st.binary(min_size=1, max_size=100) | st.integers(0, 30).map(lambda number: b"\0" * (number + 1)))
def test_junk_at_the_end_is_refused(sample: Sample, junk: bytes) -> None:
    sample.assert_refused(sample.data + junk)


def test_a_frame_dropped_repeated_or_swapped_is_refused(sample: Sample) -> None:
    parts = sample.frames
    for index in range(len(parts)):
        sample.assert_refused(PREFIX + b"".join(parts[:index] + parts[index + 1 :]))
        sample.assert_refused(PREFIX + b"".join(parts[: index + 1] + parts[index:]))
        other = (index + 1) % len(parts)
        swapped = parts.copy()
        swapped[index], swapped[other] = parts[other], parts[index]
        sample.assert_refused(PREFIX + b"".join(swapped))


def test_frames_out_of_place_are_refused_even_with_right_checks(sample: Sample, tmp_path: Path) -> None:
    parts = sample.frames
    kinds = [format.KINDS[part[:4]] for part in parts]
    for index, kind in enumerate(kinds):
        if kind is not FrameKind.NOTE:
            sample.assert_refused(sealed_again(parts[:index] + parts[index + 1 :]))
            sample.assert_refused(sealed_again(parts[: index + 1] + parts[index:]))
    blocks = [index for index, kind in enumerate(kinds) if kind is FrameKind.RECORDS]
    first, second = blocks[1], blocks[2]
    swapped = parts.copy()
    swapped[first : first + 2], swapped[second : second + 2] = parts[second : second + 2], parts[first : first + 2]
    sample.assert_refused(sealed_again(swapped))
    (tmp_path / "swapped").write_bytes(sealed_again(swapped))
    assert "chain differs from the block digests" in str(read(tmp_path / "swapped", deep=False).fault)


@pytest.mark.parametrize(("old", "new"), [(b'"blocks": 4', b'"blocks": 5'), (b'"chain": "', b'"chain": "0')])
def test_a_seal_of_another_run_is_refused_even_with_right_checks(
    sample: Sample, tmp_path: Path, old: bytes, new: bytes
) -> None:
    parts = sample.frames
    index = next(index for index, part in enumerate(parts) if format.KINDS[part[:4]] is FrameKind.SEAL)
    assert old in parts[index]
    changed = parts[index].replace(old, new)
    (tmp_path / "x").write_bytes(sealed_again([*parts[:index], changed, *parts[index + 1 :]]))
    assert "counts or chain differ" in str(read(tmp_path / "x", deep=False).fault)


def test_a_changed_record_is_refused_even_with_right_checks(sample: Sample) -> None:
    """A writer that lost a bit between digest and disk."""
    parts = sample.frames
    for index, part in enumerate(parts):
        if format.KINDS[part[:4]] is FrameKind.RECORDS:
            data = bytearray(part)
            data[-CHECK_BYTES - 1] ^= 1
            sample.assert_refused(sealed_again([*parts[:index], bytes(data), *parts[index + 1 :]]))


def test_a_file_of_another_rank_start_or_arm_is_refused(sample: Sample, tmp_path: Path) -> None:
    sample.assert_refused(sample.artifact.fingerprint(0).read_bytes())
    twin = write_artifact(tmp_path / "twin", steps=2, arm="twin-1")
    sample.assert_refused(twin.fingerprint(1).read_bytes())
    after, before = sample.refusals(sample.other.fingerprint(1).read_bytes())
    assert "rank 1, rank-00001.fp: " in after
    assert "files of different starts of the arm" in before
    assert "rank 1: another start" in before


def test_files_swapped_between_ranks_name_both(sample: Sample, tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "swapped")
    shutil.copytree(sample.artifact.folder, artifact.folder)
    artifact.fingerprint(0).rename(tmp_path / "x")
    artifact.fingerprint(1).rename(artifact.fingerprint(0))
    (tmp_path / "x").rename(artifact.fingerprint(1))
    message = refusal(lambda: collect(artifact.folder))
    assert "rank 0, rank-00000.fp: was written by rank 1" in message
    assert "rank 1, rank-00001.fp: was written by rank 0" in message


def test_a_reader_of_tables_sees_every_flip_outside_the_records(sample: Sample, tmp_path: Path) -> None:
    path, start = tmp_path / "rank-00001.fp", len(PREFIX)
    for part in sample.frames:
        records = format.KINDS[part[:4]] is FrameKind.RECORDS
        inside = range(HEAD.size, len(part) - CHECK_BYTES) if records else range(0)
        for offset in [*range(HEAD.size), *range(HEAD.size, len(part), 41), len(part) - 1]:
            if offset not in inside:
                data = bytearray(sample.data)
                data[start + offset] ^= 1 << offset % 8
                path.write_bytes(data)
                assert read(path, deep=False).fault is not None, (part[:4], offset)
        start += len(part)


def test_records_are_checked_when_they_are_read(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "rank-00001.fp"
    offset = read(sample.path, deep=True).blocks[1].offset
    data = bytearray(sample.data)
    data[offset + 30] ^= 1
    path.write_bytes(data)
    file = read(path, deep=False)
    assert file.fault is None
    assert len(file.records(file.blocks[0])) == file.blocks[0].records
    with pytest.raises(ArtifactError, match=r"rank-00001\.fp: step 2: its digest differs"):
        file.records(file.blocks[1])


def test_another_format_is_named(sample: Sample) -> None:
    data = format.MAGIC + (7).to_bytes(4, "little") + sample.data[len(PREFIX) :]
    assert all("format is 7" in message or "check" in message for message in sample.refusals(data)[1:])
