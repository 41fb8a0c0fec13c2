"""What an operation can do by its nature: draw at random, sum in any order, or only what its inputs say.

Names are torch's (`aten.add.Tensor`). An operation of another library's name is never taken for a harmless one.
"""

from __future__ import annotations

import re

_ATEN = re.compile(r"aten\.(?P<base>[A-Za-z0-9_]+?)(\.[A-Za-z0-9_]+)?(#\d+)?")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GEMM = _words(
    """
    mm addmm bmm baddbmm addbmm matmul linear mv addmv addr dot vdot einsum _scaled_mm _grouped_mm
    _scaled_grouped_mm _int_mm _addmm_activation convolution convolution_backward linear_backward chain_matmul
    sparse_mm
    """
)

_RANDOM = _words(
    """
    bernoulli rand rand_like randn randn_like randint randint_like randperm normal uniform native_dropout dropout
    exponential multinomial rrelu rrelu_with_noise poisson random _fused_dropout cauchy geometric log_normal
    binomial alpha_dropout feature_dropout
    """
)

_MOVES = _words(
    """
    view _unsafe_view reshape slice select narrow split split_with_sizes chunk unbind transpose t permute
    unsqueeze squeeze expand alias detach as_strided diagonal clone copy _to_copy contiguous cat stack fill zero
    zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full arange lift_fresh flip roll repeat
    movedim unfold slice_backward select_backward slice_scatter select_scatter index _unsafe_index index_select take
    gather embedding tril triu triu_indices tril_indices eye scalar_tensor _reshape_alias masked_fill masked_select
    nonzero where _local_scalar_dense constant_pad_nd pad view_as_real view_as_complex real imag resize
    """
)
_ROUNDED = _words(
    """
    add sub rsub mul div neg abs sign sgn reciprocal sqrt square relu leaky_relu hardtanh clamp clamp_min clamp_max
    maximum minimum fmax fmin floor ceil round trunc frac remainder fmod floor_divide true_divide copysign eq ne lt le
    gt ge isnan isinf isfinite logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor
    bitwise_not bitwise_left_shift bitwise_right_shift threshold_backward threshold native_dropout_backward
    hardtanh_backward leaky_relu_backward nan_to_num
    """
)
"""Each element by one correctly rounded operation, whatever the kernel. Not `exp`, `tanh`, `silu` and the like, nor
what multiplies and adds at once: a vectorised kernel and its scalar tail may round those otherwise."""


def base(name: str) -> str | None:
    """Return `add` for `aten.add_.Tensor`, `aten._foreach_add.List` and `aten.add.Tensor#1`; None for what is
    not of ATen."""
    found = _ATEN.fullmatch(name)
    if found is None:
        return None
    plain = found["base"].removesuffix("_").removeprefix("_foreach_")
    return plain.removesuffix("_copy") if plain.endswith("_copy") and plain != "_to_copy" else plain


def is_gemm(name: str) -> bool:
    return base(name) in _GEMM


def is_random(name: str) -> bool:
    """Return whether an operation draws from a random generator."""
    return base(name) in _RANDOM


def is_fixed(name: str) -> bool:
    """Return whether equal inputs cannot give two results.

    So it is where elements are only moved, or each is computed by one correctly rounded operation.
    """
    return base(name) in _MOVES | _ROUNDED
