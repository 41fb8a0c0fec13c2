"""Capture in a script that knows nothing of it: one rank, started as a launcher would, with each trap of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import commands
from samebits.compare.verify import expected_blocks
from samebits.fingerprint import reader
from samebits.fingerprint.paths import Artifact

pytestmark = pytest.mark.ranks

LINE = "python tiny.py --steps {stop} --save {save} --out {logs}"


def run(folder: Path, line: str = LINE, **changes: Any) -> tuple[Artifact, subprocess.CompletedProcess[str]]:
    recipe = commands.recipe(command={"full": line, **changes.pop("command", {})})
    return commands.start(folder, commands.plan(recipe), **changes)


def blocks(artifact: Artifact) -> list[tuple[str, int]]:
    """Those of a sealed file."""
    found = reader.read(artifact.fingerprint(0), deep=True)
    assert found.seal is not None, found.fault
    return [(block.moment.name, block.step) for block in found.blocks]


def chain(artifact: Artifact) -> bytes:
    return reader.read(artifact.fingerprint(0), deep=True).blocks[-1].chain


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script computes by itself."""
    out = tmp_path_factory.mktemp("plain")
    subprocess.run(
        [sys.executable, "tiny.py", "--steps", "4", "--save", str(out), "--out", str(out)],
        cwd=commands.SCRIPTS,
        env=commands.environment(),
        check=True,
    )
    return (out / "result").read_text()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    artifact, ran = run(tmp_path_factory.mktemp("arms") / "reference")
    assert ran.returncode == 0, ran.stderr
    return artifact


def test_every_block_that_the_plan_demands_is_there_and_the_results_are_the_scripts_own(
    reference: Artifact, plain: str
) -> None:
    wanted = expected_blocks(commands.plan(commands.recipe()))
    assert blocks(reference) == [(moment.name, step) for moment, step in wanted]
    assert (reference.own_logs / "result").read_text() == plain


def test_a_plain_torch_script_does_not_come_to_import_megatron(reference: Artifact) -> None:
    assert not [name for name in (reference.own_logs / "modules").read_text().split() if name.startswith("megatron")]


def test_a_resumed_run_is_read_before_its_first_step_as_it_was_saved(reference: Artifact, tmp_path: Path) -> None:
    plan = commands.plan(commands.recipe(), restore=reference.own_checkpoints, arm="resumed")
    resumed, ran = commands.start(tmp_path / "resumed", plan)
    assert ran.returncode == 0, ran.stderr
    saved, restored = (reader.read(artifact.fingerprint(0), deep=True) for artifact in (reference, resumed))
    ours = next(block for block in saved.blocks if block.moment.name == "SAVED" and block.step == 2)
    assert restored.blocks[0].moment.name == "RESTORED"
    assert [tuple(row) for row in saved.records(ours)["output"].tolist()] == [
        tuple(row) for row in restored.records(restored.blocks[0])["output"].tolist()
    ]
    # The batches that it draws and drops to get to its place are no batches of the step.
    ours, theirs = (
        {block.step: block.digest for block in file.blocks if block.moment.name == "STEP"} for file in (saved, restored)
    )
    assert theirs == {step: digest for step, digest in ours.items() if step > 2}
    assert (resumed.own_logs / "result").read_text() == (reference.own_logs / "result").read_text()


@pytest.mark.parametrize("option", ["--exit", "--workers fork", "--workers spawn", "--watch"])
def test_the_same_is_recorded(reference: Artifact, tmp_path: Path, option: str) -> None:
    """When the script ends by os._exit, draws from workers, or names its model itself."""
    artifact, ran = run(tmp_path / "arm", f"{LINE} {option}")
    assert ran.returncode == 0, ran.stderr
    assert blocks(artifact) == blocks(reference)
    assert chain(artifact) == chain(reference)


def test_a_script_that_compiles_is_watched_by_the_batches_it_draws(tmp_path: Path, plain: str) -> None:
    artifact, ran = run(tmp_path / "arm", f"{LINE} --compile")
    assert ran.returncode == 0, ran.stderr
    assert [moment for moment, _ in blocks(artifact)].count("STEP") == 4
    assert (artifact.own_logs / "result").read_text() == plain


