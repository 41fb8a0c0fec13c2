"""Images by digest: what a recipe may name, and what the lock file says of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.launch import image_lock
from samebits.recipe.image import Image, ImageError, check_file, file_digest, parse

DIGEST = f"sha256:{'ab' * 32}"
HERE = Path(__file__).parents[2]


def image_file(folder: Path, body: bytes = b"squashed", name: str = "train.sqfs") -> Path:
    path = folder / name
    path.write_bytes(body)
    return path


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def client(folder: Path, tool: str, script: str) -> None:
    """A registry's client, found on a PATH of this folder alone."""
    path = folder / tool
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def samebits(*words: str | Path, path: Path | None = None, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from samebits.cli import main; main()", *map(str, words)]
    environment = {**os.environ, "PATH": str(path)} if path else None
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=cwd)


def test_a_file_is_found_from_the_folder_of_images_or_absolute(tmp_path: Path) -> None:
    assert parse(f"a/train.sqfs@{DIGEST}", tmp_path) == Image("a/train.sqfs", DIGEST, tmp_path / "a/train.sqfs")
    assert parse(f"/x/train.sif@{DIGEST}", tmp_path).file == Path("/x/train.sif")


@pytest.mark.parametrize("name", ["debian", "nvidia/cuda", "registry.example/nvidia/pytorch", "localhost:5000/a/b_c"])
@pytest.mark.parametrize("tag", ["", ":25.06-py3"])
def test_of_tag_and_digest_the_digest_counts(name: str, tag: str) -> None:
    image = parse(f"{name}{tag}@{DIGEST}", Path("/"))
    assert image == Image(name, DIGEST, None)
    assert image.reference == f"{name}@{DIGEST}"


@pytest.mark.parametrize(
    "text",
    [
        *("registry.example/nvidia/pytorch:25.06-py3", "train.sqfs", "", f"train.sqfs@{DIGEST[:-1]}"),
        *(f"train.sqfs@{DIGEST.upper()}", f"a@md5:{'0' * 32}", "train.sqfs@", f"train.sqfs@{DIGEST}\n"),
    ],
)
def test_a_name_without_a_whole_digest_is_refused_with_the_command_that_finds_it(text: str) -> None:
    with pytest.raises(ImageError, match=r"^container\.image is .*, must .*; run `samebits image lock "):
        parse(text, Path("/"))


@pytest.mark.parametrize("name", ["", "UPPER/case", "a b", "a//b", "-a", "a:t:u", "docker://debian", "a\n"])
def test_a_name_that_is_neither_file_nor_repository_is_refused(name: str) -> None:
    with pytest.raises(ImageError, match="must name a registry's image"):
        parse(f"{name}@{DIGEST}", Path("/"))


def test_a_file_with_its_digest_passes_and_another_is_named_by_both_digests(tmp_path: Path) -> None:
    path = image_file(tmp_path)
    assert file_digest(path) == digest_of(b"squashed")
    check_file(parse(f"train.sqfs@{digest_of(b'squashed')}", tmp_path))
    with pytest.raises(ImageError, match=f"digest {DIGEST}, it has {digest_of(b'squashed')}.*; bring back"):
        check_file(parse(f"train.sqfs@{DIGEST}", tmp_path))


