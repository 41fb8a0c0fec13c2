"""Libraries whose kernels the dispatcher does not see, by the modules that Python calls them through.

Standard library only: an injected process knows the names before it imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Library:
    """not_computing: beginnings of names that compute nothing. rooms: function -> places of arguments that are room to
    work in. written: places of those that are written, where that is known; all, where a function is not in it."""

    not_computing: tuple[str, ...] = ("_", "get_", "is_", "has_", "device_supports", "create_", "init", "Comm", "ubuf")
    rooms: dict[str, frozenset[int]] = field(default_factory=dict)
    written: dict[str, frozenset[int]] = field(default_factory=dict)


_ADDED = {f"wgrad_gemm_accum_{kind}": frozenset({2}) for kind in ("fp32", "fp16")}
"""They add to the third, the gradient's buffer."""

_LAST_ROOM = {name: frozenset({12}) for name in ("generic_gemm", "te_general_grouped_gemm")}

LIBRARIES = {
    "transformer_engine_torch": Library(rooms=_LAST_ROOM),
    "fused_weight_gradient_mlp_cuda": Library(written=_ADDED),
    **{
        name: Library()
        for name in (
            *("amp_C", "fused_layer_norm_cuda", "fast_layer_norm", "fused_rotary_positional_embedding"),
            *("scaled_softmax_cuda", "scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda"),
            *("flash_attn_2_cuda", "flash_attn_3_cuda", "grouped_gemm_backend"),
            *("causal_conv1d_cuda", "selective_scan_cuda"),
        )
    },
}
"""Modules of compiled functions."""

LAUNCHERS = {
    "triton.runtime.jit": "JITFunction",
    "triton.runtime.interpreter": "InterpretedFunction",
}
"""Classes whose `run` launches a kernel."""
TUNERS = {"triton.runtime.autotuner": "Autotuner"}
"""Classes whose `run` tries several launches of one kernel before the one that counts."""

NAMES = (*LIBRARIES, *LAUNCHERS, *TUNERS)
