"""What the tests of comparing share: a reference of three ranks, and files that are not synced to disk."""

from __future__ import annotations

import os

import pytest

import evidence
from comparing import WORLD
from samebits.fingerprint.paths import Artifact


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Only read: tests that change an artifact write their own."""
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference", world=WORLD)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these files has to survive a lost machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