@pytest.mark.parametrize("name", ["none.sqfs", "folder.sqfs"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.sqfs").mkdir()
    with pytest.raises(ImageError, match=rf"{name}', must be a file that this host can read \(.*; put it there"):
        check_file(parse(f"{name}@{DIGEST}", tmp_path))


def test_a_registrys_image_is_not_checked_as_a_file() -> None:
    with pytest.raises(ImageError, match="must be a file"):
        check_file(Image("debian", DIGEST))


@pytest.mark.parametrize(("body", "status"), [(b"squashed", 0), (b"squasheD", 4)])
def test_a_node_checks_a_file_with_the_standard_library_alone(tmp_path: Path, body: bytes, status: int) -> None:
    """-S: without site-packages; one flipped bit is another file."""
    command = [sys.executable, "-S", "-m", "samebits.recipe.image", image_file(tmp_path, body), digest_of(b"squashed")]
    environment = {**os.environ, "PYTHONPATH": str(HERE / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
    assert done.returncode == status, done.stderr
    assert len(done.stderr.splitlines()) == (1 if status else 0)


def test_a_node_that_is_asked_wrongly_does_not_say_yes() -> None:
    done = subprocess.run([sys.executable, "-m", "samebits.recipe.image"], capture_output=True, timeout=30, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith(b"usage: ")


def test_locking_a_file_prints_the_recipes_lines_and_writes_a_sorted_file(tmp_path: Path) -> None:
    path, lock = image_file(tmp_path), tmp_path / "images.lock.yaml"
    said = image_lock.lock(str(path), lock, "site/train.sqfs")
    assert said == f"container:\n  image: site/train.sqfs@{digest_of(b'squashed')}"
    image_lock.lock(str(image_file(tmp_path, name="a.sif")), lock)
    lines = lock.read_text().splitlines(keepends=True)
    assert lines[0] == image_lock.HEAD
    assert [line for line in lines[1:] if line[0] != " "] == ["a.sif:\n", "site/train.sqfs:\n"]
    entry = image_lock.read_lock(lock)["site/train.sqfs"]
    assert (entry.digest, entry.source) == (digest_of(b"squashed"), str(path))


def test_what_lock_prints_is_what_a_recipe_may_name(tmp_path: Path) -> None:
    said = image_lock.lock(str(image_file(tmp_path)), tmp_path / "lock.yaml")
    check_file(parse(said.split()[-1], tmp_path))


@pytest.mark.parametrize("tool", image_lock.TOOLS)
def test_a_tag_is_resolved_by_whichever_client_is_there(tmp_path: Path, tools: Path, tool: str) -> None:
    client(tools, tool, f'case "$*" in *debian:12) echo {DIGEST};; *) exit 9;; esac')
    said = image_lock.lock("debian:12", tmp_path / "lock.yaml")
    assert said.endswith(f"image: debian:12@{DIGEST}")


@pytest.mark.parametrize(
    "script",
    ["echo no such tag >&2; exit 1", "echo no such tag", f"echo {DIGEST}; echo no such tag >&2; exit 1"],
    ids=["fails", "prose", "fails-late"],
)
def test_a_client_that_gives_no_digest_is_quoted(tmp_path: Path, tools: Path, script: str) -> None:
    client(tools, "crane", script)
    with pytest.raises(ImageError, match=r"'debian:12', must be resolved .* crane says: no such tag; install"):
        image_lock.lock("debian:12", tmp_path / "lock.yaml")
    assert not (tmp_path / "lock.yaml").exists()


def test_without_a_client_one_is_told_what_to_install(tmp_path: Path, tools: Path) -> None:
    with pytest.raises(ImageError, match="none of skopeo, crane, regctl or docker is installed; install"):
        image_lock.lock("debian:12", tmp_path / "lock.yaml")


def test_a_digest_that_is_given_needs_no_client(tmp_path: Path, tools: Path) -> None:
    assert image_lock.lock(f"debian:12@{DIGEST}", tmp_path / "lock.yaml").endswith(f"debian:12@{DIGEST}")
    with pytest.raises(ImageError, match="64 digits"):
        image_lock.lock("debian@sha256:1", tmp_path / "lock.yaml")


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("none.sqfs", None, "must be a file that can be read"),
        ("train.sqfs", "train", "--name is 'train', must end"),
        ("debian:12", "mine", "--name is 'mine', must be left out"),
        ("Not An Image", None, "must name a registry's image"),
    ],
)
def test_what_cannot_be_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str | None, said: str
) -> None:
    image_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImageError, match=said):
        image_lock.lock(source, tmp_path / "lock.yaml", name)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (f"{{digest: '{DIGEST}', source: x}}", "a.locked is missing"),
        (f"{{digest: '{DIGEST}', source: x, locked: '2026-01-01', tag: y}}", "a.tag is 'y'"),
        ("{digest: 'sha256:1', source: x, locked: '2026-01-01'}", "a.digest is 'sha256:1'"),
        (f"{{digest: '{DIGEST}', source: 7, locked: '2026-01-01'}}", "a.source is 7"),
        ("x", "a is 'x'"),
    ],
)
def test_a_lock_file_is_read_strictly(tmp_path: Path, entry: str, key: str) -> None:
    lock = tmp_path / "lock.yaml"
    lock.write_text(f"a: {entry}\n")
    with pytest.raises(ImageError, match=f"lock.yaml: {key}, must be NAME"):
        image_lock.read_lock(lock)


