"""An image file is read once, and again whenever it may be another."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from samebits.launch import seen
from samebits.recipe import image
from samebits.recipe.image import Image, ImageError

ONE, OTHER = b"the image", b"THE IMAGE"


class Store:
    """An image file, and how often it was read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "train.sqsh"
        self.memory = folder / "results" / ".images.json"
        self.reads = 0
        self.put(ONE)
        self._read = image.file_digest
        monkeypatch.setattr(image, "file_digest", self._counted)

    def _counted(self, path: Path) -> str:
        self.reads += 1
        return self._read(path)

    def put(self, content: bytes, seconds: int = 1_000_000_000) -> None:
        """In place, last changed at that time."""
        self.file.write_bytes(content)
        os.utime(self.file, (seconds, seconds))

    def check(self, content: bytes = ONE) -> None:
        """As the image that has this content."""
        seen.check(Image("train.sqsh", f"sha256:{hashlib.sha256(content).hexdigest()}", self.file), self.memory)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(tmp_path, monkeypatch)


def test_an_unchanged_file_is_read_once(store: Store) -> None:
    store.check()
    store.check()
    assert store.reads == 1


def test_a_file_of_the_same_size_and_another_time_is_read_again(store: Store) -> None:
    store.check()
    store.put(OTHER, 1_000_000_001)
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check()
    assert store.reads == 2


def test_a_file_put_in_its_place_is_read_again_whatever_its_time(store: Store) -> None:
    store.check()
    new = store.file.with_name("new")
    new.write_bytes(OTHER)
    os.utime(new, (1_000_000_000, 1_000_000_000))
    new.rename(store.file)
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check()


def test_a_file_of_another_size_is_read_again(store: Store) -> None:
    store.check()
    store.put(ONE * 2)
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check()


def test_a_wrong_digest_is_never_remembered_as_right(store: Store) -> None:
    for reads in (1, 2):
        with pytest.raises(ImageError, match="the file was replaced or damaged"):
            store.check(OTHER)
        assert store.reads == reads
    assert not store.memory.exists()


def test_another_digest_of_a_file_that_was_read_is_read_again(store: Store) -> None:
    store.check()
    with pytest.raises(ImageError, match="the file was replaced or damaged"):
        store.check(OTHER)
    store.check()
    assert store.reads == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"%s": "right"}', b'{"%s": [9, 1]}'])
def test_a_damaged_memory_is_no_memory(store: Store, damage: bytes) -> None:
    store.check()
    store.memory.write_bytes(damage.replace(b"%s", bytes(store.file)))
    store.check()
    assert store.reads == 2
    store.check()
    assert store.reads == 2


def test_several_files_are_remembered_side_by_side(store: Store) -> None:
    first = store.file
    store.check()
    store.file = first.with_name("other.sqsh")
    store.put(OTHER)
    store.check(OTHER)
    store.check(OTHER)
    store.file = first
    store.check()
    assert store.reads == 2


def test_a_file_that_was_there_and_is_gone_is_refused(store: Store) -> None:
    store.check()
    store.file.unlink()
    with pytest.raises(ImageError, match="must be a file that this host can read"):
        store.check()


def test_an_image_of_a_registry_is_not_read_here(store: Store) -> None:
    seen.check(Image("registry.example/nvidia/pytorch", f"sha256:{'ab' * 32}"), store.memory)
    assert (store.reads, store.memory.exists()) == (0, False)
