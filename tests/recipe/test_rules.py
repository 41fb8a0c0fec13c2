from __future__ import annotations

from typing import Any

import pytest

import builders
from samebits.recipe import rules
from samebits.recipe.problem import MISSING, show
from samebits.recipe.run_rules import reserved_options
from samebits.spec.surroundings import Slurm

_OVERHEAD = {"limit_percent": 5.0, "blocks": 8, "steps": 100, "warm_up": 20}
_MOE = {"moe": builders.moe()}


def _control(**fault: Any) -> dict[str, Any]:
    return {"controls": [{"name": "x", "fault": fault}]}


_IMAGE = f"train.sqfs@sha256:{'0' * 64}"


def _cluster(**changes: Any) -> dict[str, Any]:
    return {"cluster": {"nodes": 1, "ranks_per_node": 2, **changes}}


def _slurm(**slurm: Any) -> dict[str, Any]:
    return _cluster(slurm=slurm)


# (rule, changes of a valid recipe, key that must be named, its value)
BREACHES: list[tuple[str, dict[str, Any], str, object]] = [
    ("name", {"name": "../x"}, "name", "../x"),
    ("name", {"name": ".hidden"}, "name", ".hidden"),
    ("name", {"name": ""}, "name", ""),
    ("name", {"name": "x\n"}, "name", "x\n"),
    ("name", {"name": "x" * 101}, "name", "x" * 101),
    ("world", {"parallel": {"world": 3}}, "parallel.world", 3),
    ("context", {"parallel": {"world": 4, "context": 2}}, "parallel.context", 2),
    ("heads", {"parallel": {"tensor": 3}}, "parallel.tensor", 3),
    ("hidden", {"model": {"hidden": 68}}, "model.hidden", 68),
    ("head-size", {"model": {"hidden": 24}}, "model.hidden", 24),
    ("feed-forward", {"parallel": {"tensor": 2}, "model": {"ffn_hidden": 129}}, "model.ffn_hidden", 129),
    (
        "feed-forward",
        {"parallel": {"tensor": 2}, "model": {"moe": builders.moe(ffn_hidden=63)}},
        "model.moe.ffn_hidden",
        63,
    ),
    (
        "feed-forward",
        {"parallel": {"tensor": 2}, "model": {"moe": builders.moe(shared_expert_hidden=31)}},
        "model.moe.shared_expert_hidden",
        31,
    ),
    ("vocabulary", {"parallel": {"tensor": 2}, "model": {"vocabulary": 255}}, "model.vocabulary", 255),
    ("sequence-parallel", {"parallel": {"sequence": True}}, "parallel.sequence", True),
    (
        "sequence-length",
        {"parallel": {"tensor": 2, "sequence": True}, "model": {"sequence_length": 63}},
        "model.sequence_length",
        63,
    ),
    ("layers", {"parallel": {"pipeline": 2}, "model": {"layers": 3}}, "model.layers", 3),
    ("layers", {"parallel": {"pipeline": 2, "virtual_pipeline": 3}}, "model.layers", 4),
    ("virtual-pipeline", {"parallel": {"pipeline": 2, "virtual_pipeline": 1}}, "parallel.virtual_pipeline", 1),
    ("virtual-pipeline", {"parallel": {"virtual_pipeline": 2}}, "parallel.virtual_pipeline", 2),
    ("expert-parallel", {"parallel": {"expert": 2}}, "parallel.expert", 2),
    ("expert-ranks", {"parallel": {"expert": 4}, "model": _MOE}, "parallel.expert", 4),
    ("experts", {"parallel": {"expert": 2}, "model": {"moe": builders.moe(experts=3)}}, "model.moe.experts", 3),
    ("moe-tensor", {"parallel": {"tensor": 2}, "model": _MOE}, "parallel.sequence", False),
    ("top-k", {"model": {"moe": builders.moe(top_k=5)}}, "model.moe.top_k", 5),
    ("top-k", {"model": {"moe": builders.moe(top_k=1)}}, "model.moe.top_k", 1),
    (
        "load-balancing",
        {"model": {"moe": builders.moe(load_balancing="none")}},
        "model.moe.load_balancing_coefficient",
        0.01,
    ),
    (
        "load-balancing",
        {"model": {"moe": builders.moe(load_balancing_coefficient=0.0)}},
        "model.moe.load_balancing_coefficient",
        0.0,
    ),
    (
        "mtp-embeddings",
        {"parallel": {"pipeline": 2}, "model": {"tied_embeddings": True, "mtp": {"layers": 1, "loss_scaling": 0.1}}},
        "model.tied_embeddings",
        True,
    ),
    ("mtp-length", {"model": {"mtp": {"layers": 64, "loss_scaling": 0.1}}}, "model.mtp.layers", 64),
    ("global-batch", {"data": {"global_batch": 6}}, "data.global_batch", 6),
    (
        "interleaved-batch",
        {"parallel": {"pipeline": 2, "virtual_pipeline": 2}, "data": {"global_batch": 12}},
        "data.global_batch",
        12,
    ),
    ("learning-rate", {"optimizer": {"min_lr": 0.1}}, "optimizer.min_lr", 0.1),
    ("warm-up", {"optimizer": {"lr_warmup_steps": 12}}, "optimizer.lr_warmup_steps", 12),
    ("betas", {"optimizer": {"beta1": 1.0}}, "optimizer.beta1", 1.0),
    ("betas", {"optimizer": {"beta2": 1.0}}, "optimizer.beta2", 1.0),
    ("resume-step", {"checkpoint": {"resume_from": 5}}, "checkpoint.resume_from", 5),
    ("resume-step", {"checkpoint": {"resume_from": 12}}, "checkpoint.resume_from", 12),
    ("resume-step", {"checkpoint": {"every": 20}}, "checkpoint.resume_from", 6),
    ("seeds", {"seed": 2**32}, "seed", 2**32),
    ("seeds", {"data": {"stream_seed": 2**64}}, "data.stream_seed", 2**64),
    ("token-digest", {"data": builders.tokens("x", sha256="abc")}, "data.sha256", "abc"),
    (
        "environment",
        {"determinism": {"environment": {"NCCL_ALGO": "Tree"}}},
        "determinism.environment.NCCL_ALGO",
        "Tree",
    ),
    (
        "threads",
        {"determinism": {"environment": {"OMP_NUM_THREADS": "8"}}},
        "determinism.environment.OMP_NUM_THREADS",
        "8",
    ),
    ("windows", {"capture": {"windows": [[1, 2], [5, 3]]}}, "capture.windows[1]", [5, 3]),
    ("windows", {"capture": {"windows": [[0, 3]]}}, "capture.windows[0]", [0, 3]),
    ("windows", {"capture": {"windows": [[3, 13]]}}, "capture.windows[0]", [3, 13]),
    ("windows", {"capture": {"windows": []}}, "capture.windows", []),
    ("capture-ranks", {"capture": {"ranks": [0, 2]}}, "capture.ranks[1]", 2),
    ("capture-ranks", {"capture": {"ranks": [-1]}}, "capture.ranks[0]", -1),
    ("capture-ranks", {"capture": {"ranks": [1, 1]}}, "capture.ranks[1]", 1),
    ("capture-ranks", {"capture": {"ranks": []}}, "capture.ranks", []),
    ("gates", {"gates": []}, "gates", []),
    ("gates", {"gates": ["resume", "resume"]}, "gates[1]", "resume"),
    ("evidence-gate", {"gates": ["control"]}, "gates", ["control"]),
    ("evidence-gate", {"gates": ["control", "overhead"]}, "gates", ["control", "overhead"]),
    ("control-gate", {"controls": []}, "controls", []),
    ("overhead-gate", {"gates": ["overhead"]}, "overhead", MISSING),
    ("overhead-gate", {"overhead": {**_OVERHEAD, "also": ["capture", "capture"]}}, "overhead.also[1]", "capture"),
    ("control-names", {"controls": [{"name": "a/b", "fault": {"kind": "ulp"}}]}, "controls[0].name", "a/b"),
    ("control-names", {"controls": [{"name": "a", "fault": {"kind": "ulp"}}] * 2}, "controls[1].name", "a"),
    ("fault-rank", _control(kind="ulp", rank=2), "controls[0].fault.rank", 2),
    ("fault-rank", _control(kind="upstream", rank=0), "controls[0].fault.rank", 0),
    (
        "fault-rank",
        {"parallel": {"world": 4, "pipeline": 2}, **_control(kind="loss-logging", rank=1)},
        "controls[0].fault.rank",
        1,
    ),
    ("fault-step", _control(kind="ulp", step=13), "controls[0].fault.step", 13),
    ("fault-step", _control(kind="rng-skip", step=7), "controls[0].fault.step", 7),
    ("fault-target", _control(kind="batch-swap", target="x"), "controls[0].fault.target", "x"),
    ("fault-target", _control(kind="ulp", target=" "), "controls[0].fault.target", " "),
    ("fault-chance", _control(kind="unstable-gemm"), "controls[0].fault.kind", "unstable-gemm"),
    ("fault-chance", _control(kind="ulp", probability=0.5), "controls[0].fault.probability", 0.5),
    (
        "fault-batch",
        {"data": {"micro_batch": 1}, **_control(kind="batch-swap")},
        "controls[0].fault.kind",
        "batch-swap",
    ),
    ("waivers", {"waivers": [{"item": "python", "reason": "x"}]}, "waivers[0].item", "python"),
    ("waivers", {"waivers": [{"item": "rnq:python", "reason": "x"}]}, "waivers[0].item", "rnq:python"),
    ("waivers", {"waivers": [{"item": "rng:", "reason": "x"}]}, "waivers[0].item", "rng:"),
    ("waivers", {"waivers": [{"item": "rng:*", "reason": "x"}]}, "waivers[0].item", "rng:*"),
    ("waivers", {"waivers": [{"item": "parameter:a", "reason": "x"}]}, "waivers[0].item", "parameter:a"),
    ("waivers", {"waivers": [{"item": "rng:python", "reason": " "}]}, "waivers[0].reason", " "),
    ("pins", {"pins": {"pytorch": "2.13.0"}}, "pins.pytorch", "2.13.0"),
    ("pins", {"pins": {"torch": ""}}, "pins.torch", ""),
    ("container-image", {"container": {"image": "debian:12"}}, "container.image", "debian:12"),
    ("container-image", {"container": {"image": "x.sqfs@sha256:1"}}, "container.image", "x.sqfs@sha256:1"),
    *(
        ("container-python", {"container": {"image": _IMAGE, "python": python}}, "container.python", python)
        for python in ("", "python3 -S", "-S", "a\nb")
    ),
    ("cluster-world", _cluster(nodes=2, ranks_per_node=2), "parallel.world", 2),
    ("cluster-world", _cluster(nodes=1, ranks_per_node=3), "parallel.world", 2),
    (
        "cluster-placement",
        {**_cluster(placement="other-nodes"), "gates": ["resume"]},
        "cluster.placement",
        "other-nodes",
    ),
    ("cluster-slurm", _slurm(account=" "), "cluster.slurm.account", " "),
    ("cluster-slurm", _slurm(qos="a\nb"), "cluster.slurm.qos", "a\nb"),
    *(
        ("cluster-slurm", _slurm(sbatch={name: "x"}), f"cluster.slurm.sbatch.{name}", "x")
        for name in ("--mem", "N", "", "Mem", "nodes", "tim", "job-name", "account", "container-image", "wait")
    ),
    ("cluster-slurm", _slurm(sbatch={"mem": "1G\n#SBATCH --wait"}), "cluster.slurm.sbatch.mem", "1G\n#SBATCH --wait"),
    *(
        ("cluster-slurm", _slurm(srun=["--mpi=pmix", word]), "cluster.slurm.srun[1]", word)
        for word in ("-n4", "pmix", "--", "", "--ntasks=4", "--exp=NONE", "--kill-on-bad-exit", "--container-image=x")
    ),
]

