"""What submitting does to signals of whoever submits."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from samebits.launch import submit

TELL = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """SIGINTs that this process got."""
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_comes_while_a_job_is_submitted_is_seen_right_after(seen: list[int]) -> None:
    with submit._blocked(signal.SIGINT):
        # To this thread: a library of another test may have left threads that block nothing.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert seen == []
    assert seen == [signal.SIGINT]


def test_what_is_started_meanwhile_never_sees_one() -> None:
    with submit._blocked(signal.SIGINT):
        inside = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True)
    outside = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True)
    assert (inside.stdout, outside.stdout) == ("True\n", "False\n")
