"""Runs a hook right behind a module's own code, before whoever imports it goes on. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


class Finder(MetaPathFinder):
    """Finds nothing by itself: asks the others, and lets the loader that they give run a hook at its end."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self._hooks = dict(hooks)
        self._asking: set[str] = set()

    def install(self) -> None:
        """First of all finders; of modules that are there already the hooks run at once."""
        sys.meta_path.insert(0, self)
        for name in [name for name in self._hooks if name in sys.modules]:
            self._run(sys.modules[name], name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # A finder that asks all others in its turn, ours among them, must get their answer.
        if fullname not in self._hooks or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = self._asked(fullname, path, target)
        finally:
            self._asking.discard(fullname)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return None
        self._extend(spec.loader, fullname)
        return spec

    def _asked(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find = getattr(finder, "find_spec", None)
            if find is not None and (spec := find(fullname, path, target)) is not None:
                found: ModuleSpec = spec
                return found
        return None

    def _extend(self, loader: Any, fullname: str) -> None:
        """A spec may be asked for and not used: only a module that was executed uses its hook up."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._run(module, fullname)

        loader.exec_module = exec_module

    def _run(self, module: ModuleType, fullname: str) -> None:
        if hook := self._hooks.pop(fullname, None):
            hook(module)