_EP = {"parallel": {"expert": 2}}
_VALID: list[dict[str, Any]] = [
    {},
    {"model": {"moe": builders.moe(top_k=1, expert_bias=True)}},
    {"model": {"moe": builders.moe(load_balancing="none", load_balancing_coefficient=0.0)}, **_EP},
    {"model": {"moe": builders.moe(), "mtp": {"layers": 1, "loss_scaling": 0.1}, "tied_embeddings": True}, **_EP},
    {
        "model": {"mtp": {"layers": 1, "loss_scaling": 0.1}},
        "parallel": {"data": 1, "pipeline": 2, "virtual_pipeline": 2},
    },
    {"parallel": {"world": 4, "tensor": 2, "sequence": True, "pipeline": 2, "data": 1}},
    {"parallel": {"world": 4, "tensor": 2, "sequence": True, "expert": 2}, "model": _MOE},
    {"capture": {"windows": [[1, 1], [12, 12]], "ranks": [1, 0]}},
    {"gates": ["resume"], "controls": []},
    _control(kind="nan-loss", step=12),
    _control(kind="loss-logging", target="grad norm", rank=0),
    {"waivers": [{"item": "rng:megatron/model-parallel-rng", "reason": "not drawn from"}], "pins": {"torch": "2.13.0"}},
    {"container": {"image": _IMAGE, "python": "/opt/venv/bin/python"}},
    {"container": {"image": f"registry.example/nvidia/pytorch:25.06-py3@sha256:{'0' * 64}"}},
    _cluster(nodes=2, ranks_per_node=1, placement="other-nodes"),
    {**_cluster(placement="same-nodes"), "gates": ["resume"]},
    _slurm(account="a", sbatch={"mem": "0", "exclusive": "", "gpus-per-node": "h100:8", "dependency": "singleton"}),
    _slurm(srun=["--mpi=pmix", "--cpu-bind=none", "--network=sharp"]),
]


