"""A recipe's or cluster file as plain values: YAML of one mapping, in which nothing is guessed.

Unlike YAML 1.1, and like its core schema 1.2: `1e-3` is a number, `yes` and `on` are text, `1:30` is text, dates are
text. Repeated keys are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_DEEPEST = 20


class DocumentError(ValueError):
    """A file that is not YAML of one mapping. The message names file and line, and the way out."""


def read(path: Path, *, noun: str = "recipe", example: str = "recipes/smoke.yaml") -> dict[str, Any]:
    """Keys are text; values are numbers, text, true, false, null, lists and mappings.

    noun: what the file should hold. example: a file that does. Raises DocumentError.
    """
    text = _text(path, noun)
    try:
        # _Loader is a SafeLoader: it builds plain values only.
        body = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise DocumentError(f"{path}{_line(error)}: {_reason(error)}") from error
    except yaml.YAMLError as error:
        raise DocumentError(f"{path}: not YAML ({' '.join(str(error).split())}); mend the text") from error
    if body is None:
        raise DocumentError(f"{path}: is empty, must hold a {noun}; start from {example}")
    if not isinstance(body, dict):
        found = "a list" if isinstance(body, list) else f"{type(body).__name__} {body!r}"
        raise DocumentError(f"{path}: holds {found[:80]}, must be a mapping (`key: value` lines); see {example}")
    return body


def _text(path: Path, noun: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DocumentError(f"{path}: no such file{_neighbours(path)}") from error
    except IsADirectoryError as error:
        raise DocumentError(f"{path}: is a folder, must be a {noun} itself{_neighbours(path / 'x')}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DocumentError(
            f"{path}, line {line}: byte {error.object[error.start]:#04x} is not UTF-8; save the file as UTF-8 text"
        ) from error
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error


def _neighbours(path: Path) -> str:
    """The recipes in the same folder, as a way out."""
    names = sorted(entry.name for entry in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return f"; {path.parent} has {', '.join(names[:8])}" if names else "; give the path of a recipe (NAME.yaml)"


def _line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f", line {mark.line + 1}" if mark else ""


def _reason(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, _Refusal):
        return str(error.problem)
    parts = [part for part in (error.context, error.problem) if part]
    return f"not YAML ({', '.join(parts)}); mend this line or the one before it"


class _Refusal(yaml.MarkedYAMLError):
    """YAML that a recipe may not use."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    _depth = 0
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (pyyaml's own way)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Refusal("aliases (*name) are refused; write the value out", event.start_mark)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _Refusal(f"tag {event.tag!r} is refused; write a plain value", event.start_mark)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _Refusal("is nested too deep for a recipe; write sections of plain values", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            self._check_key(key, lines)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def _check_key(self, key: Any, lines: dict[str, int]) -> None:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            shown = key.value if isinstance(key, yaml.ScalarNode) else "(a list or mapping)"
            raise _Refusal(f"key {shown} is not text; write it in quotes", key.start_mark)
        if key.value in lines:
            problem = f"key {key.value!r} is given twice (first in line {lines[key.value]}); delete one of the two"
            raise _Refusal(problem, key.start_mark)


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))


_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("null", "null|Null|NULL|~", "nN~")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^$"), [""])  # `key:` and nothing after it
_resolve("int", "[-+]?[0-9]+", "-+0123456789")
_resolve("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789")
_resolve("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.")


def _int(loader: _Loader, node: Any) -> int | float:
    return _number(int, node)


def _float(loader: _Loader, node: Any) -> int | float:
    return _number(float, node)


def _number(kind: type[int] | type[float], node: Any) -> int | float:
    """YAML writes `.inf` and `.nan` where Python reads `inf` and `nan`."""
    try:
        return kind(re.sub(r"\.(?=[a-z])", "", node.value.lower()))
    except ValueError as error:
        problem = f"a number of {len(node.value)} digits is too long; write a shorter one"
        raise _Refusal(problem, node.start_mark) from error


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
