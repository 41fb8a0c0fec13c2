from __future__ import annotations

import pytest

import builders
from samebits.recipe import determinism

_REFUSED = [
    ("NCCL_ALGO", "Tree"),
    ("NCCL_ALGO", "ring"),
    ("NCCL_ALGO", ""),
    ("NCCL_ALGO", "Ring,Tree"),
    ("NCCL_ALGO", "^NVLS,Ring"),
    ("NCCL_ALGO", "Ring, CollnetChain"),
    ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1"),
    ("CUBLAS_WORKSPACE_CONFIG", ":0:0"),
    ("MAMBA_DETERMINISTIC", "0"),
    ("CAUSAL_CONV1D_DETERMINISTIC", "false"),
    ("TRITON_CACHE_AUTOTUNING", "yes"),
    ("NCCL_PROTO", ""),
    ("LD_PRELOAD", "x.so"),
    ("nccl_algo", "Ring"),
]
_ACCEPTED = [
    ("NCCL_ALGO", "Ring"),
    ("NCCL_ALGO", "CollnetDirect,CollnetChain"),
    ("NCCL_ALGO", "^NVLS"),
    ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"),
    ("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
    ("MAMBA_DETERMINISTIC", "1"),
    ("CAUSAL_CONV1D_DETERMINISTIC", "1"),
    ("TRITON_CACHE_AUTOTUNING", "0"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
    ("NCCL_PROTO", "Simple"),
    ("TRITON_AUTOTUNE_BLOCK_M", "64"),
]


@pytest.mark.parametrize(("name", "value"), _REFUSED)
def test_what_the_tables_do_not_hold_is_refused_by_name_and_value(name: str, value: str) -> None:
    (problem,) = determinism.problems({name: value})

    assert str(problem).startswith(f"determinism.environment.{name} is {value!r}, must ")


@pytest.mark.parametrize(("name", "value"), _ACCEPTED)
def test_what_the_tables_hold_is_accepted(name: str, value: str) -> None:
    assert determinism.problems({name: value}) == []


def test_an_unknown_variable_gets_the_list_of_those_accepted_and_the_nearest() -> None:
    (problem,) = determinism.problems({"NCCL_ALGOS": "Ring"})

    assert all(variable.name in problem.rule for variable in determinism.ACCEPTED)
    assert all(name in problem.rule for name in determinism.RECORDED)
    assert problem.way_out == "did you mean NCCL_ALGO?"


def test_shared_autotuning_needs_a_cache_folder() -> None:
    (problem,) = determinism.problems({"TRITON_CACHE_AUTOTUNING": "1"})

    assert problem.key == "determinism.environment.TRITON_CACHE_DIR"
    assert determinism.problems({"TRITON_CACHE_AUTOTUNING": "1", "TRITON_CACHE_DIR": "/cache"}) == []


def test_unset_variables_are_filled_from_the_table() -> None:
    wanted = builders.recipe().determinism

    assert determinism.environment(wanted) == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "Ring",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    }


def test_what_the_recipe_sets_stands() -> None:
    wanted = builders.recipe(determinism={"environment": {"NCCL_ALGO": "CollnetChain", "NCCL_PROTO": "Simple"}})

    environment = determinism.environment(wanted.determinism)

    assert environment["NCCL_ALGO"] == "CollnetChain"
    assert environment["NCCL_PROTO"] == "Simple"


def test_everything_that_is_filled_in_is_accepted() -> None:
    assert determinism.problems(determinism.environment(builders.recipe().determinism)) == []


def test_an_exclusion_is_accepted_with_a_warning() -> None:
    (warning,) = determinism.warnings({"NCCL_ALGO": "^NVLS"})

    assert warning.startswith("determinism.environment.NCCL_ALGO is '^NVLS'")
    assert warning.endswith("use Ring")
    assert determinism.warnings({"NCCL_ALGO": "Ring"}) == []
