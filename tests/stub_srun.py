"""A stand-in for srun: `python stub_srun.py SITE OPTIONS COMMAND` runs the command as tasks, all on this machine.

It numbers them, writes their logs, passes SIGTERM and SIGUSR1 on and says how they ended, in srun's own words. SITE, a
folder, gets `srun.log`, what it was asked, and `step`, the tasks' process ids.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
NO_COMMAND = 2

tasks: dict[int, subprocess.Popen[bytes]] = {}


def main(site: Path, words: list[str]) -> int:
    options = {}
    while words[0].startswith("--"):
        name, _, value = words.pop(0).removeprefix("--").partition("=")
        options[name] = value
    with (site / "srun.log").open("a") as stream:
        stream.write(json.dumps({"options": options, "command": words}) + "\n")
    for signum in SIGNALS:
        signal.signal(signum, pass_on)
    for task in range(int(options["ntasks"])):
        try:
            start(task, options, words)
        except FileNotFoundError as error:
            complain(f"slurmstepd: error: execve(): {words[0]}: {error.strerror}")
            complain(f"srun: error: {node(task, options)}: task {task}: Exited with exit code {NO_COMMAND}")
            return NO_COMMAND
    (site / "step").write_text(" ".join(str(task.pid) for task in tasks.values()))
    return watch(options)


def start(task: int, options: dict[str, str], words: list[str]) -> None:
    numbers = {"SLURM_PROCID": task, "SLURM_LOCALID": task % int(options["ntasks-per-node"])}
    own = {name: str(number) for name, number in numbers.items()}
    pattern = options.get("output", "/dev/stderr")
    with Path(pattern.replace("%5t", f"{task:05}")).open("wb") as log:
        tasks[task] = subprocess.Popen(
            words,
            env={**os.environ, **own, "SLURM_STEP_NUM_TASKS": options["ntasks"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=unblock,  # noqa: PLW1509 - it has one thread
        )


def unblock() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


def watch(options: dict[str, str]) -> int:
    """Waits for all tasks, whatever becomes of one; the worst status."""
    worst, left = 0, dict(tasks)
    while left:
        for task in [task for task, process in left.items() if process.poll() is not None]:
            status = left.pop(task).returncode
            worst = max(worst, status if status >= 0 else 128 - status)
            if status:
                how = f"Exited with exit code {status}" if status > 0 else signal.strsignal(-status)
                complain(f"srun: error: {node(task, options)}: task {task}: {how}")
        time.sleep(0.02)
    return worst


def node(task: int, options: dict[str, str]) -> str:
    return f"n{task // int(options['ntasks-per-node']) + 1}"


def complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def pass_on(signum: int, _frame: object) -> None:
    for process in tasks.values():
        process.send_signal(signum)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
