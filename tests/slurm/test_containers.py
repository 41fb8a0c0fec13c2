"""Arms inside a container on the cluster: what befalls a rank must come through the engine. Ranks are stubs."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from samebits.commands import launching
from samebits.recipe.image import file_digest

from .arms import Lab
from .cluster import Cluster

STUB = Path(__file__).parents[1] / "stub_rank.py"
TROUBLE = 4


class Contained:
    """A lab whose ranks run inside the image, from a copy of the stub that the image sees."""

    def __init__(self, folder: Path, image: Path, mode: str, **recipe: object) -> None:
        site = {"engine": "charliecloud", "images": str(image.parent), "mounts": [str(folder / "seen")]}
        named = {"image": f"{image.name}@{file_digest(image)}"}
        self.lab = Lab(folder, mode, site, container=named, **recipe)
        self.mode = mode
        self.stub = folder / "seen" / "stub_rank.py"
        self.stub.parent.mkdir()
        shutil.copy(STUB, self.stub)

    def run(self) -> tuple[int, str]:
        said, folder = io.StringIO(), self.lab.folder
        with redirect_stderr(said):
            status = launching.run(
                folder / "recipes" / "smoke.yaml",
                "reference",
                folder / "results",
                cluster=folder / "cluster.yaml",
                command=["python3", str(self.stub), self.mode],
            )
        print(said.getvalue())
        return status, said.getvalue()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("kill", "was killed by signal 9 (SIGKILL)"),
        ("raise", "ended with status 1: ValueError: the loss is a teapot"),
    ],
)
def test_a_rank_that_dies_in_a_container_is_named(
    tmp_path: Path, cluster: Cluster, cpu_image: Path, mode: str, message: str
) -> None:
    contained = Contained(tmp_path, cpu_image, mode)
    status, said = contained.run()

    assert status == TROUBLE
    assert f"(job {contained.lab.job()}) {message}" in said
    assert "arm reference: rank 1 on n" in said
    assert cluster.processes() == []


def test_a_rank_that_hangs_in_a_container_is_named_with_its_stack(
    tmp_path: Path, cluster: Cluster, cpu_image: Path
) -> None:
    contained = Contained(tmp_path, cpu_image, "stuck", launch={"time_minutes": 5, "threads": 1, "hang_minutes": 0.1})
    status, said = contained.run()

    assert status == TROUBLE
    assert "ended: rank 1 does not wait for the others" in said
    assert "in stand_still" in said
    assert cluster.processes() == []


def test_ranks_in_a_container_have_the_recipe_s_environment_and_the_image_s_software(
    tmp_path: Path, cluster: Cluster, cpu_image: Path
) -> None:
    contained = Contained(tmp_path, cpu_image, "environment")
    status, said = contained.run()
    import json

    own = json.loads((contained.lab.artifact().folder / "environment-1.json").read_text())

    assert status == 0, said
    assert own["SAMEBITS_IMAGE"] == file_digest(cpu_image)
    assert own["NCCL_ALGO"] == "Ring"
    assert own["SLURM_PROCID"] == "1"
    assert own["SLURMD_NODENAME"] in cluster.nodes
    assert "VIRTUAL_ENV" not in own
    assert "PYTHONPATH" in own
    assert not [name for name in own if name.startswith(("SUBMITIT", "PYTEST", "AWS"))]


def test_an_image_that_changes_behind_the_launcher_s_back_is_refused_before_the_first_step(
    tmp_path: Path, cluster: Cluster, cpu_image: Path
) -> None:
    """On the login node the file was seen before; the nodes read it again."""
    images = tmp_path / "images"
    images.mkdir()
    own = images / "small.sqfs"
    own.write_bytes(b"first")
    contained = Contained(tmp_path, own, "ok")
    contained.run()
    status = own.stat()
    own.write_bytes(b"other")
    import os

    os.utime(own, ns=(status.st_atime_ns, status.st_mtime_ns))
    outcome, said = contained.run()

    assert outcome == TROUBLE
    assert "was refused; no step counts" in said
    assert "sha256:" in said
    assert contained.lab.starts() == []
