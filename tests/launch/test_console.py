"""What a long verb says, and how far an arm is."""

from __future__ import annotations

from pathlib import Path

import launching
from samebits.launch import progress
from samebits.launch.console import Echo


def test_away_from_a_terminal_the_changing_line_appears_now_and_then(tmp_path: Path) -> None:
    echo, said = launching.echo()
    for step in range(100):
        echo.update(f"step {step}")
    echo.line("done")
    assert said.getvalue() == "step 0\ndone\n"


def test_on_a_terminal_the_changing_line_is_redrawn_and_cleared(tmp_path: Path) -> None:
    class Terminal:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    echo = Echo(terminal, tmp_path / "log")  # type: ignore[arg-type]
    echo.update("step 1")
    echo.update("step 2")
    echo.line("done")
    assert terminal.text == "step 1\r\x1b[Kstep 2\r\x1b[Kdone\n"
    assert (tmp_path / "log").read_text() == "step 1\ndone\n"


def test_progress_reads_whole_lines_only_and_estimates_from_steps_done(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    assert progress.read(path) is None
    path.write_text("6 7 12 10.0\n")
    assert progress.read(path) == progress.Reached(6, 12, None)
    path.write_text("6 7 12 10.0\n7 7 12 12.0\n8 7 12 14.0\n9 7")
    assert progress.read(path) == progress.Reached(8, 12, 8.0)
    line = progress.describe("resumed", 2, progress.read(path), 75.2)
    assert line == "arm resumed: step 8/12, 1:15, about 0:08 left"