@pytest.mark.parametrize("text", [None, "", "- a\n", "a: {\n"], ids=["none", "empty", "list", "broken"])
def test_what_is_no_lock_file_is_refused(tmp_path: Path, text: str | None) -> None:
    lock = tmp_path / "lock.yaml"
    if text is not None:
        lock.write_text(text)
    with pytest.raises(ImageError, match="must be a lock file"):
        image_lock.read_lock(lock)


def test_verify_finds_a_replaced_and_a_missing_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock.yaml"
    for name in ("good.sqfs", "bad.sqfs", "gone.sqfs"):
        image_lock.lock(str(image_file(tmp_path, name=name)), lock)
    assert image_lock.exit_status(image_lock.verify([], lock)) == 0
    image_file(tmp_path, b"other", "bad.sqfs")
    (tmp_path / "gone.sqfs").unlink()
    found = image_lock.verify([], lock)
    assert {finding.name: finding.status.value for finding in found} == {
        "good.sqfs": "ok",
        "bad.sqfs": "differs",
        "gone.sqfs": "missing",
    }
    assert image_lock.exit_status(found) == 2
    assert image_lock.exit_status(image_lock.verify(["good.sqfs"], lock)) == 0
    with pytest.raises(ImageError, match=r"image is 'x', must be in .*, which has bad.sqfs, gone.sqfs and good.sqfs"):
        image_lock.verify(["x"], lock)


@pytest.mark.parametrize(
    ("script", "status"),
    [(f"echo {DIGEST}", "ok"), (f"echo sha256:{'0' * 64}", "differs"), ("exit 1", "cannot be checked here")],
)
def test_verify_asks_a_registry_by_digest(tmp_path: Path, tools: Path, script: str, status: str) -> None:
    lock = tmp_path / "lock.yaml"
    image_lock.lock(f"registry.example/nvidia/pytorch:1@{DIGEST}", lock)
    client(tools, "skopeo", f'[ "$4" = docker://registry.example/nvidia/pytorch@{DIGEST} ] && {script}')
    found = image_lock.verify([], lock)
    assert [finding.status.value for finding in found] == [status]
    assert image_lock.exit_status(found) == {"ok": 0, "differs": 2}.get(status, 4)


def test_the_verbs_exit_with_what_they_found_and_never_with_1(tmp_path: Path) -> None:
    path, lock, nothing = image_file(tmp_path), tmp_path / "lock.yaml", tmp_path / "nothing"
    nothing.mkdir()
    said = samebits("image", "lock", path, "--lock", lock)
    assert (said.returncode, said.stdout.splitlines()[0]) == (0, "container:"), said.stderr
    assert samebits("image", "verify", "--lock", lock).stdout == "train.sqfs: ok\n"
    image_lock.lock(f"debian@{DIGEST}", lock)
    unchecked = samebits("image", "verify", "--lock", lock, path=nothing)
    assert unchecked.returncode == 4
    assert "debian: cannot be checked here (none of skopeo" in unchecked.stdout
    path.unlink()
    assert samebits("image", "verify", "--lock", lock, path=nothing).returncode == 2
    refused = samebits("image", "lock", "debian", "--lock", lock, path=nothing)
    assert refused.returncode == 2
    assert refused.stderr.startswith("samebits: image is 'debian', must be resolved")
    assert samebits("image", "verify", "none", "--lock", lock).returncode == 2


def test_the_lock_file_of_this_repository_is_as_it_would_be_written(tmp_path: Path) -> None:
    lock = HERE / "containers" / "images.lock.yaml"
    image_lock.write_lock(tmp_path / "lock.yaml", image_lock.read_lock(lock))
    assert lock.read_text() == (tmp_path / "lock.yaml").read_text()
    assert samebits("image", "verify").stdout == "containers/images.lock.yaml: no images\n"
