"""Label of a checkpoint: the layout that wrote it, in a small file beside Megatron's, read before any of them.

Standard library only; a checkpoint without a readable label is not whole.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from samebits.spec.plan import PlanError, decode
from samebits.spec.sections import MegatronRecipe, Parallel

FILE = "samebits.json"
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or restored."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """step: the last one before the checkpoint. The other fields must be equal in the run that restores it."""

    format: int = FORMAT
    step: int
    parallel: Parallel
    precision: str
    distributed_optimizer: bool

    @staticmethod
    def of(recipe: MegatronRecipe, step: int) -> Label:
        return Label(
            step=step,
            parallel=recipe.parallel,
            precision=recipe.precision,
            distributed_optimizer=recipe.optimizer.distributed,
        )

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1) + "\n")


def read_fitting(folder: Path, recipe: MegatronRecipe) -> Label:
    """Return the label of a complete checkpoint, checked against the recipe's layout.

    Raises CheckpointError where the folder is missing or not whole, or names what differs.
    """
    found = _read(folder)
    for name, was, wanted in _differences(found, Label.of(recipe, found.step)):
        raise CheckpointError(
            f"{folder}: checkpoint was written with {name} = {was}, the recipe has {wanted}; restore it in the layout "
            "that wrote it"
        )
    return found


def _read(folder: Path) -> Label:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint; the arm that writes it must have got that far")
    try:
        return decode(Label, json.loads((folder / FILE).read_text()))
    except (OSError, json.JSONDecodeError, PlanError) as error:
        raise CheckpointError(f"{folder}: not a whole checkpoint ({FILE}: {error}); write it again") from error


def _differences(found: Label, wanted: Label) -> list[tuple[str, object, object]]:
    pairs = [(field.name, found, wanted) for field in dataclasses.fields(Label) if field.name != "parallel"]
    nested = [(field.name, found.parallel, wanted.parallel) for field in dataclasses.fields(Parallel)]
    values = [(name, getattr(left, name), getattr(right, name)) for name, left, right in [*nested, *pairs]]
    return [difference for difference in values if difference[1] != difference[2]]
