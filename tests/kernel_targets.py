"""Compiles the kernel for devices that need not be here, and prints what it became as JSON, by compute capability.
`test_kernel.py` runs this in a process of its own."""

from __future__ import annotations

import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from samebits.worker.capture import triton_kernel

CAPABILITIES = (80, 90, 100)


def compiled(capability: int) -> dict[str, object]:
    """loads: bytes of each load from memory, in order. local: whether registers are spilled to memory."""
    source = ASTSource(
        fn=triton_kernel.add_sums,
        signature={"work": "*i64", "weights": "*i64", "sums": "*i64", "first": "i32", "columns": "constexpr"},
        constexprs={(4,): triton_kernel.COLUMNS},
        attrs={(place,): [["tt.divisibility", 16]] for place in range(3)},
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
    loads = re.findall(r"ld\.global(?:\.v(\d))?\.b(\d+)", ptx)
    return {
        "loads": [int(count or 1) * int(bits) // 8 for count, bits in loads],
        "reversals": ptx.count("prmt.b32"),
        "local": ".local" in ptx,
        "atomics": re.findall(r"atom\.\S+", ptx),
    }


if __name__ == "__main__":
    print(json.dumps({capability: compiled(capability) for capability in CAPABILITIES}))
