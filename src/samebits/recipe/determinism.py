"""The environment that determinism accepts: what may be set, to what, and what is filled in.

Fail-closed: a variable or value outside the tables is refused before anything is launched. That a variable was set
does not show that it is in force: ranks read it back and store it with their pins. Standard library only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.recipe.problem import MISSING, Problem, listed

if TYPE_CHECKING:
    from samebits.spec.sections import Determinism, MegatronRecipe

_KEY = "determinism.environment"
_ALGORITHMS = ("Ring", "CollnetDirect", "CollnetChain")
_EXCLUSION = "^NVLS"


@dataclass(frozen=True)
class Variable:
    """accepted: the rule in words, after `must be`. filled: value where the recipe sets none; None: stays unset."""

    name: str
    accepted: str
    accepts: Callable[[str], bool]
    filled: str | None
    way_out: str


def _accepts_algorithms(value: str) -> bool:
    # NCCL reads a list that begins with ^ as a list of exclusions, so ^NVLS,Ring would exclude Ring as well.
    return value == _EXCLUSION or all(token in _ALGORITHMS for token in value.split(","))


ACCEPTED = (
    Variable(
        "NCCL_ALGO",
        f"a comma-separated list out of {', '.join(_ALGORITHMS)}, or {_EXCLUSION} alone",
        _accepts_algorithms,
        "Ring",
        "use Ring, or leave it out (Ring is filled in)",
    ),
    Variable(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "0",
        lambda value: value == "0",
        "0",
        "use '0', or leave it out",
    ),
    Variable(
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8 or :16:8",
        lambda value: value in (":4096:8", ":16:8"),
        ":4096:8",
        "use ':4096:8', or ':16:8' where memory is short",
    ),
    Variable(
        "MAMBA_DETERMINISTIC",
        "text that starts with 1",
        lambda value: value.startswith("1"),
        None,
        "use '1', or leave it out (it follows torch's flag)",
    ),
    Variable(
        "CAUSAL_CONV1D_DETERMINISTIC",
        "text that starts with 1",
        lambda value: value.startswith("1"),
        None,
        "use '1' (needs causal_conv1d 1.6.0), or leave it out (it follows torch's flag)",
    ),
    Variable(
        "TRITON_CACHE_AUTOTUNING",
        "0 or 1",
        lambda value: value in ("0", "1"),
        None,
        "use '0' or '1', or leave it out",
    ),
)

RECORDED = (
    "ATEN_CPU_CAPABILITY",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NCCL_PROTO",
    "NCCL_RUNTIME_CONNECT",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "TRITON_CACHE_DIR",
)
"""May be set to anything; every rank records them."""

RECORDED_PREFIX = "TRITON_AUTOTUNE_BLOCK_"


FLAGS = ("deterministic_algorithms", "fill_uninitialized_memory")
"""Of torch: a recipe may have them off."""
DETERMINISTIC_MODE = "deterministic_mode"
"""Of Megatron Core: always on, but where its cost is measured."""
UNFUSED: dict[str, str] = {"unfused_cross_entropy": "cross_entropy_loss_fusion", "unfused_router": "moe_router_fusion"}
"""Setting -> the fusion of Megatron Core that determinism refuses: always off, but where its cost is measured."""
ALWAYS_FUSED = ("unfused_cross_entropy",)
"""Settings whose fusion every installation has."""


def environment(determinism: Determinism, relaxed: Sequence[str] = ()) -> dict[str, str]:
    """Variables to start every rank with: the recipe's, and what the table fills in. Sorted by name.

    relaxed: settings that are left off; only variables of the table are ones.
    """
    filled = {variable.name: variable.filled for variable in ACCEPTED if variable.filled is not None}
    wanted = {**filled, **determinism.environment}
    off = {variable.name for variable in ACCEPTED if variable.name in relaxed}
    return {name: value for name, value in sorted(wanted.items()) if name not in off}


def knobs(recipe: MegatronRecipe) -> tuple[str, ...]:
    """Every determinism setting that a deterministic run of the recipe has on, by the name that relaxes it."""
    flags = [name for name in FLAGS if getattr(recipe.determinism, name)]
    unfused = [name for name in UNFUSED if name != "unfused_router" or recipe.model.moe]
    variables = [variable.name for variable in ACCEPTED if variable.name in environment(recipe.determinism)]
    return *flags, DETERMINISTIC_MODE, *unfused, *variables


def problems(environment: Mapping[str, str]) -> list[Problem]:
    """What the tables refuse, in the recipe's order."""
    found = [problem for name, value in environment.items() if (problem := _problem(name, value))]
    if environment.get("TRITON_CACHE_AUTOTUNING") == "1" and "TRITON_CACHE_DIR" not in environment:
        found.append(
            Problem(
                f"{_KEY}.TRITON_CACHE_DIR",
                MISSING,
                "must name a folder where TRITON_CACHE_AUTOTUNING is 1, so that all arms share one choice",
                "set it, or set TRITON_CACHE_AUTOTUNING to '0'",
            )
        )
    return found


def warnings(environment: Mapping[str, str]) -> list[str]:
    """What is accepted and still weakens the claim."""
    if environment.get("NCCL_ALGO") != _EXCLUSION:
        return []
    return [
        f"{_KEY}.NCCL_ALGO is '{_EXCLUSION}': it leaves open which algorithm NCCL falls back to, runs on several "
        "nodes may differ; use Ring"
    ]


def _problem(name: str, value: str) -> Problem | None:
    for variable in ACCEPTED:
        if variable.name == name:
            rule = f"must be {variable.accepted}"
            return None if variable.accepts(value) else Problem(f"{_KEY}.{name}", value, rule, variable.way_out)
    if name.startswith(RECORDED_PREFIX) or name in RECORDED:
        return None if value else Problem(f"{_KEY}.{name}", value, "must not be empty", "give a value, or leave it out")
    return _unknown(name, value)


def _unknown(name: str, value: str) -> Problem:
    known = [*(variable.name for variable in ACCEPTED), *RECORDED, f"{RECORDED_PREFIX}*"]
    near = difflib.get_close_matches(name.upper(), known, n=1)
    way_out = f"did you mean {near[0]}?" if near else "leave it out"
    return Problem(f"{_KEY}.{name}", value, f"must be one of the variables {listed(known)}", way_out)
