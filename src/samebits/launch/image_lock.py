"""`samebits image lock` and `samebits image verify`: digests of images, written down beside their names.

Nothing is built or pulled; a registry is asked through whichever of its clients is installed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from samebits.fingerprint.paths import write_whole
from samebits.recipe import yaml as document
from samebits.recipe.image import ImageError, file_digest, is_digest, is_file, repository
from samebits.recipe.problem import MISSING, Problem, listed
from samebits.spec.strict import Section

HEAD = "# Images by digest; written by `samebits image lock`, checked by `samebits image verify`.\n"

TOOLS: dict[str, tuple[str, ...]] = {
    "skopeo": ("inspect", "--format", "{{.Digest}}", "docker://REFERENCE"),
    "crane": ("digest", "REFERENCE"),
    "regctl": ("image", "digest", "REFERENCE"),
    "docker": ("buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", "REFERENCE"),
}
"""Clients that print nothing but the digest that the registry gives a reference: of the list where an image is for
several architectures. Not podman: `manifest inspect` prints a manifest, and no digest of it."""

_ANSWER_SECONDS = 120
_BAD_INPUT = 2
_UNCHECKED = 4


@dataclass(frozen=True, kw_only=True)
class Locked(Section):
    """An entry of a lock file.

    source: a file, from the folder that samebits is run in, or a registry reference, as it was given. locked: the day.
    """

    digest: str
    source: str
    locked: str


class Status(StrEnum):
    OK = "ok"
    DIFFERS = "differs"
    MISSING = "missing"
    UNCHECKED = "cannot be checked here"


@dataclass(frozen=True)
class ImageCheck:
    """The state of one image of a lock file. note: why, where it is not ok."""

    name: str
    status: Status
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.status}{f' ({self.note})' if self.note else ''}"


class ToolError(RuntimeError):
    """No client of registries answers; its own words."""


def lock(source: str, path: Path, name: str | None = None) -> str:
    """Write the digest of `source` into the lock file `path`; return the lines for a recipe.

    name: of a file, as recipes are to write it; its last part where absent. Raises ImageError.
    """
    name, digest = _locked_file(source, name) if is_file(source) else _locked_reference(source, name)
    entry = Locked(digest=digest, source=source, locked=time.strftime("%Y-%m-%d"))
    write_lock(path, {**(read_lock(path) if path.exists() else {}), name: entry})
    return f"container:\n  image: {name}@{digest}"


def _locked_file(source: str, name: str | None) -> tuple[str, str]:
    name = name or Path(source).name
    if not is_file(name):
        raise ImageError(Problem("--name", name, "must end as image files do", f"use {Path(source).name}"))
    try:
        return name, file_digest(Path(source))
    except OSError as error:
        rule = f"must be a file that can be read ({error.strerror or error})"
        raise ImageError(Problem("image", source, rule, "give its path")) from error


def _locked_reference(source: str, name: str | None) -> tuple[str, str]:
    """A reference keeps its name: it is where the image is."""
    if name is not None:
        raise ImageError(Problem("--name", name, "must be left out for a registry's image", "delete it"))
    reference, _, digest = source.partition("@")
    repository(reference)
    if digest and not is_digest(digest):
        raise ImageError(Problem("image", source, "must end in @sha256: and 64 digits, or have no @", "mend it"))
    try:
        return reference, digest or resolve(source)
    except ToolError as error:
        rule = f"must be resolved to a digest, which failed: {error}"
        way_out = f"install {listed(list(TOOLS))}, log in to the registry, or give REPOSITORY@sha256:HEX yourself"
        raise ImageError(Problem("image", source, rule, way_out)) from error


def verify(names: Sequence[str], path: Path) -> list[ImageCheck]:
    """Read every file of the lock again and ask for every reference by its digest; all where `names` is empty.

    Raises ImageError.
    """
    entries = read_lock(path)
    if unknown := [name for name in names if name not in entries]:
        rule = f"must be in {path}, which has {listed(list(entries), 'and') or 'no image'}"
        raise ImageError(Problem("image", unknown[0], rule, f"run `samebits image lock {unknown[0]}`"))
    return [_verified(name, entries[name]) for name in names or entries]


def show(names: Sequence[str], path: Path) -> int:
    """Print what `verify` finds; return the exit status. Raises ImageError."""
    findings = verify(names, path)
    print("\n".join(map(str, findings)) or f"{path}: no images")
    return exit_status(findings)


def exit_status(findings: Sequence[ImageCheck]) -> int:
    """Return 0 where all are what they were, 2 where one is not, 4 where one could not be checked."""
    found = {finding.status for finding in findings}
    if found & {Status.DIFFERS, Status.MISSING}:
        return _BAD_INPUT
    return _UNCHECKED if Status.UNCHECKED in found else 0


def _verified(name: str, entry: Locked) -> ImageCheck:
    """Check one image; a reference: that the registry still has this digest, wherever its tag points by now."""
    try:
        if is_file(entry.source):
            found = file_digest(Path(entry.source))
        else:
            found = resolve(f"{repository(entry.source.partition('@')[0])}@{entry.digest}")
    except FileNotFoundError:
        return ImageCheck(name, Status.MISSING, f"no file {entry.source}")
    except (OSError, ToolError) as error:
        return ImageCheck(name, Status.UNCHECKED, str(error))
    if found != entry.digest:
        return ImageCheck(name, Status.DIFFERS, f"locked {entry.digest}, found {found}")
    return ImageCheck(name, Status.OK)


def resolve(reference: str) -> str:
    """Return the digest that a registry gives a reference, by the first client found. Raises ToolError."""
    if not (tool := next(filter(shutil.which, TOOLS), None)):
        raise ToolError(f"none of {listed(list(TOOLS))} is installed")
    command = [tool, *(word.replace("REFERENCE", reference) for word in TOOLS[tool])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{tool} gave no answer in {_ANSWER_SECONDS} s") from error
    if done.returncode or not is_digest(done.stdout.strip()):
        words = " ".join((done.stderr or done.stdout).split())
        raise ToolError(f"{tool} says: {words or f'status {done.returncode}'}")
    return done.stdout.strip()


def read_lock(path: Path) -> dict[str, Locked]:
    """Return the entries of a lock file by image name. Raises ImageError."""
    try:
        body = document.read(path, noun="mapping of images", example="containers/images.lock.yaml")
        entries = TypeAdapter(dict[str, Locked]).validate_json(json.dumps(body))
    except document.DocumentError as error:
        raise ImageError(Problem("--lock", str(path), f"must be a lock file ({error})", "give its path")) from error
    except ValidationError as error:
        first = error.errors()[0]
        value = MISSING if first["type"] == "missing" else first["input"]
        raise _malformed(path, ".".join(map(str, first["loc"])), value) from error
    for name, entry in entries.items():
        if not is_digest(entry.digest):
            raise _malformed(path, f"{name}.digest", entry.digest)
    return entries


def _malformed(path: Path, key: str, value: object) -> ImageError:
    rule = "must be NAME: {digest: sha256:HEX, source: TEXT, locked: DAY}, all three and no other key"
    return ImageError(Problem(f"{path}: {key}", value, rule, "run `samebits image lock` to write the entry"))


def write_lock(path: Path, entries: Mapping[str, Locked]) -> None:
    """Write a lock file, sorted by name, so that two people's entries merge."""
    body = {name: dataclasses.asdict(entry) for name, entry in sorted(entries.items())}
    text = HEAD + yaml.safe_dump(body, sort_keys=False, width=200)
    write_whole(path, text.encode())
