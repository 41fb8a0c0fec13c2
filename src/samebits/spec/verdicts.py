"""The four verdicts, and what they are as an exit status."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["pass", "fail", "invalid", "inconclusive"]
EXIT_STATUS: dict[Verdict, int] = {"pass": 0, "fail": 1, "invalid": 2, "inconclusive": 3}
