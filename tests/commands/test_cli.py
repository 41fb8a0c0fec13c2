"""The verbs as a user meets them: one message, the right exit status, nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import artifacts
import builders
import evidence
import samebits
import timed
from samebits.commands import judging, status
from samebits.gates.judge import judge
from samebits.recipe.load import load
from samebits.recipe.planting import PlantError, parse
from samebits.report import html
from samebits.spec.questions import Fault


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("samebits")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_verb_has_a_help_line() -> None:
    said = call("--help")
    assert said.returncode == 0
    for verb in (
        "plan",
        "run",
        "overhead",
        "collect",
        "compare",
        "report",
        "verdict",
        "show",
        "export",
        "schema",
        "image",
    ):
        assert f"\n  {verb} " in said.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, samebits.cli; print([m for m in ('torch', 'numpy', 'pydantic', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_plan_lists_every_arm_with_its_command_and_environment(tmp_path: Path) -> None:
    rows = json.loads(call("plan", builders.recipe_file(tmp_path), "--json").stdout)["arms"]
    assert [row["arm"] for row in rows] == ["reference", "twin-1", "resumed", "control-ulp", "control-resume", "bare"]
    assert all(row["command"].startswith("samebits run ") and row["environment"] for row in rows)
    shown = call("plan", builders.recipe_file(tmp_path))
    assert shown.returncode == 0
    assert all(row["arm"] in shown.stdout for row in rows)


def test_a_bad_recipe_is_one_message_and_status_2(tmp_path: Path) -> None:
    path = builders.recipe_file(tmp_path, parallel={"world": 3})
    said = call("plan", path)
    assert said.returncode == status.BAD_INPUT
    assert str(path) in said.stderr
    assert "parallel.world is 3" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("same", [True, False], ids=["equal", "different"])
def test_compare_exits_with_its_verdict_in_words_and_as_json(tmp_path: Path, same: bool) -> None:
    status = 0 if same else 1
    folders = written_pair(tmp_path, same)
    said = call("compare", *folders)
    assert said.returncode == status, said.stderr
    found = json.loads(call("compare", *folders, "--json").stdout)
    assert found["verdict"] == ("pass" if same else "fail")


def written_pair(folder: Path, same: bool) -> tuple[Path, Path]:
    change = [] if same else [artifacts.altered("metric:lm loss", rank=1, step=2)]
    reference, candidate = evidence.pair(folder, change=change)
    return reference.folder, candidate.folder


def test_comparing_with_nothing_is_inconclusive(tmp_path: Path) -> None:
    for name in ("no", "where"):
        (tmp_path / name).mkdir()
    said = call("compare", tmp_path / "no", tmp_path / "where")
    assert said.returncode == 3
    assert "no" in said.stdout


@pytest.mark.parametrize("verb", ["collect", "verdict", "show"])
def test_a_folder_that_is_not_there_is_one_message(verb: str, tmp_path: Path) -> None:
    said = call(verb, tmp_path / "nothing")
    assert said.returncode == status.BAD_INPUT
    assert "nothing" in said.stderr
    assert "Traceback" not in said.stderr


def test_an_unexpected_error_never_looks_like_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    assert status.guarded(broken) == status.TROUBLE
    assert "fault of samebits itself" in capsys.readouterr().err


def test_a_fault_to_plant_is_read_from_one_word() -> None:
    assert parse("ulp:rank=1:step=3:target=a.b") == Fault(kind="ulp", rank=1, step=3, target="a.b")


@pytest.mark.parametrize(("text", "rule"), [("ulp:step=99", "at most steps"), ("ulp:rank=7", "from 0 to 1")])
def test_a_fault_planted_where_no_run_ever_is_is_refused_before_anything_starts(
    text: str, rule: str, tmp_path: Path
) -> None:
    recipe = builders.recipe_file(tmp_path)
    for verb in (("run", recipe, "reference"), ("stress", recipe)):
        said = call(*verb, "--plant", text, "--results", tmp_path / "results")
        assert said.returncode == status.BAD_INPUT
        assert "--plant: ulp's" in said.stderr
        assert rule in said.stderr
        assert "Traceback" not in said.stderr
        assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("verb", [("compare",), ("localize",), ("check",)])
def test_a_mistyped_folder_is_bad_input_and_makes_nothing(verb: tuple[str, ...], tmp_path: Path) -> None:
    folders = [tmp_path / "referenc", tmp_path / "twin"][: 1 if verb == ("check",) else 2]
    said = call(*verb, *folders)
    assert said.returncode == status.BAD_INPUT
    assert said.stderr == f"samebits: {folders[0]}: no such folder; give the folder of an arm\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [("report",), ("localize", "--of")])
def test_a_mistyped_folder_of_results_is_bad_input_and_makes_nothing(verb: tuple[str, ...], tmp_path: Path) -> None:
    said = call(*verb, builders.recipe_file(tmp_path), "--results", tmp_path / "result")
    assert said.returncode == status.BAD_INPUT
    assert "result: no such folder; give the folder in which the arms ran, by --results" in said.stderr
    assert not (tmp_path / "result").exists()


def test_show_refuses_a_rank_that_is_not_there_and_a_choice_without_a_step(tmp_path: Path) -> None:
    reference, _ = written_pair(tmp_path, same=True)
    assert "rank-00007.fp" in call("show", reference, "--step", "1", "--rank", "7").stderr
    for choice in (("--rank", "7"), ("--moment", "saved")):
        said = call("show", reference, *choice)
        assert said.returncode == status.BAD_INPUT
        assert "give --step" in said.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert call("--version").stdout == f"samebits {samebits.__version__}\n"


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a judged recipe over a file of tokens, from which the verbs are called."""
    home = tmp_path / "home"
    (home / "recipes").mkdir(parents=True)
    (home / "tokens.bin").write_bytes(bytes(4096))
    recipe = load(builders.recipe_file(home / "recipes", data=builders.tokens("../tokens.bin")))
    html.write(judge(recipe, home / "results"), home / "results" / recipe.name)
    monkeypatch.chdir(home)
    return home


