"""Known faults of megatron-core that training here works around, each under a name.

Every workaround can be switched off by name; the fault is then live, which shows that a gate finds a real one. A
planted `Fault(kind="upstream", target=NAME)` switches off NAME. Seen in megatron-core 0.16.1 and 0.19.2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import HAVE_APEX_OR_TE, DistributedOptimizer
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from samebits.spec.questions import Fault

SHARED_STEP = "shared-step"


class UpstreamError(ValueError):
    """A workaround that does not exist."""


@dataclass(frozen=True)
class Workaround:
    """One fault of megatron-core and its remedy.

    reason: what goes wrong without it.
    needed: whether this installation has the fault.
    install: replaces the faulty function in this process.
    """

    name: str
    reason: str
    needed: Callable[[], bool]
    install: Callable[[], None]


def switched_off(faults: Iterable[Fault]) -> frozenset[str]:
    """Names of the workarounds that planted faults switch off; a fault without a target means `shared-step`."""
    return frozenset(fault.target or SHARED_STEP for fault in faults if fault.kind == "upstream")


def apply(off: frozenset[str]) -> tuple[str, ...]:
    """Installs the workarounds that this installation needs, except those named in `off`; once per process.

    Returns the names of those installed. Raises UpstreamError for a name that is not a workaround.
    """
    known = [workaround.name for workaround in WORKAROUNDS]
    for name in sorted(off):
        if name not in known:
            raise UpstreamError(f"fault upstream: target is {name!r}, must be one of {', '.join(known)}")
    wanted = [workaround for workaround in WORKAROUNDS if workaround.name not in off and workaround.needed()]
    for workaround in wanted:
        workaround.install()
    return tuple(workaround.name for workaround in wanted)


def torch_adam_steps(optimizer: Any) -> list[dict[str, Any]]:
    """The state dicts that hold a `step` tensor, of every torch AdamW below a MegatronOptimizer."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    states = (state for part in parts if part.optimizer is not None for state in part.optimizer.state.values())
    return [state for state in states if torch.is_tensor(state.get("step"))]


def _unshare_step() -> None:
    original = DistributedOptimizer.load_state_dict

    def load_state_dict(self: Any, state_dict: Any) -> None:
        original(self, state_dict)
        for state in torch_adam_steps(self):
            state["step"] = state["step"].clone()

    DistributedOptimizer.load_state_dict = load_state_dict


def _drop_stale_group_step() -> None:
    original = DistributedOptimizer.load_state_dict

    def load_state_dict(self: Any, state_dict: Any) -> None:
        original(self, state_dict)
        if isinstance(self.optimizer, torch.optim.Adam | torch.optim.AdamW):
            for group in self.optimizer.param_groups:
                group.pop("step", None)

    DistributedOptimizer.load_state_dict = load_state_dict


def _give_fresh_adam_a_step() -> None:
    original = DistributedOptimizer.sharded_state_dict

    def sharded_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.optimizer, torch.optim.Adam | torch.optim.AdamW):
            _prime(self.optimizer)
        return original(self, *args, **kwargs)

    DistributedOptimizer.sharded_state_dict = sharded_state_dict


def _prime(adam: torch.optim.Optimizer) -> None:
    """Gives parameters without state what the first step would; leaves all others alone."""
    for parameter in (parameter for group in adam.param_groups for parameter in group["params"]):
        state = adam.state[parameter]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            state.setdefault("exp_avg", torch.zeros_like(parameter.data))
            state.setdefault("exp_avg_sq", torch.zeros_like(parameter.data))


def _keep_step_while_setting_states() -> None:
    original = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self: Any, model_param: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, index = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][index]]
        # Copied onto itself: load_state_dict has set the value already.
        kept = {"step": state["step"]} if torch.is_tensor(state.get("step")) else {}
        with torch.no_grad():
            original(self, model_param, {**tensors, **kept})

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states


def _allow_sequence_parallel_norm() -> None:
    original = WrappedTorchNorm.__new__

    def build(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm: torch.nn.Module = original(cls, plain, hidden_size, eps)
        for parameter in norm.parameters():
            # finalize_model_grads sums the gradients of marked parameters over the tensor-parallel ranks.
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm

    WrappedTorchNorm.__new__ = staticmethod(build)


def _name_missing_router_gemm() -> None:
    moe_utils.te_general_gemm = None


def _give_splits_as_numbers() -> None:
    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    # Both modules hold the name: the dispatcher imported it from moe_utils.
    moe_utils.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu
    token_dispatcher.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu


def _uses_torch_adam() -> bool:
    return not HAVE_APEX_OR_TE


WORKAROUNDS = (
    Workaround(
        SHARED_STEP,
        "DistributedOptimizer.load_state_dict gives every state of a torch AdamW the same `step` tensor; each later "
        "step advances it once per parameter, so that a resumed run silently corrects its moments by another bias.",
        _uses_torch_adam,
        _unshare_step,
    ),
    Workaround(
        "stale-group-step",
        "DistributedOptimizer.load_state_dict leaves a `step` in the parameter groups of a torch AdamW, which neither "
        "reads nor advances it: state that an uninterrupted run does not have.",
        _uses_torch_adam,
        _drop_stale_group_step,
    ),
    Workaround(
        "fresh-adam-step",
        "DistributedOptimizer.state_dict expects exactly one value of `step` in a torch AdamW, also in one that has "
        "not stepped yet and so has none: a checkpoint cannot be loaded into a fresh optimizer.",
        _uses_torch_adam,
        _give_fresh_adam_a_step,
    ),
    Workaround(
        "step-not-in-checkpoint",
        "DistributedOptimizer._set_main_param_and_optimizer_states looks for `step` among the loaded tensors, where "
        "the checkpoint format does not keep it: KeyError.",
        _uses_torch_adam,
        _keep_step_while_setting_states,
    ),
    Workaround(
        "sequence-parallel-norm",
        "WrappedTorchNorm refuses sequence parallel, although its layers only need their parameters marked.",
        lambda: True,
        _allow_sequence_parallel_norm,
    ),
    Workaround(
        "router-gemm",
        "Without Transformer Engine moe_utils never defines te_general_gemm and its router raises NameError (0.16).",
        lambda: not hasattr(moe_utils, "te_general_gemm"),
        _name_missing_router_gemm,
    ),
    Workaround(
        "cpu-splits",
        "maybe_move_tensor_to_cpu turns the all-to-all's split sizes into numbers only where they are on a GPU; "
        "torch.distributed refuses tensors.",
        lambda: not torch.cuda.is_available(),
        _give_splits_as_numbers,
    ),
)
