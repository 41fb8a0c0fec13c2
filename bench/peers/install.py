"""Puts msprobe into a folder of its own, so that nothing of it reaches the project's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
FOLDER = Path(__file__).parents[2] / "build" / "bench-peers"
"""Ignored by git; delete it to install again."""


def install(folder: Path = FOLDER) -> Path:
    """Installs what `requirements.txt` pins, once; the folder goes to the end of `sys.path`, so it hides nothing."""
    done = folder / "requirements.txt"
    if done.exists() and done.read_text() == REQUIREMENTS.read_text():
        return folder
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--upgrade", "--target", str(folder), "--requirement", str(REQUIREMENTS)]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"msprobe could not be installed into {folder}; to measure without peers: --no-peers")
    done.write_text(REQUIREMENTS.read_text())
    return folder
