"""The recorder: what it leaves behind when a rank is killed, a disk is full or it is used out of order."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entries import tensor
from records import open_recorder
from samebits.fingerprint.reader import read
from samebits.fingerprint.records import Kind, Moment, Phase, Site
from samebits.fingerprint.writer import Recorder, RecorderError

FULL = "No space left on device"

WRITER = """
import sys, time
sys.path[:0] = {tests!r}
from pathlib import Path
from records import open_recorder
from test_recorder import add_block, half_a_block
recorder = open_recorder(Path({path!r}))
"""


def add_block(recorder: Recorder, step: int, records: int = 20) -> bytes:
    half_a_block(recorder, step, records)
    return recorder.end(1, 2)


def half_a_block(recorder: Recorder, step: int, records: int) -> None:
    recorder.begin(Moment.STEP, step, "state")
    for number in range(records):
        entry = tensor(Phase.STATE, Kind.PARAMETER, f"w{number}", (8,), step)
        recorder.record(recorder.site(entry.site), recorder.form(entry.form), entry.output)


def run_writer(path: Path, body: str) -> subprocess.Popen[str]:
    head = WRITER.format(tests=[str(Path(__file__).parents[1]), str(Path(__file__).parent)], path=str(path))
    return subprocess.Popen([sys.executable, "-c", head + body], stdout=subprocess.PIPE, text=True)


def lines(writer: subprocess.Popen[str]) -> Iterator[str]:
    assert writer.stdout is not None
    return iter(writer.stdout.readline, "")


def kill(writer: subprocess.Popen[str]) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL


def test_killed_in_mid_step_leaves_all_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.fp"
    body = """
for step in range(1, 6):
    add_block(recorder, step)
half_a_block(recorder, 6, 10)
print("in step 6", flush=True)
time.sleep(60)
"""
    writer = run_writer(path, body)
    assert next(lines(writer)) == "in step 6\n"
    kill(writer)
    file = read(path, deep=True)
    assert [block.step for block in file.blocks] == [1, 2, 3, 4, 5]
    assert file.fault is not None
    assert "not sealed" in file.fault
    assert "last whole block: step 5" in file.fault
    assert file.valid_bytes == len(file.data)


def test_killed_at_any_moment_leaves_a_valid_prefix(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.fp"
    body = """
for step in range(1, 10**6):
    add_block(recorder, step)
    print(step, flush=True)
"""
    writer = run_writer(path, body)
    said = [next(lines(writer)) for _ in range(200)]
    kill(writer)
    file = read(path, deep=True)
    assert [block.step for block in file.blocks] == list(range(1, len(file.blocks) + 1))
    assert len(file.blocks) >= len(said)
    assert file.fault is not None
    assert "not sealed" in file.fault or "cut" in file.fault


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {getattr(error, 'stderr', error)}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(recorder: Recorder) -> str:
    def steps() -> None:
        for step in range(1, 10_000):
            add_block(recorder, step)

    with pytest.raises(RecorderError) as caught:
        steps()
    return str(caught.value)


def test_full_disk_is_named_and_nothing_is_sealed(small_disk: Path) -> None:
    path = small_disk / "rank-00000.fp"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8192))
    recorder = open_recorder(path)
    message = fill(recorder)
    assert message.startswith(f"{path}: cannot be written ({FULL})")
    assert "free space" in message
    ballast.unlink()
    with pytest.raises(RecorderError, match=r"nothing can be added, an earlier write failed \(No space left"):
        recorder.note({"type": "too late"})
    file = read(path, deep=True)
    assert file.seal is None
    assert file.fault is not None
    assert len(file.blocks) > 10
    del file


def test_limit_of_the_file_size_is_named_and_nothing_is_sealed(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.fp"
    body = """
import resource
from samebits.fingerprint.writer import RecorderError
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    for step in range(1, 1000):
        add_block(recorder, step)
except RecorderError as error:
    print(error, flush=True)
try:
    recorder.seal()
except RecorderError as error:
    print(error, flush=True)
