"""A checkpoint is restored only where it is whole and fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import workload
from samebits.worker.trainer.label import CheckpointError, Label, read_fitting

RECIPE = workload.recipe()


def test_a_label_comes_back_as_written(tmp_path: Path) -> None:
    label = Label.of(RECIPE, 6)
    label.write(tmp_path)
    assert read_fitting(tmp_path, RECIPE) == label


def test_another_world_is_refused_with_both_sizes(tmp_path: Path) -> None:
    Label.of(RECIPE, 6).write(tmp_path)
    other = replace(RECIPE, parallel=replace(RECIPE.parallel, world=4, data=4))
    with pytest.raises(CheckpointError, match="written with world = 2, the recipe has 4"):
        read_fitting(tmp_path, other)


def test_another_precision_is_refused(tmp_path: Path) -> None:
    Label.of(RECIPE, 6).write(tmp_path)
    with pytest.raises(CheckpointError, match="precision = fp32, the recipe has bf16"):
        read_fitting(tmp_path, replace(RECIPE, precision="bf16"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="step-000006: no such checkpoint"):
        read_fitting(tmp_path / "step-000006", RECIPE)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"format": 1}'])
def test_a_checkpoint_without_a_whole_label_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "samebits.json").write_text(content)
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        read_fitting(tmp_path, RECIPE)
