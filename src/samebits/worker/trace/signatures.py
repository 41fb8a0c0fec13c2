"""What an operation does with its arguments, as its schema says, and which operations are known artifacts.

A known artifact has bytes that may differ between two equal runs, or none of its own: it is counted, not recorded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch._ops import OpOverload


class Role(Enum):
    """READ: not changed. UPDATED: read and changed. FILLED: changed, and what was in it before does not matter.
    IGNORED: neither read nor recorded."""

    READ = 0
    UPDATED = 1
    FILLED = 2
    IGNORED = 3


UNINITIALISED, ALIAS, IN_FLIGHT, NOT_ATEN = "uninitialised", "view", "in-flight", "higher-order"
"""Reasons why an operation gives no record."""

_UNINITIALISED = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
        *("new_empty", "new_empty_strided", "resize_", "resize_as_", "set_", "resize"),
    }
)
"""They leave whatever the memory held, or give a tensor other memory."""

_ALIASES = frozenset({"detach", "detach_", "alias", "lift_fresh", "lift", "requires_grad_", "_version"})
"""The same bytes in the same form."""

_VIEWS = frozenset({"_unsafe_view", "_reshape_alias"})
"""Views whose schema does not say so."""

_FILLS = frozenset(
    {
        *("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_"),
        *("geometric_", "log_normal_", "eye_", "_foreach_zero_", "_foreach_copy_"),
    }
)
"""They overwrite all of what they are given: what an empty tensor held before is no input."""

_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
_ARRIVED = frozenset({"wait_tensor"})

_UNSET = frozenset(
    {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask", "workspace", "reserve", "cum_seq_q"}
    | {"cum_seq_k"}
)
"""Arguments and results of fused operations that are left unset in some of their ways to go."""

_SCALING = ("addmm", "baddbmm", "addbmm", "addmv", "addr", "_addmm")
"""They compute beta * first + a product."""


@dataclass(frozen=True)
class Signature:
    """name: as in records. roles: of each argument, in the schema's order. places: argument name -> number.
    skipped: reason why there is no record. is_view: gives other forms of the same bytes. unset: numbers of results that
    are not digested. scales: with beta=0 the first argument is not read, whatever it holds."""

    name: str
    roles: tuple[Role, ...]
    places: dict[str, int]
    skipped: str | None
    is_view: bool
    unset: frozenset[int]
    scales: bool

    def roles_with(self, beta: object) -> tuple[Role, ...]:
        """beta: what the call says of it."""
        if not self.scales or beta != 0:
            return self.roles
        return (Role.IGNORED if self.roles[0] is Role.READ else Role.FILLED, *self.roles[1:])


@functools.cache
def signature_of(function: OpOverload) -> Signature:
    schema = function._schema
    base = schema.name.partition("::")[2]
    written = any(argument.is_write for argument in schema.arguments)
    return Signature(
        name=str(function),
        roles=tuple(_role(argument, base, function) for argument in schema.arguments),
        places={argument.name: number for number, argument in enumerate(schema.arguments)},
        skipped=_skipped(function.namespace, base),
        is_view=not written
        and (base in _VIEWS or any(one.alias_info is not None and not one.is_write for one in schema.returns)),
        unset=frozenset(number for number, one in enumerate(schema.returns) if one.name in _UNSET),
        scales=any(argument.name == "beta" for argument in schema.arguments) and base.startswith(_SCALING),
    )


def _role(argument: Any, base: str, function: OpOverload) -> Role:
    if argument.name in _UNSET or (function.namespace in _COLLECTIVES and base in _ARRIVED):
        return Role.IGNORED
    if not argument.is_write:
        return Role.READ
    return Role.FILLED if argument.is_out or base in _FILLS else Role.UPDATED


def _skipped(namespace: str, base: str) -> str | None:
    if namespace in _COLLECTIVES and base not in _ARRIVED:
        return IN_FLIGHT
    if namespace == "aten" and base in _UNINITIALISED:
        return UNINITIALISED
    return ALIAS if namespace == "aten" and base in _ALIASES else None
