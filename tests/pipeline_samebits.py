"""The verbs that rules call, over stub ranks: what the pipeline does is under test, not what is computed.

    python pipeline_samebits.py MODE VERB ...

A folder `results/NAME/fail` makes the verdict 1; `refuse` in an artifact makes `collect` refuse it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from samebits.commands import launching

STUB = Path(__file__).with_name("stub_rank.py")


def main() -> int:
    mode, name, *arguments = sys.argv[1:]
    verbs = {"run": run, "collect": collect, "localize": localize, "report": report, "verdict": verdict}
    return verbs[name](mode, arguments)


def run(mode: str, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=Path)
    parser.add_argument("arm")
    for option in ("--results", "--stamp", "--log"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--cluster", type=Path)
    given = parser.parse_args(arguments)
    command = [sys.executable, str(STUB), mode]
    return launching.run(
        given.recipe,
        given.arm,
        given.results,
        stamp=given.stamp,
        log=given.log,
        cluster=given.cluster,
        command=command,
    )


def collect(_: str, arguments: list[str]) -> int:
    folder, option, stamp = arguments
    assert option == "--stamp"
    refused = (Path(folder) / "refuse").exists()
    Path(stamp).write_text("refused: the file is cut\n" if refused else "sealed\n")
    print(f"{folder}: {'refused' if refused else 'sealed'}")
    return 0


def localize(_: str, arguments: list[str]) -> int:
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    Path(given["--stamp"]).write_text("")
    return 0


def report(_: str, arguments: list[str]) -> int:
    recipe, option, results = arguments
    assert option == "--results"
    for name in ("report.html", "report.json", "junit.xml"):
        (Path(results) / Path(recipe).stem / name).write_text(name)
    return 0


def verdict(_: str, arguments: list[str]) -> int:
    failed = (Path(arguments[0]) / "fail").exists()
    print("verdict: fail" if failed else "verdict: pass")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
