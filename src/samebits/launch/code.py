"""A copy of what runs inside a rank, in the artifact: a job that waits for hours runs what was there when it was
submitted, and the image sees it through the results folder, without a mount of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import samebits
from samebits.spec import rank_sources


def freeze(target: Path) -> None:
    """Copies the package's rank part to `target`/samebits, for PYTHONPATH=`target`."""
    package = Path(samebits.__file__).parent
    for path in rank_sources(package):
        copy = target / "samebits" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
