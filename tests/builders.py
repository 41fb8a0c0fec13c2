"""Recipes, plans and recipe files for tests: valid ones, changed where a test wants it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from samebits.spec.plan import Plan, decode
from samebits.spec.sections import Recipe

_DOCUMENT: dict[str, Any] = {
    "name": "smoke",
    "workload": "megatron-core",
    "model": {
        "layers": 4,
        "hidden": 64,
        "heads": 8,
        "ffn_hidden": 128,
        "sequence_length": 64,
        "vocabulary": 256,
        "normalization": "RMSNorm",
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "tied_embeddings": False,
    },
    "parallel": {
        "world": 2,
        "tensor": 1,
        "sequence": False,
        "pipeline": 1,
        "context": 1,
        "data": 2,
        "expert": 1,
    },
    "precision": "bf16",
    "data": {"source": "stream", "stream_seed": 7, "micro_batch": 2, "global_batch": 8},
    "optimizer": {
        "kind": "adam",
        "lr": 1e-3,
        "min_lr": 1e-4,
        "lr_warmup_steps": 2,
        "lr_decay_style": "cosine",
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "clip_grad": 1.0,
        "distributed": True,
    },
    "steps": 12,
    "checkpoint": {"every": 6, "resume_from": 6},
    "seed": 1234,
    "determinism": {"deterministic_algorithms": True, "fill_uninitialized_memory": False},
    "capture": {"rung": "state"},
    "launch": {"time_minutes": 10, "threads": 1},
    "gates": ["repeatability", "resume", "control", "observer"],
}


def document(**changes: Any) -> dict[str, Any]:
    """A recipe as its file says it. A mapping changes the keys of a section, anything else replaces the value; a value
    of `...` takes the key away."""
    return _changed(copy.deepcopy(_DOCUMENT), changes)


def recipe(**changes: Any) -> Recipe:
    """The recipe of `document(**changes)`, rules unchecked."""
    return decode(Recipe, document(**changes))


def recipe_file(folder: Path, **changes: Any) -> Path:
    """`document(**changes)` as a file named as the recipe."""
    body = document(**changes)
    path = folder / f"{body.get('name', 'smoke')}.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return path


def moe(**changes: Any) -> dict[str, Any]:
    """A section `model.moe`."""
    section = {
        "experts": 4,
        "top_k": 2,
        "ffn_hidden": 64,
        "load_balancing": "aux_loss",
        "load_balancing_coefficient": 0.01,
        "z_loss_coefficient": 1e-3,
        "dispatcher": "alltoall",
    }
    return _changed(section, changes)


def tokens(path: Path | str, **changes: Any) -> dict[str, Any]:
    """A section `data` of a token file, in place of the stream."""
    section = {
        "source": "tokens",
        "path": str(path),
        "dtype": "uint8",
        "sha256": "0" * 64,
        "shuffle_seed": 3,
        "stream_seed": ...,
    }
    return {**section, **changes}


def plan(arm: str = "reference", **changes: Any) -> Plan:
    """An arm that trains all steps from scratch, of `recipe(**changes)`."""
    wanted = recipe(**changes)
    return Plan(
        arm=arm,
        recipe=wanted,
        first_step=1,
        last_step=wanted.steps,
        restore=None,
        capture=True,
        keep_checkpoints=arm == "reference",
    )


def _changed(section: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        if value is ...:
            section.pop(key, None)
        elif isinstance(value, dict) and isinstance(section.get(key), dict):
            section[key] = _changed(section[key], value)
        else:
            section[key] = value
    return section