@pytest.mark.parametrize(("name", "changes", "key", "value"), BREACHES)
def test_a_breach_is_found_by_its_rule_and_named_by_key_and_value(
    name: str, changes: dict[str, Any], key: str, value: object
) -> None:
    found = list(rules.RULES[name](builders.recipe(**changes)))

    assert [problem.key for problem in found] == [key]
    assert [problem.value for problem in found] == [value]
    assert str(found[0]).startswith(f"{key} is {show(value)}, must ")
    assert found[0].way_out


def test_every_rule_has_a_breach_above() -> None:
    assert {name for name, *_ in BREACHES} == set(rules.RULES)


@pytest.mark.parametrize("changes", _VALID)
def test_a_recipe_that_megatron_core_runs_passes(changes: dict[str, Any]) -> None:
    assert [str(problem) for problem in rules.problems(builders.recipe(**changes))] == []


@pytest.mark.parametrize(("tensor", "ways"), [(3, "use 1, 2, 4 or 8"), (16, "use 1, 2, 4 or 8")])
def test_an_impossible_tensor_size_names_the_possible_ones(tensor: int, ways: str) -> None:
    found = list(rules.RULES["heads"](builders.recipe(parallel={"tensor": tensor})))

    assert str(found[0]) == f"parallel.tensor is {tensor}, must divide model.heads (8); {ways}"


@pytest.mark.parametrize(
    ("nodes", "each", "ways"), [(2, 1, None), (4, 1, "use cluster.nodes of 2, for example"), (1, 3, "use 3, or change")]
)
def test_a_layout_that_does_not_fit_names_one_that_does(nodes: int, each: int, ways: str | None) -> None:
    found = list(rules.RULES["cluster-world"](builders.recipe(**_cluster(nodes=nodes, ranks_per_node=each))))

    assert [problem.way_out.startswith(ways or "-") for problem in found] == ([True] if ways else [])


def test_the_site_is_held_to_the_same_options_under_its_own_key() -> None:
    found = list(reserved_options(Slurm(sbatch={"array": "1-9"}, srun=("--label",)), "slurm"))

    assert [problem.key for problem in found] == ["slurm.sbatch.array", "slurm.srun[0]"]


def test_each_problem_is_one_line() -> None:
    for name, changes, *_ in BREACHES:
        for problem in rules.RULES[name](builders.recipe(**changes)):
            assert "\n" not in str(problem)
