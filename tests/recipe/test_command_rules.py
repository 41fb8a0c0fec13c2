"""What a launch line of one's own must say, each rule with a recipe that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import commands
from samebits.recipe import command_rules, rules
from samebits.recipe import load as recipes
from samebits.recipe.problem import MISSING
from samebits.spec.plan import Plan, PlanError, decode
from samebits.spec.sections import CommandRecipe, MegatronRecipe, Recipe, built_in

ROOT = Path(__file__).parents[2]
_TORCHRUN = "torchrun --nproc-per-node {ranks_per_node} tiny.py {save}"
_CLUSTER = {"nodes": 2, "ranks_per_node": 1}


def _line(full: str, **others: Any) -> dict[str, Any]:
    return {"command": {"full": full, **others}}


def _torchrun(full: str, **changes: Any) -> dict[str, Any]:
    resumed = f"{_TORCHRUN} {{checkpoint}} {{master_address}}"
    return {**_line(full, launcher="torchrun", resumed=resumed), **changes}


# (rule, changes of a valid recipe, key that must be named, its value)
BREACHES: list[tuple[str, dict[str, Any], str, object]] = [
    ("text", _line("python 'tiny.py {save}"), "command.full", "python 'tiny.py {save}"),
    ("text", _line(" "), "command.full", " "),
    ("text", _line("python tiny.py {save} | tee x"), "command.full", "python tiny.py {save} | tee x"),
    ("text", _line("python $HOME/tiny.py {save}"), "command.full", "python $HOME/tiny.py {save}"),
    ("text", _line("python x.py --o={save} --n=${N}"), "command.full", "python x.py --o={save} --n=${N}"),
    ("placeholders", _line("python tiny.py {save} {sotp}"), "command.full", "{sotp}"),
    ("placeholders", _line("python tiny.py {save} {checkpoint}"), "command.full", "python tiny.py {save} {checkpoint}"),
    ("placeholders", _line("python tiny.py {save} {"), "command.full", "python tiny.py {save} {"),
    ("restoring", {"command": {"resumed": None}}, "command.resumed", MISSING),
    ("restoring", {"command": {"resumed": None}, "gates": ["observer", "control"]}, "command.resumed", MISSING),
    ("restoring", {"command": {"resumed": "python {save}"}}, "command.resumed", "python {save}"),
    ("restoring", _line("python tiny.py"), "command.full", "python tiny.py"),
    ("isolated", _line("python3 -I tiny.py {save}"), "command.full", "python3 -I tiny.py {save}"),
    ("isolated", _line("/usr/bin/python3.11 -uE x {save}"), "command.full", "/usr/bin/python3.11 -uE x {save}"),
    ("launcher", _line(_TORCHRUN), "command.full", _TORCHRUN),
    ("launcher", _torchrun("python tiny.py {save}"), "command.full", "python tiny.py {save}"),
    ("launcher", _torchrun("torchrun tiny.py {save}"), "command.full --nproc-per-node", MISSING),
    ("launcher", _torchrun("torchrun --nproc_per_node=3 x {save}"), "command.full --nproc-per-node", "3"),
    ("launcher", _torchrun(f"{_TORCHRUN} --max-restarts 2"), "command.full --max-restarts", "2"),
    ("launcher", _torchrun(_TORCHRUN, cluster=_CLUSTER), "command.full", _TORCHRUN),
    (
        "controls",
        {"controls": [{"name": "x", "fault": {"kind": "batch-swap"}}]},
        "controls[0].fault.kind",
        "batch-swap",
    ),
    ("overhead", {"gates": ["overhead"]}, "gates", ["overhead"]),
    (
        "overhead",
        {"overhead": {"limit_percent": 5.0, "blocks": 8, "steps": 100, "warm_up": 20}},
        "overhead",
        "given",
    ),
    ("inputs", {"command": {"inputs": {"tiny.py": "abc"}}}, "command.inputs.tiny.py", "abc"),
    ("environment", {"command": {"environment": {"RANK": "0"}}}, "command.environment.RANK", "0"),
    ("environment", {"command": {"environment": {"SAMEBITS_X": "0"}}}, "command.environment.SAMEBITS_X", "0"),
    ("environment", {"command": {"environment": {"NCCL_ALGO": "Tree"}}}, "command.environment.NCCL_ALGO", "Tree"),
    ("environment", {"command": {"environment": {"A=B": "0"}}}, "command.environment.A=B", "0"),
]


@pytest.mark.parametrize(("name", "changes", "key", "value"), BREACHES)
def test_a_recipe_that_breaks_a_rule_is_told_which_key_and_value(
    name: str, changes: dict[str, Any], key: str, value: object
) -> None:
    found = list(command_rules.RULES[name](commands.recipe(**changes)))
    assert [(problem.key, problem.value) for problem in found] == [(key, value)]
    assert found[0].rule.startswith("must ")
    assert found[0].way_out


def test_every_rule_has_a_breach_and_the_valid_recipe_breaks_none() -> None:
    assert {name for name, *_ in BREACHES} == set(command_rules.RULES)
    assert rules.problems(commands.recipe()) == []
    assert rules.problems(commands.recipe(**_torchrun(_TORCHRUN))) == []


def test_braces_of_the_lines_own_are_doubled() -> None:
    assert rules.problems(commands.recipe(**_line("python tiny.py {save} '{{\"a\": 1}}'"))) == []


def test_both_kinds_of_recipe_come_back_from_a_plan() -> None:
    plan = commands.plan(commands.recipe())
    assert Plan.from_json(plan.to_json()) == plan
    assert isinstance(Plan.from_json(plan.to_json()).recipe, CommandRecipe)
    with pytest.raises(PlanError, match=r"Recipe: unknown key 'model'; it has .*command"):
        decode(Recipe, {**commands.document(), "model": {}})
    with pytest.raises(ValueError, match="workload is command, must be megatron-core"):
        built_in(commands.recipe())


def test_an_unknown_workload_is_the_only_thing_that_is_said(tmp_path: Path) -> None:
    path = commands.recipe_file(tmp_path, workload="comand", modle=3)
    with pytest.raises(recipes.RecipeError) as refused:
        recipes.load(path)
    assert str(refused.value) == (
        f"{path}: workload is 'comand', must be 'megatron-core' or 'command'; did you mean 'command'?"
    )


def test_a_key_of_the_other_workload_is_told_what_this_one_has(tmp_path: Path) -> None:
    with pytest.raises(recipes.RecipeError, match=r"seed is 3, must not be there: unknown key, the file has .*command"):
        recipes.load(commands.recipe_file(tmp_path, seed=3))


def test_a_missing_folder_or_input_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(recipes.RecipeError, match=r"command.folder is '/nowhere', must be a folder"):
        recipes.load(commands.recipe_file(tmp_path, command={"folder": "/nowhere"}))
    with pytest.raises(recipes.RecipeError, match=r"command.inputs.no.py is 'no.py', must be a file"):
        recipes.load(commands.recipe_file(tmp_path, command={"inputs": {"no.py": "0" * 64}}))


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_for_clusters_load_and_no_pipeline_runs_them_by_itself(path: Path) -> None:
    recipe = recipes.load(path)
    assert isinstance(recipe, CommandRecipe | MegatronRecipe)
    assert path not in list((ROOT / "recipes").glob("*.yaml"))
