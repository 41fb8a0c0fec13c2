"""From stacks in logs to the rank that the others wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from samebits.launch import stacks
from samebits.launch.stacks import Stack

WAITING = Stack(("distributed_c10d.py:2810 in all_reduce", "loop.py:88 in step"), waits=True)
WORKING = Stack(("data.py:12 in read", "loop.py:70 in step"), waits=False)


def dumped(log: Path, code: str) -> Stack | None:
    """What a process that ran `code` wrote into its log when it was asked."""
    script = f"import faulthandler, signal, os\nfaulthandler.register(signal.SIGUSR1, all_threads=True)\n{code}"
    with log.open("w") as stream:
        print("rank 0 starts", file=stream, flush=True)
        subprocess.run([sys.executable, "-c", script], stderr=stream, check=True)
    return stacks.read(log)


def test_the_innermost_frame_comes_first(tmp_path: Path) -> None:
    code = "def inner(): os.kill(os.getpid(), signal.SIGUSR1)\ndef outer(): inner()\nouter()"
    stack = dumped(tmp_path / "log", code)

    assert stack is not None
    assert stack.frames == ("<string>:3 in inner", "<string>:4 in outer", "<string>:5 in <module>")
    assert not stack.waits


def test_the_thread_that_was_asked_counts_among_several(tmp_path: Path) -> None:
    code = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def here(): os.kill(os.getpid(), signal.SIGUSR1)\nhere()"
    )
    stack = dumped(tmp_path / "log", code)

    assert stack is not None
    assert stack.frames[0].endswith("in here")


@pytest.mark.parametrize(
    ("file", "waits"),
    [
        ("/site/torch/distributed/distributed_c10d.py", True),
        ("/site/torch/autograd/graph.py", True),
        ("/site/megatron/core/pipeline_parallel/p2p_communication.py", True),
        ("/site/torch/utils/data/dataloader.py", False),
        ("/home/me/train.py", False),
    ],
)
def test_a_rank_inside_a_collective_waits(tmp_path: Path, file: str, waits: bool) -> None:
    frame = f"exec(compile('os.kill(os.getpid(), signal.SIGUSR1)', {file!r}, 'exec'))"
    stack = dumped(tmp_path / "log", frame)

    assert stack is not None
    assert stack.waits is waits


def test_a_log_without_a_stack_is_a_rank_that_wrote_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("rank 0 starts\n")
    assert stacks.read(tmp_path / "log") is None
    assert stacks.read(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("steps", "seen", "expected"),
    [
        ({0: 5, 1: 5, 2: 5}, {0: WAITING, 1: WORKING, 2: WAITING}, ([1], "does not wait for the others")),
        ({0: 5, 1: 5, 2: 5}, {0: WAITING, 1: None, 2: WAITING}, ([1], "does not wait for the others")),
        ({0: 5, 1: 4, 2: 5}, {0: WAITING, 1: WAITING, 2: WAITING}, ([1], "is behind the others")),
        ({0: 5, 1: 4, 2: 5}, {0: None, 1: None, 2: None}, ([1], "is behind the others")),
        ({0: 5, 1: 5}, {0: WAITING, 1: WAITING}, ([], "")),
        ({0: 5, 1: 5}, {0: WORKING, 1: WORKING}, ([], "")),
    ],
)
def test_suspects_are_those_that_others_wait_for(
    steps: dict[int, int], seen: dict[int, Stack | None], expected: tuple[list[int], str]
) -> None:
    assert stacks.suspects(steps, seen) == expected


def test_few_ranks_at_one_place_come_before_many() -> None:
    groups = stacks.grouped({0: WAITING, 1: WORKING, 2: WAITING})
    assert [ranks for _, ranks in groups] == [[1], [0, 2]]
    assert groups[0][0] == "data.py:12 in read < loop.py:70 in step"
