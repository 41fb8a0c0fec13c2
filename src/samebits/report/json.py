"""report.json: a judgement as strict JSON, and back.

Numbers that JSON lacks are the strings `NaN`, `Infinity` and `-Infinity`. `check` is a digest of all else, so that an
edited or damaged report cannot change a verdict by accident; it is no protection against forgery.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from samebits.compare.encode import plain
from samebits.compare.results import Curve, Divergence, Scope, Symptom
from samebits.gates.judgement import ArmSummary, Judgement
from samebits.overhead.results import Checks, Effect, Findings, PhaseCost, RunTimes, SettingTimes
from samebits.overhead.statistics import Correlation, Estimate, Interval
from samebits.spec.plan import PlanError, decode

KIND = "samebits report"
REPORT_FORMAT = 4
_WAY_OUT = "make it again with `samebits report RECIPE`, or compare the arms with `samebits compare A B`"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


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
    try:
        return decode(Judgement, _revived(body))
    except PlanError as error:
        raise ReportError(str(error)) from error


def _refuse_constant(name: str) -> Any:
    raise ReportError(f"not strict JSON: it holds the number {name}")


def _check(body: Any) -> str:
    return hashlib.blake2b(_dumped(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _dumped(body: Any, **style: Any) -> str:
    return json.dumps(body, allow_nan=False, **style)


def _keys(noun: type[Any]) -> set[str]:
    return {entry.name for entry in dataclasses.fields(noun)}


def _floats(noun: type[Any]) -> set[str]:
    """Fields that hold a float, or several."""
    return {entry.name for entry in dataclasses.fields(noun) if "float" in str(entry.type)}


_COSTS = (Checks, Correlation, Effect, Estimate, Findings, Interval, PhaseCost, RunTimes, SettingTimes)
_WITH_FLOATS = {frozenset(_keys(noun)): _floats(noun) for noun in (ArmSummary, Curve, Scope, *_COSTS)}


def _revived(value: Any) -> Any:
    """With the enumerations and the numbers that `plain` wrote as strings."""
    if isinstance(value, list):
        return [_revived(item) for item in value]
    if not isinstance(value, dict):
        return value
    entry = {key: _revived(item) for key, item in value.items()}
    if entry.keys() == _keys(Divergence):
        entry["symptom"] = Symptom(entry["symptom"])
    return entry | {key: _numbers(entry[key]) for key in _WITH_FLOATS.get(frozenset(entry), ())}


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
