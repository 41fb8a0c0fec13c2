"""What a section of the recipe is strict about: keys, types and bounds.

Read by pydantic on the host, through hooks that import nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar


class Section:
    """What pydantic is to refuse in every section: unknown keys, values of another type, NaN and infinities."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True)
class Bounds:
    """Closed interval for a number. above: an open lower end."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        limits = {"ge": self.low, "le": self.high, "gt": self.above}
        schema.update({key: limit for key, limit in limits.items() if limit is not None})
        return schema


Count = Annotated[int, Bounds(low=1)]
Whole = Annotated[int, Bounds(low=0)]
Probability = Annotated[float, Bounds(low=0.0, high=1.0)]
NonNegative = Annotated[float, Bounds(low=0.0)]
Positive = Annotated[float, Bounds(above=0.0)]
