"""Functions replaced for a while, and put back exactly as they were."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Restored in reverse order. What an owner had only by inheritance, or not at all, it has no more afterwards."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """owner: a class, module or object."""
        # Not getattr: a method of a class would come back as another object than it went.
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
