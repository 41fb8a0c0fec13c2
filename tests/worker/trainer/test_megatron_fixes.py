"""Workarounds of upstream faults can be switched off by name, and only by a name that exists."""

from __future__ import annotations

import json
import subprocess
import sys

# In a process of its own: the CPU backend and the workarounds stay in force where they were installed.
PROBE = """
import json
from samebits.worker.trainer import cpu_backend
cpu_backend.install()
from samebits.worker.trainer import megatron_fixes as upstream
from samebits.spec.questions import Fault
try:
    upstream.apply(frozenset({"no-such-fault"}))
except upstream.UpstreamError as error:
    refusal = str(error)
named = upstream.switched_off([Fault(kind="upstream", target="router-gemm"), Fault(kind="ulp", target="weight")])
print(json.dumps({
    "refusal": refusal,
    "default": sorted(upstream.switched_off([Fault(kind="upstream")])),
    "named": sorted(named),
    "known": [workaround.name for workaround in upstream.WORKAROUNDS],
    "reasons": [workaround.reason for workaround in upstream.WORKAROUNDS],
    "applied": upstream.apply(frozenset({"shared-step"})),
}))
"""


def test_faults_switch_off_workarounds_by_name() -> None:
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", PROBE], check=True, capture_output=True, timeout=120)
    found = json.loads(output.stdout.splitlines()[-1])
    assert found["refusal"].startswith("fault upstream: target is 'no-such-fault', must be one of shared-step, ")
    assert found["default"] == ["shared-step"]
    assert found["named"] == ["router-gemm"]
    assert "shared-step" not in found["applied"]
    assert set(found["applied"]) <= set(found["known"])
    assert all(found["reasons"])
