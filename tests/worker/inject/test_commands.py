"""Scripts that know nothing of samebits, from recipe to verdict: they compute what they compute by themselves."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import commands
from samebits.compare.collect import collect
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]
MEGATRON_LM = ROOT / ".venv" / "megatron-core-0.19.2"
"""`make setup` puts the wheel there that holds `megatron.training`."""
ARMS = ("reference", "twin-1", "resumed", "control-ulp", "control-resume", "bare")
WITHOUT_TWIN = tuple(arm for arm in ARMS if arm != "twin-1")
"""Enough where the run by itself is a twin, too."""

OPTIONS = shlex.split(
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 2 --global-batch-size 4 --lr 1e-3 --lr-decay-style constant --distributed-backend gloo "
    "--transformer-impl local --tokenizer-type NullTokenizer --vocab-size 127 --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion "
    "--no-rope-fusion --no-persist-layer-norm --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 "
    "--eval-interval 1000 --log-interval 1 --log-num-zeros-in-grad --num-workers 0 --save-interval 2 "
    "--ckpt-format torch_dist --use-cpu-initialization"
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An edit of samebits while tests run is no change of what is under test."""
    copy = tmp_path_factory.mktemp("sources")
    shutil.copytree(commands.SOURCES / "samebits", copy / "samebits", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lets Megatron Core run without a GPU, as a file of the script's own."""
    folder = tmp_path_factory.mktemp("shim")
    shutil.copy(commands.SOURCES / "samebits" / "worker" / "trainer" / "cpu_backend.py", folder / "cpu_shim.py")
    return folder


class Pipeline:
    """A recipe and its results."""

    def __init__(self, folder: Path, sources: Path, **changes: Any) -> None:
        self.recipe = commands.recipe_file(folder, world=2, **changes)
        self.results = folder / "results"
        self._sources = sources

    def run(self, arms: Sequence[str] = ARMS) -> str:
        """Returns the verdict, as it is printed."""
        for arm in arms:
            self.verb("run", self.recipe, arm, "--results", self.results)
            collect(self.artifact(arm).folder)
        self.verb("report", self.recipe, "--results", self.results)
        return self.verb("verdict", self.results / self.recipe.stem, check=False).stdout

    def verb(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [sys.executable, "-c", "from samebits.cli import main; main()", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(self._sources), "PATH": commands.environment()["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    def artifact(self, arm: str) -> Artifact:
        return Artifact(self.results / self.recipe.stem / "arms" / arm)

    def said(self, arm: str) -> list[str]:
        """What each rank's script wrote of its last loss and parameters."""
        return [(self.artifact(arm).own_logs / f"result-{rank}").read_text() for rank in range(2)]


def by_itself(folder: Path, line: str, **variables: str) -> list[str]:
    """The same line on two ranks, without samebits anywhere."""
    words = [
        sys.executable,
        *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())),
        *shlex.split(line.format(stop=4, save=folder, logs=folder)),
    ]
    environment = {name: value for name, value in commands.environment().items() if "RANK" not in name}
    environment |= {"PYTHONPATH": variables.get("PYTHONPATH", ""), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(words, cwd=commands.SCRIPTS, env=environment, check=True, capture_output=True, timeout=400)
    return [(folder / f"result-{rank}").read_text() for rank in range(2)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_torch_loop_under_torchrun_passes_and_computes_what_it_does_by_itself(tmp_path: Path, sources: Path) -> None:
    line = "torch_ddp.py --steps {stop} --save {save} --save-every 2 --out {logs}"
    torchrun = "torchrun --nproc-per-node {ranks_per_node} --master-port {master_port} " + line
    command = {"launcher": "torchrun", "full": torchrun, "resumed": f"{torchrun} --load {{checkpoint}} --from {{step}}"}
    pipeline = Pipeline(tmp_path, sources, command=command)
    verdict = pipeline.run()
    assert verdict.startswith("PASS"), verdict
    alone = by_itself(tmp_path, line)
    for arm in ("reference", "twin-1", "resumed", "bare"):
        assert pipeline.said(arm) == alone, arm
    assert pipeline.said("control-ulp") != alone
    # Nobody restores theirs.
    assert [arm for arm in ARMS if pipeline.artifact(arm).checkpoints.exists()] == ["reference"]
    coordinates = [file.coordinates.data for file in read_manifest(pipeline.artifact("reference")).ranks]
    assert coordinates == [0, 1]


def test_a_loop_over_megatron_core_passes_and_computes_what_it_does_by_itself(
    tmp_path: Path, sources: Path, shim: Path
) -> None:
    line = "megatron_core_loop.py --steps {stop} --save {save} --save-every 2 --out {logs}"
    resumed = f"python {line} --load {{checkpoint}} --from {{step}}"
    command = {"full": f"python {line}", "resumed": resumed, "environment": {"PYTHONPATH": str(shim)}}
    pipeline = Pipeline(tmp_path, sources, command=command, gates=["resume", "control", "observer"])
    verdict = pipeline.run(WITHOUT_TWIN)
    assert verdict.startswith("PASS"), verdict
    alone = by_itself(tmp_path, line, PYTHONPATH=str(shim))
    for arm in ("reference", "resumed", "bare"):
        assert pipeline.said(arm) == alone, arm
    shown = pipeline.verb("show", pipeline.artifact("reference").fingerprint(0), "--step", "2", "--json").stdout
    for item in ("lm loss", "grad-norm", "tokens", "decoder.layers.0.mlp.linear_fc1.weight", "exp_avg"):
        assert item in shown, item


@pytest.mark.skipif(not MEGATRON_LM.is_dir(), reason=f"{MEGATRON_LM} is not there: `make setup` makes it")
def test_a_script_of_megatron_lm_passes_apart_from_the_draw_of_its_loader(
    tmp_path: Path, sources: Path, shim: Path
) -> None:
    """Making the loader's iterator draws once from torch's stream after the restore: that stream differs by one draw
    and nothing else does, dropout being off. The same without the waiver fails, by that name and no other."""
    line = " ".join(["megatron_pretrain.py", *OPTIONS, "--train-iters {stop} --save {save} --out {logs}"])
    path = f"{MEGATRON_LM}{os.pathsep}{shim}"
    command = {
        "full": f"python {line}",
        "resumed": f"python {line} --load {{checkpoint}} --ckpt-step {{step}}",
        "environment": {"PYTHONPATH": path},
    }
    controls = [
        {"name": "ulp", "fault": {"kind": "ulp"}},
        {"name": "resume", "fault": {"kind": "rng-skip", "target": "numpy"}},
    ]
    waivers = [{"item": "rng:torch", "reason": "the loader's iterator draws once after the restore; no dropout"}]
    gates = ["resume", "control", "observer"]
    pipeline = Pipeline(tmp_path, sources, command=command, gates=gates, controls=controls, waivers=waivers)
    verdict = pipeline.run(WITHOUT_TWIN)
    assert verdict.startswith("PASS"), verdict
    assert "rng:torch" in verdict
    alone = by_itself(tmp_path, line, PYTHONPATH=path)
    for arm in ("reference", "resumed", "bare"):
        assert pipeline.said(arm) == alone, arm
    compared = pipeline.verb(
        "compare", *(pipeline.artifact(arm).folder for arm in ("reference", "resumed")), check=False
    )
    assert compared.returncode == 1
    assert "RNG stream torch differs" in " ".join(compared.stdout.split())
    assert read_manifest(pipeline.artifact("reference")).ranks[0].pins.software["megatron-core"] == "0.19.2"


@pytest.mark.skipif(not MEGATRON_LM.is_dir(), reason=f"{MEGATRON_LM} is not there: `make setup` makes it")
def test_the_step_that_megatrons_distributed_optimizer_shares_on_load_is_found(
    tmp_path: Path, sources: Path, shim: Path
) -> None:
    """A real fault upstream: losses and gradients right after the resume match."""
    options = [*OPTIONS, "--use-distributed-optimizer", "--bf16", "--prime"]
    line = " ".join(["megatron_pretrain.py", *options, "--train-iters {stop} --save {save} --out {logs}"])
    command = {
        "full": f"python {line}",
        "resumed": f"python {line} --load {{checkpoint}} --ckpt-step {{step}}",
        "environment": {"PYTHONPATH": f"{MEGATRON_LM}{os.pathsep}{shim}"},
    }
    pipeline = Pipeline(tmp_path, sources, command=command, gates=["resume"])
    verdict = " ".join(pipeline.run(("reference", "resumed")).split())
    assert verdict.startswith("FAIL own fails, gate resume: resumed parts from reference right after the restore")
    assert "optimizer state group0.step" in verdict
    steps = {arm: steps_of(pipeline, arm) for arm in ("reference", "resumed")}
    assert steps["reference"] == {3.0}
    assert min(steps["resumed"]) > 3.0


def steps_of(pipeline: Pipeline, arm: str) -> set[float]:
    """That the optimizer counts for its parameters, after step 3."""
    shown = pipeline.verb("show", pipeline.artifact(arm).fingerprint(0), "--step", "3", "--json").stdout
    decoder, rows, at = json.JSONDecoder(), [], 0
    while at < len(shown.rstrip()):
        row, at = decoder.raw_decode(shown, at)
        rows.append(row)
        at += len(shown[at:]) - len(shown[at:].lstrip())
    names = re.compile(r"decoder.*\.step")
    return {float(row["record"]["value"]) for row in rows if names.fullmatch(row["name"])}


def test_a_line_that_drops_the_injection_fails_loudly(tmp_path: Path, sources: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'export PYTHONPATH=/nowhere\nexec python {commands.SCRIPTS}/tiny.py "$@"\n')
    command = {"full": f"bash {script} --steps {{stop}} --save {{save}} --out {{logs}}"}
    pipeline = Pipeline(tmp_path, sources, command=command, gates=["repeatability"])
    ran = pipeline.verb("run", pipeline.recipe, "reference", "--results", pipeline.results, check=False)
    assert ran.returncode == 4
    said = " ".join(ran.stderr.split())
    assert "Capture never attached" in said
    assert "replaces PYTHONPATH" in said
    assert pipeline.verb("collect", pipeline.artifact("reference").folder, check=False).returncode != 0


def test_a_resumed_run_that_writes_into_the_references_checkpoint_is_refused(tmp_path: Path, sources: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'echo x >> "$1/extra"; shift; exec python {commands.SCRIPTS}/tiny.py "$@"\n')
    line = "--steps {stop} --save {save} --out {logs}"
    command = {
        "full": f"python tiny.py {line}",
        "resumed": f"bash {script} {{checkpoint}} {line} --load {{checkpoint}} --from {{step}}",
    }
    parallel = {"world": 1, "data": 1}
    pipeline = Pipeline(tmp_path, sources, command=command, parallel=parallel)
    pipeline.verb("run", pipeline.recipe, "reference", "--results", pipeline.results)
    ran = pipeline.verb("run", pipeline.recipe, "resumed", "--results", pipeline.results, check=False)
    assert ran.returncode == 4
    assert "wrote into" in " ".join(ran.stderr.split())
