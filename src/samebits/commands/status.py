"""How a call of the program ends: its exit status, and what is said of an error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

BAD_INPUT = 2
TROUBLE = 4
CLOSED_PIPE = 141
"""128 + SIGPIPE, as a shell reports a program whose reader went away: no verdict, and no fault of samebits."""


class Decided(Exception):  # noqa: N818 - a result, not an error
    """A verdict was reached and shown; only this can make the exit status 1."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _known_errors() -> tuple[type[Exception], ...]:
    """What a user can cause; each carries its own message."""
    from samebits.fingerprint.manifest import ArtifactError
    from samebits.launch.job_state import LaunchError
    from samebits.recipe.cluster import ClusterError
    from samebits.recipe.image import ImageError
    from samebits.recipe.load import RecipeError
    from samebits.recipe.planting import PlantError
    from samebits.report.json import ReportError
    from samebits.spec.plan import PlanError

    return ArtifactError, ClusterError, ImageError, LaunchError, PlanError, PlantError, RecipeError, ReportError


def guarded(call: Callable[[], Any]) -> int:
    """Exit status of a call: known errors as one message, unknown ones with their traceback, never status 1."""
    try:
        call()
        sys.stdout.flush()
    except Decided as decided:
        return _flushed(decided.status)
    except SystemExit as status:
        # 1 is a verdict's alone; typer and rich use it for a pipe that was closed.
        return _refused(BrokenPipeError()) if status.code == 1 else _flushed(_number(status.code))
    except OSError as error:
        return _refused(error)
    except Exception as error:
        if isinstance(error, _known_errors()):
            print(f"samebits: {error}", file=sys.stderr)
            return BAD_INPUT
        traceback.print_exc()
        print("samebits: this is a fault of samebits itself; nothing is proven", file=sys.stderr)
        return TROUBLE
    return 0


def _number(code: object) -> int:
    """Return an exit status that is a number; `sys.exit` also takes a text or nothing."""
    return code if isinstance(code, int) else TROUBLE if code else 0


def _flushed(status: int) -> int:
    """Return the status if all that was said could be said; whoever closed the pipe had heard enough."""
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        _refused(error)
    except OSError as error:
        return _refused(error)
    return status


def _refused(error: OSError) -> int:
    if error.filename is None:
        # Standard output is closed or full: nothing more may be written to it, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    place = error.filename or "standard output"
    print(f"samebits: {place}: {error.strerror or error}; give a place that can be written", file=sys.stderr)
    return TROUBLE
