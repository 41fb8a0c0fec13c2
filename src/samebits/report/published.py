"""What NVIDIA published about the cost of determinism, each figure with where it stands: context, never a pass mark.

Other models on other machines, measured in another way; nothing here is compared with anything that samebits measures.
"""

from __future__ import annotations

from dataclasses import dataclass

_GUIDE = "Megatron documentation on determinism"
_DISCUSSION = "Megatron-LM discussion 7497"
_PRESS = "press report"


@dataclass(frozen=True, kw_only=True)
class Published:
    """scale: GPUs, or which models. cost: of a step, as published."""

    scale: str
    cost: str
    source: str


FIGURES = (
    Published(scale="typical", cost="about 15 %", source=_GUIDE),
    Published(scale="dense models", cost="about 4 %", source=_GUIDE),
    Published(scale="hybrid mixture of experts", cost="about 17 %", source=_GUIDE),
    Published(scale="their goal", cost="below 10 %, stretch 5 %", source=_GUIDE),
    Published(scale="8 GPUs", cost="38 %, then 21 %, then 2 %", source=_DISCUSSION),
    Published(scale="96 GPUs", cost="15 %, then 1 to 2 %", source=_DISCUSSION),
    Published(scale="1,024 GPUs", cost="3.5 %", source=_DISCUSSION),
    Published(scale="1,536 GPUs", cost="1.5 %", source=_DISCUSSION),
    Published(scale="2,432 GPUs", cost="2 %", source=_PRESS),
    Published(scale="3,072 GPUs", cost="4.6 %", source=_DISCUSSION),
)
METHOD = (
    "Their cost is (deterministic / fastest supported baseline − 1) × 100, after stabilisation. Their gate takes three "
    "alternating pairs of fresh processes, 20 warm-up and 50 timed steps, the median ratio and a bootstrap interval."
)
