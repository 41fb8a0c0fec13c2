"""An image is named by digest: NAME@sha256:HEX, where NAME is a registry's or a file.

On a compute node, before any rank starts (standard library only):

    python -m samebits.recipe.image /images/train.sqfs sha256:HEX

Exit status 0: it is that file; 4: it is not, or cannot be read, and standard error says why.
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from samebits.recipe.problem import Problem

FILE_ENDINGS = (".sqfs", ".sqsh", ".squashfs", ".sif", ".img")
"""A name that ends so is a file."""

_KEY = "container.image"
_NOT_THE_FILE = 4
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Of the OCI distribution specification, with a registry's host and port before it.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = "[A-Za-z0-9-]+"
_HOST = rf"(?:localhost|{_NAME}(?:\.{_NAME})+|{_NAME}(?=:))(?::[0-9]+)?"
_REPOSITORY = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*")
_TAG = re.compile(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")


class ImageError(RuntimeError):
    """An image that cannot be used: which key, its value, the rule it breaks, the way out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Image:
    """name: a file as the recipe writes it, or a repository without tag. digest: `sha256:` and 64 digits; of a file
    its own, of a registry's image that of its manifest. file: absolute; None: the image is a registry's."""

    name: str
    digest: str
    file: Path | None = None

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.digest}"


def parse(text: str, images: Path) -> Image:
    """The image that `container.image` names; nothing is read.

    text: NAME@sha256:HEX. images: folder of image files (a fact of the site) that a file's name starts from. In
    REPOSITORY:TAG@sha256:HEX the digest counts and the tag is dropped, as every registry client does: it tells a
    reader what the digest was once called. Raises ImageError.
    """
    name, at, digest = text.rpartition("@")
    if not at:
        rule = "must be NAME@sha256:HEX: what a tag or a file name means can change"
        raise _refusal(text, rule, f"run `samebits image lock {text or 'NAME'}` and paste the line that it prints")
    if not _DIGEST.fullmatch(digest):
        rule = f"must end in @sha256: and 64 hexadecimal digits in lower case, its digest is {digest!r}"
        raise _refusal(text, rule, f"run `samebits image lock {name or 'NAME'}` and paste the line that it prints")
    if is_file(name):
        return Image(name, digest, images.absolute() / name)
    return Image(repository(name, text), digest)


def is_file(name: str) -> bool:
    return name.endswith(FILE_ENDINGS)


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def repository(name: str, text: str | None = None) -> str:
    """A registry reference without its tag. text: what stands in the recipe. Raises ImageError."""
    found = _TAG.sub("", name)
    if not _REPOSITORY.fullmatch(found):
        rule = f"must name a registry's image (HOST/REPOSITORY) or a file ending in {', '.join(FILE_ENDINGS)}"
        raise _refusal(name if text is None else text, rule, "write it as `podman pull` or `ls` takes it")
    return found


def file_digest(path: Path) -> str:
    """sha256 of a file of many gigabytes, in constant memory. Raises OSError."""
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def check_file(image: Image) -> None:
    """Reads the whole file. Raises ImageError where it is missing, cannot be read or is another."""
    if image.file is None:
        raise _refusal(image.name, "must be a file to be checked here", "the registry's client checks its digest")
    try:
        found = file_digest(image.file)
    except OSError as error:
        rule = f"must be a file that this host can read ({error.strerror or error})"
        way_out = "put it there, or set `images` in the cluster file to a folder that every node sees"
        raise _refusal(str(image.file), rule, way_out) from error
    if found != image.digest:
        rule = f"must have the digest {image.digest}, it has {found}: the file was replaced or damaged"
        way_out = "bring back the file that was pinned, or run `samebits image lock` and pin this one"
        raise _refusal(str(image.file), rule, way_out)


def _refusal(value: str, rule: str, way_out: str) -> ImageError:
    return ImageError(Problem(_KEY, value, rule, way_out))


def main(arguments: list[str]) -> int:
    """arguments: file, digest."""
    if len(arguments) != 2:
        print("usage: python -m samebits.recipe.image FILE sha256:HEX", file=sys.stderr)
        return _NOT_THE_FILE
    file, digest = arguments
    try:
        check_file(Image(file, digest, Path(file).absolute()))
    except ImageError as error:
        print(error, file=sys.stderr)
        return _NOT_THE_FILE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
