"""Temporary replacement of functions, undone exactly."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Replacements of attributes, restored in reverse order.

    An attribute that its owner only inherited, or did not have, is deleted again.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a class, module or object."""
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