def test_a_spawned_helper_that_imports_the_script_again_is_not_hooked(reference: Artifact, tmp_path: Path) -> None:
    artifact, ran = run(tmp_path / "arm", f"{LINE} --spawn")
    assert ran.returncode == 0, ran.stderr
    assert (artifact.own_logs / "hooked").read_text() == "[[]]"
    assert chain(artifact) == chain(reference)


def test_a_module_run_by_its_name_is_watched(reference: Artifact, tmp_path: Path) -> None:
    artifact, ran = run(tmp_path / "arm", LINE.replace("python tiny.py", "python -m tiny"))
    assert ran.returncode == 0, ran.stderr
    assert chain(artifact) == chain(reference)


def test_a_shell_script_is_watched(reference: Artifact, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        'cd "$(dirname "$0")"; true | python -c "print(1)"; exec python ' + f"{commands.SCRIPTS}/tiny.py $@"
    )
    artifact, ran = run(tmp_path / "arm", f"bash {script} --steps {{stop}} --save {{save}} --out {{logs}}")
    assert ran.returncode == 0, ran.stderr
    assert chain(artifact) == chain(reference)


def test_the_next_sitecustomize_on_the_path_is_run_too(tmp_path: Path, reference: Artifact) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nopen({str(tmp_path / 'ran')!r}, 'a').write(' '.join(sys.orig_argv) + '\\n')\n"
    )
    path = f"{tmp_path}:{commands.SOURCES}"
    artifact, ran = run(tmp_path / "arm", PYTHONPATH=path)
    assert ran.returncode == 0, ran.stderr
    assert [line for line in (tmp_path / "ran").read_text().splitlines() if "tiny.py" in line]
    assert chain(artifact) == chain(reference)


def test_without_its_switch_the_sitecustomize_does_nothing() -> None:
    site = commands.SOURCES / "samebits" / "worker" / "inject" / "site"
    said = "import sys; print([name for name in sys.modules if name.startswith('samebits')])"
    environment = {**commands.environment(), "PYTHONPATH": f"{site}:{commands.SOURCES}"}
    for switch, expected in (({}, "[]\n"), ({"SAMEBITS_INJECT": "0"}, "[]\n")):
        ran = subprocess.run(
            [sys.executable, "-c", said], env={**environment, **switch}, capture_output=True, text=True, check=True
        )
        assert ran.stdout == expected


def test_a_tool_of_the_line_that_trains_nothing_opens_no_output_and_imports_no_torch(tmp_path: Path) -> None:
    said = "import sys; print('torch' in sys.modules)"
    artifact, ran = run(tmp_path / "arm", f'python -c "{said}"')
    assert (ran.returncode, ran.stdout) == (0, "False\n")
    assert not list(artifact.folder.glob("*.fp"))


@pytest.mark.parametrize(
    ("steps", "text"),
    [(3, "the run ended at step 3, the plan's last step is 4"), (5, "the run makes step 5, the plan's last one is 4")],
)
def test_a_run_of_another_number_of_steps_ends_badly_and_seals_nothing(tmp_path: Path, steps: int, text: str) -> None:
    artifact, ran = run(tmp_path / "arm", LINE.replace("{stop}", str(steps)))
    assert ran.returncode == 1
    assert text in ran.stderr
    assert reader.read(artifact.fingerprint(0), deep=True).seal is None


def test_another_world_than_the_recipes_ends_badly(tmp_path: Path) -> None:
    artifact, ran = run(tmp_path / "arm", WORLD_SIZE="2")
    assert ran.returncode != 0
    assert "2 ranks train, parallel.world is 1" in ran.stderr
    assert not list(artifact.folder.glob("*.fp"))


def test_an_input_of_another_digest_is_refused_before_anything_runs(tmp_path: Path) -> None:
    artifact, ran = run(tmp_path / "arm", command={"inputs": {"tiny.py": "0" * 64}})
    assert ran.returncode != 0
    assert "tiny.py has sha256" in ran.stderr
    assert not artifact.own_logs.exists()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, ran = run(tmp_path / "arm", "no-such-program {save}")
    assert "samebits: command: 'no-such-program' is not on PATH" in ran.stderr


def test_a_script_that_fails_by_itself_has_the_last_word(tmp_path: Path) -> None:
    line = f"{LINE} --fail 2"
    artifact, ran = run(tmp_path / "arm", line)
    assert ran.returncode == 1
    assert ran.stderr.rstrip().endswith("ValueError: step 2 fails")
    assert reader.read(artifact.fingerprint(0), deep=True).seal is None