def warnings(folder: str | Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(status.Decided):
        judging.verdict(Path(folder), as_json=True)
    return capsys.readouterr().err


def test_a_verdict_warns_where_the_recipe_was_edited_since(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warnings("results/smoke", capsys) == ""
    path = judged / "recipes" / "smoke.yaml"
    path.write_text(path.read_text().replace("steps: 12", "steps: 18"))
    assert "has changed since this verdict" in warnings("results/smoke", capsys)
    path.write_text("name: smoke")
    assert "cannot tell whether the recipe has changed" in warnings("results/smoke", capsys)


def test_a_verdict_that_moved_with_its_recipe_warns_of_nothing_but_another_recipes_name(
    judged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = judged.rename(judged.with_name("moved"))
    monkeypatch.chdir(moved)
    assert warnings("results/smoke", capsys) == ""
    (moved / "results" / "smoke").rename(moved / "results" / "other")
    assert warnings("results/other", capsys) == "samebits: results/other: holds the results of recipe smoke\n"


@pytest.mark.parametrize("text", ["", "quake", "ulp:rank", "ulp:rank=x", "ulp:step=0", "ulp:where=1", "ulp:rank=-1"])
def test_a_word_that_names_no_fault_is_refused(text: str) -> None:
    with pytest.raises(PlantError, match="--plant"):
        parse(text)


def test_a_closed_pipe_is_never_a_verdict_of_fail(tmp_path: Path) -> None:
    reference, candidate = written_pair(tmp_path, same=True)
    program = Path(sys.executable).with_name("samebits")
    for more in ("", "--json"):
        line = f"{program} compare {reference} {candidate} {more} | true; exit ${{PIPESTATUS[0]}}"
        ended = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)
        assert ended.returncode in (0, status.CLOSED_PIPE), ended
        assert not ended.stderr


def test_a_full_disk_behind_standard_output_is_one_message(tmp_path: Path) -> None:
    reference, candidate = written_pair(tmp_path, same=True)
    program = Path(sys.executable).with_name("samebits")
    line = f"{program} compare {reference} {candidate} > /dev/full"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status.TROUBLE
    assert ended.stderr.startswith("samebits: standard output: No space left")
    assert "Traceback" not in ended.stderr


def test_collecting_a_folder_that_is_no_arm_takes_nothing_away(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("mine")
    assert call("collect", tmp_path).returncode == status.BAD_INPUT
    assert (tmp_path / "manifest.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--null",), "overhead is absent"),
        (("--null", "--capture"), "ask for one at a time"),
        (("--slowdown", "2"), "--slowdown is 2, must be left out but with --null"),
        (("--null", "--slowdown", "nan"), "--slowdown is nan, must be a percentage"),
    ],
)
def test_an_experiment_that_cannot_be_made_is_one_message(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = call("overhead", builders.recipe_file(tmp_path), "--results", tmp_path / "results", *options)
    assert done.returncode == status.BAD_INPUT
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_plan_tells_how_narrow_an_interval_will_be(tmp_path: Path) -> None:
    overhead = {"limit_percent": 5.0, "blocks": 8, "steps": 10, "warm_up": 2}
    path = builders.recipe_file(tmp_path, gates=["overhead"], overhead=overhead)
    shown, body = call("plan", path), json.loads(call("plan", path, "--json").stdout)
    (row,) = body["experiments"]
    assert (body["arms"], row["runs"], row["blocks"], row["measured"]) == ([], 33, 8, False)
    assert row["half_width"] == pytest.approx(0.7, abs=0.1)
    assert row["wanted_blocks"] == 12
    assert "9 in 10 such experiments" in " ".join(shown.stdout.split())
    assert f"samebits overhead {path}" in shown.stdout.replace("\n", "")


def test_collecting_an_experiment_seals_all_its_runs(tmp_path: Path) -> None:
    recipe = timed.recipe()
    folder = timed.write(tmp_path, recipe) / recipe.name / "overhead"
    (folder / "steps.parquet").unlink()
    done = call("collect", folder, "--json", "--stamp", tmp_path / "stamp")
    assert json.loads(done.stdout) == {"runs": 17, "ranks": 2}
    assert (folder / "steps.parquet").exists()
    assert (tmp_path / "stamp").read_text().count("sealed") == 17
    (folder / "baseline-1" / "rank-00000.fp").write_bytes(b"cut")
    done = call("collect", folder, "--stamp", tmp_path / "stamp")
    assert done.returncode == 0
    assert (tmp_path / "stamp").read_text().startswith("refused\n")
    assert call("collect", folder).returncode != 0
