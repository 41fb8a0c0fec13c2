"""Hooks that run when a module is imported. Standard library only: every Python of a launch line imports this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


class Finder(MetaPathFinder):
    """Import finder that runs a hook right after a module's own code, before its importer goes on.

    It finds nothing itself: it asks the other finders and extends the loader that they return.
    """

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self._hooks = dict(hooks)
        self._asking: set[str] = set()

    def install(self) -> None:
        """Stand before all other finders; run the hooks of modules that are imported already at once."""
        sys.meta_path.insert(0, self)
        for name in [name for name in self._hooks if name in sys.modules]:
            self._run(sys.modules[name], name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another finder may ask all finders in its turn, this one included: it must get their answer.
        if fullname not in self._hooks or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.discard(fullname)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        # The hook is used up when the module is executed: a spec may be asked for and never used.
        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._run(module, fullname)

        loader.exec_module = exec_module
        return spec

    def _ask_others(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find = getattr(finder, "find_spec", None)
            if find is not None and (spec := find(fullname, path, target)) is not None:
                found: ModuleSpec = spec
                return found
        return None

    def _run(self, module: ModuleType, fullname: str) -> None:
        if hook := self._hooks.pop(fullname, None):
            hook(module)
