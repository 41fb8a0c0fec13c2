"""Image files that were read before: a file of the same size, time and inode is not read again on this host."""

from __future__ import annotations

import json
from pathlib import Path

from samebits.fingerprint.paths import write_whole
from samebits.recipe.image import Image, check_file


def check(image: Image, memory: Path) -> None:
    """memory: a file of what was read, made where it is missing. Raises ImageError where the file is not there, or is
    not the one that the digest names. Nodes read it again before the first step, whatever is remembered here."""
    file = image.file
    if file is None:
        return
    known, identity = _known(memory), _identity(file)
    if identity is not None and known.get(str(file)) == [*identity, image.digest]:
        return
    check_file(image)
    known[str(file)] = [*(identity or ()), image.digest]
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_whole(memory, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())


def _known(memory: Path) -> dict[str, list[object]]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _identity(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
