"""Hooks that run right behind a module's own code."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from samebits.worker.import_hooks import Finder
from samebits.worker.inject import bootstrap

SEEN: list[str] = []


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, with two modules, one of which imports the other and calls what the hook replaced."""
    (tmp_path / "hooked_one.py").write_text("def step():\n    return 'own'\n")
    (tmp_path / "hooking_two.py").write_text("from hooked_one import step\nSAID = step()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    SEEN.clear()
    yield tmp_path
    for name in ("hooked_one", "hooking_two"):
        sys.modules.pop(name, None)


def replace(module: ModuleType) -> None:
    SEEN.append(module.__name__)
    module.step = lambda: "ours"  # type: ignore[attr-defined]


def test_whoever_imports_a_name_gets_the_replaced_one(made: Path) -> None:
    Finder({"hooked_one": replace}).install()
    assert importlib.import_module("hooking_two").SAID == "ours"
    assert SEEN == ["hooked_one"]


def test_asking_for_a_spec_uses_no_hook_up(made: Path) -> None:
    Finder({"hooked_one": replace}).install()
    assert importlib.util.find_spec("hooked_one") is not None
    assert SEEN == []
    importlib.import_module("hooked_one")
    assert SEEN == ["hooked_one"]


def test_a_module_that_is_there_already_is_hooked_at_once(made: Path) -> None:
    importlib.import_module("hooked_one")
    Finder({"hooked_one": replace}).install()
    assert SEEN == ["hooked_one"]


def test_a_module_that_nobody_finds_is_missing_as_ever(made: Path) -> None:
    Finder({"no_such_module": replace}).install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")


def test_a_finder_that_asks_all_others_gets_their_answer(made: Path) -> None:
    class Asking:
        def find_spec(self, name: str, path: object = None, target: object = None) -> object:
            others = [finder for finder in sys.meta_path if finder is not self] if name == "hooked_one" else []
            return next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)

    sys.meta_path.insert(0, Asking())
    Finder({"hooked_one": replace}).install()
    assert importlib.import_module("hooked_one").step() == "ours"
    assert SEEN == ["hooked_one"]


def test_a_hooked_module_runs_by_its_name_and_keeps_its_source(made: Path) -> None:
    Finder({"hooked_one": replace}).install()
    assert runpy.run_module("hooked_one")["step"]() == "own"
    assert "return 'own'" in (importlib.util.find_spec("hooked_one").loader.get_source("hooked_one"))


@pytest.mark.parametrize(
    ("words", "helper"),
    [
        (["python", "train.py"], False),
        (["python", "-m", "torch.distributed.run", "train.py"], False),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"], True),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(4)"], True),
        (["python", "-c", "from multiprocessing.forkserver import main; main(5)"], True),
    ],
)
def test_helpers_are_known_by_how_they_were_started(
    monkeypatch: pytest.MonkeyPatch, words: list[str], helper: bool
) -> None:
    monkeypatch.setattr(sys, "orig_argv", words)
    assert bootstrap.is_helper() is helper
