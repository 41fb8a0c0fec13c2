"""Ranks of a node that was taken for lost stop when their folder was given to another start."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.worker.watchers import Fence, SupersededError

NOTHING: Any = SimpleNamespace()


def looks(fence: Fence) -> None:
    fence.on_step_begin(NOTHING)
    fence.on_save(NOTHING)
    fence.on_final(NOTHING)


@pytest.mark.parametrize("look", ["on_step_begin", "on_save", "on_final"])
def test_another_start_in_the_record_ends_this_one(tmp_path: Path, look: str) -> None:
    record = tmp_path / "job.json"
    fence = Fence(record, "abc")
    record.write_text(json.dumps({"launch": "abc"}))
    looks(fence)
    record.write_text(json.dumps({"launch": "abc.1"}))
    with pytest.raises(SupersededError, match=r"this is start abc, and .*job\.json names abc\.1"):
        getattr(fence, look)(NOTHING)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"other": 1}'])
def test_a_record_that_is_not_there_or_being_replaced_ends_nothing(tmp_path: Path, text: str | None) -> None:
    record = tmp_path / "job.json"
    if text is not None:
        record.write_text(text)
    looks(Fence(record, "abc"))
