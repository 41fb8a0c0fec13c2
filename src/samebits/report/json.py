"""report.json: a judgement as strict JSON, and back.

Numbers that JSON lacks are the strings `NaN`, `Infinity` and `-Infinity`. `check` is a digest of all else, so that an
edited or damaged report cannot change a verdict by accident; it is no protection against forgery.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from samebits.compare.results import from_plain, plain
from samebits.gates.judgement import Judgement

KIND = "samebits report"
REPORT_FORMAT = 4
_WAY_OUT = "make it again with `samebits report RECIPE`, or compare the arms with `samebits compare A B`"


class ReportError(ValueError):
    """A report that cannot be read back."""


def report_json(judgement: Judgement) -> str:
    """`kind` and `check`, then the fields of the judgement; keys in the order of its declaration."""
    body = plain(judgement)
    return _dumped({"kind": KIND, "check": _check(body), **body}, indent=1) + "\n"


def load(path: Path) -> Judgement:
    """Raises ReportError where the file is missing, damaged, foreign or of another format."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ReportError(f"{path}: there is no such file; {_WAY_OUT}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read ({error}); {_WAY_OUT}") from error
    try:
        return _judgement(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: {error}; {_WAY_OUT}") from error


def _judgement(text: str) -> Judgement:
    try:
        body = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ReportError(f"not JSON ({error})") from error
    if not isinstance(body, dict) or body.pop("kind", None) != KIND:
        raise ReportError(f"not a report of samebits (`kind` must be {KIND!r})")
    if body.get("format") != REPORT_FORMAT:
        raise ReportError(f"format is {body.get('format')!r}, must be {REPORT_FORMAT}")
    if (written := body.pop("check", None)) != _check(body):
        raise ReportError(f"damaged or edited: its check is {written!r}, must be {_check(body)!r}")
    return from_plain(Judgement, body)


def _refuse_constant(name: str) -> Any:
    raise ReportError(f"not strict JSON: it holds the number {name}")


def _check(body: Any) -> str:
    return hashlib.blake2b(_dumped(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _dumped(body: Any, **style: Any) -> str:
    return json.dumps(body, allow_nan=False, **style)