"""
    writer = run_writer(path, body)
    said, _ = writer.communicate(timeout=60)
    first, second = said.splitlines()
    assert first.startswith(f"{path}: cannot be written (File too large)")
    assert second.startswith(f"{path}: sealed inside a block")
    file = read(path, deep=True)
    assert file.seal is None
    assert file.fault is not None
    assert file.fault.endswith(f"last whole block: step {len(file.blocks)})")


def failing(number: int) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_disk_full_at_the_seal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "rank-00000.fp"
    recorder = open_recorder(path)
    add_block(recorder, 1)
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    with pytest.raises(RecorderError, match=r"rank-00000\.fp: cannot be written \(No space left"):
        recorder.seal()
    monkeypatch.undo()
    assert read(path, deep=True).fault is not None


def test_disk_full_at_the_close_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = open_recorder(tmp_path / "rank-00000.fp")
    add_block(recorder, 1)
    monkeypatch.setattr(os, "close", failing(errno.EDQUOT))
    with pytest.raises(RecorderError, match=r"rank-00000\.fp: cannot be written"):
        recorder.seal()


@pytest.mark.parametrize("what", ["record", "cut", "other file", "gone"])
def test_a_file_that_is_not_what_was_written_is_not_sealed_quietly(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rank-00000.fp"
    other = open_recorder(tmp_path / "other")
    recorder = open_recorder(path)
    for step in (1, 2):
        add_block(recorder, step)
        add_block(other, step + 1)
    other.seal()
    data = bytearray(path.read_bytes())
    data[read(path, deep=True).blocks[0].offset + 33] ^= 16
    damages: dict[str, Callable[[], object]] = {
        "record": lambda: path.write_bytes(data),
        "cut": lambda: os.truncate(path, len(data) - 5),
        "other file": lambda: (tmp_path / "other").replace(path),
        "gone": path.unlink,
    }
    damages[what]()
    with pytest.raises(RecorderError, match="read back, it is not what was written"):
        recorder.seal()
    if what in ("record", "cut"):
        assert read(path, deep=True).fault is not None
        assert read(path, deep=False).fault is not None


def test_an_arm_is_never_recorded_over_another(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.fp"
    path.write_bytes(b"older")
    with pytest.raises(RecorderError, match=r"rank-00000\.fp: cannot be made \(File exists\); an arm starts"):
        open_recorder(path)
    assert path.read_bytes() == b"older"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match=r"gone/rank-00000\.fp: cannot be made"):
        open_recorder(tmp_path / "gone" / "rank-00000.fp")


def test_use_out_of_order_is_refused(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    with pytest.raises(RecorderError, match="ends that never began"):
        recorder.end(1, 2)
    recorder.begin(Moment.STEP, 1, "state")
    with pytest.raises(RecorderError, match="begins inside another block"):
        recorder.begin(Moment.STEP, 2, "state")
    with pytest.raises(RecorderError, match="sealed inside a block"):
        recorder.seal()


def test_records_outside_a_block_are_refused(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    site = recorder.site(Site(Phase.STATE, Kind.RNG, "torch"))
    recorder.record(site, recorder.form(tensor(Phase.STATE, Kind.RNG, "torch", (1,)).form), (1, 2))
    with pytest.raises(RecorderError, match="in no block"):
        recorder.begin(Moment.STEP, 1, "state")
    with pytest.raises(RecorderError, match="sealed inside a block"):
        recorder.seal()


def test_a_number_that_no_table_has_is_refused_for_good(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    recorder.begin(Moment.STEP, 1, "state")
    recorder.record(7, 7, (1, 2))
    with pytest.raises(RecorderError, match="STEP of step 1: a record's site or form is not in the tables"):
        recorder.end(1, 2)
    with pytest.raises(RecorderError, match="nothing can be added"):
        recorder.note({})


def test_nothing_follows_the_seal(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    add_block(recorder, 1)
    recorder.seal()
    before = (tmp_path / "a").read_bytes()
    for late in (recorder.seal, lambda: recorder.note({}), lambda: add_block(recorder, 2)):
        with pytest.raises(RecorderError, match="nothing can be added, it is sealed"):
            late()
    assert (tmp_path / "a").read_bytes() == before
    assert read(tmp_path / "a", deep=True).fault is None


def test_records_cost_40_bytes_and_a_small_block_little_more(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    add_block(recorder, 1)
    before = (tmp_path / "a").stat().st_size
    add_block(recorder, 2)
    assert (tmp_path / "a").stat().st_size - before <= 20 * 40 + 150


def test_sites_and_forms_keep_their_numbers(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path / "a")
    sites = [Site(Phase.STATE, Kind.RNG, name) for name in ("a", "b", "a")]
    assert [recorder.site(site) for site in sites] == [0, 1, 0]
