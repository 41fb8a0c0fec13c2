from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import builders
from samebits.recipe import load
from samebits.recipe import yaml as document
from samebits.recipe.load import RecipeError
from samebits.recipe.problem import show
from samebits.spec.sections import TokenData

_RECIPES = Path(__file__).parents[2] / "recipes"


def _refused(path: Path) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load.load(path)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("path", sorted(_RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_loads(path: Path) -> None:
    assert load.load(path).name == path.stem


def test_the_token_files_of_the_repository_have_the_digests_that_recipes_declare() -> None:
    for path in _RECIPES.glob("*.yaml"):
        data = load.load(path).data
        if isinstance(data, TokenData):
            assert hashlib.sha256(Path(data.path).read_bytes()).hexdigest() == data.sha256


def test_a_file_says_what_the_sections_hold(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "model": {"moe": builders.moe(), "mtp": {"layers": 1, "loss_scaling": 1}},
        "capture": {"windows": [[1, 3], [6, 6]], "ranks": [0]},
        "controls": [{"name": "g", "fault": {"kind": "gradient", "step": 3}}],
        "waivers": [{"item": "rng:python", "reason": "nothing draws from it"}],
        "pins": {"torch": "2.13.0"},
    }

    assert load.load(builders.recipe_file(tmp_path, **changes)) == builders.recipe(**changes)


def test_a_token_file_is_found_from_the_recipes_folder_and_named_absolutely(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "data" / "ids.bin").write_bytes(bytes(65))

    path = builders.recipe_file(tmp_path / "recipes", data=builders.tokens(Path("../data/ids.bin")))

    data = load.load(path).data
    assert isinstance(data, TokenData)
    assert data.path == str(tmp_path / "data" / "ids.bin")


# (changes, what the line says after the file's name)
TYPES: list[tuple[dict[str, Any], str]] = [
    ({"steps": True}, "steps is true, must be a whole number of at least 1; give a whole number of at least 1"),
    ({"seed": 1.0}, "seed is 1.0, must be a whole number of at least 0; write 1"),
    ({"steps": "12"}, "steps is '12', must be a whole number of at least 1; take away the quotes"),
    ({"steps": 0}, "steps is 0, must be a whole number of at least 1; use 1 or more"),
    ({"steps": None}, "steps is absent, must be a whole number of at least 1; give a value"),
    ({"steps": ...}, "steps is missing, must be a whole number of at least 1; add it"),
    ({"optimizer": {"lr": float("nan")}}, "optimizer.lr is NaN, must be a number above 0; give a number above 0"),
    (
        {"optimizer": {"eps": float("inf")}},
        "optimizer.eps is Infinity, must be a number above 0; give a number above 0",
    ),
    (
        {"optimizer": {"beta1": True}},
        "optimizer.beta1 is true, must be a number from 0 to 1; give a number from 0 to 1",
    ),
    ({"optimizer": {"beta1": 1.5}}, "optimizer.beta1 is 1.5, must be a number from 0 to 1; use 1 or less"),
    ({"optimizer": {"distributed": "yes"}}, "is 'yes', must be true or false; write true or false, without quotes"),
    ({"precision": "bf61"}, "precision is 'bf61', must be 'fp32' or 'bf16'; did you mean 'bf16'?"),
    ({"gates": "resume"}, "gates is 'resume', must be a list; write ['resume']"),
    (
        {"gates": ["resum"]},
        "gates[0] is 'resum', must be 'repeatability', 'resume', 'control', 'observer' or 'overhead'; did you",
    ),
    ({"capture": {"windows": [[1, 2, 3]]}}, "capture.windows[0] is [1, 2, 3], must be a list of 2 whole numbers"),
    ({"capture": {"windows": [[1]]}}, "capture.windows[0] is [1], must be a list of 2 whole numbers"),
    ({"capture": {"windows": [[1, "a"]]}}, "capture.windows[0][1] is 'a', must be a whole number; give a whole number"),
    ({"pins": {"torch": 2.1}}, "pins.torch is 2.1, must be text; write it in quotes: '2.1'"),
    ({"model": {"moe": 4}}, "model.moe is 4, must be a mapping with the keys experts, top_k, ffn_hidden,"),
    ({"controls": [{"name": "a"}]}, "controls[0].fault is missing, must be a mapping with the keys kind, rank, step"),
    ({"parallel": {"tensr": 1}}, "parallel.tensr is 1, must not be there: unknown key, parallel has world, tensor,"),
    ({"parallel": {"zz": 1}}, "parallel.zz is 1, must not be there: unknown key, parallel has world, tensor, sequence"),
    ({"tensor": 2}, "tensor is 2, must not be there: unknown key, the file has name, workload, parallel, steps,"),
    ({"data": 3}, "data is 3, must be a mapping whose key `source` is 'stream' or 'tokens'; write its keys below it"),
    ({"data": {"source": "strem"}}, "data.source is 'strem', must be 'stream' or 'tokens'; write `source: stream`"),
    ({"data": {"source": ...}}, "data.source is missing, must be 'stream' or 'tokens'; write `source: stream`"),
    ({"data": {"micro_batch": 0}}, "data.micro_batch is 0, must be a whole number of at least 1; use 1 or more"),
]


@pytest.mark.parametrize(("changes", "text"), TYPES, ids=[text.partition(";")[0][:40] for _, text in TYPES])
def test_an_ill_typed_value_gets_one_line_with_file_key_value_rule_and_way_out(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    path = builders.recipe_file(tmp_path, **changes)

    (line,) = _refused(path)

    assert line.startswith(f"{path}: ")
    assert text in line
    assert ";" in line


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({"parallel": {"tensr": 1, "tensor": ...}}, "did you mean parallel.tensor?"),
        ({"parallel": {"zz": 1}}, "delete it"),
        ({"tensor": 2}, "did you mean parallel.tensor?"),
        ({"stps": 12}, "did you mean steps?"),
        ({"micro_batch": 12}, "did you mean data.micro_batch?"),
        ({"data": {"stream_sed": 1, "stream_seed": ...}}, "did you mean data.stream_seed?"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(tmp_path: Path, changes: dict[str, Any], way_out: str) -> None:
    (line,) = _refused(builders.recipe_file(tmp_path, **changes))

    assert line.endswith(f"; {way_out}")


def test_all_ill_typed_values_are_reported_together_unknown_keys_first(tmp_path: Path) -> None:
    lines = _refused(builders.recipe_file(tmp_path, steps=0, seed=-1, modle=3, precision="fp8"))

    assert [line.split(": ")[1].split()[0] for line in lines] == ["modle", "steps", "precision", "seed"]


def test_all_broken_rules_are_reported_together(tmp_path: Path) -> None:
    path = builders.recipe_file(tmp_path, parallel={"tensor": 3}, optimizer={"min_lr": 1.0})

    lines = _refused(path)

    assert lines[0].startswith(f"{path}: parallel.world is 2, must be parallel.tensor x pipeline x context x data (3 x")
    assert f"{path}: parallel.tensor is 3, must divide model.heads (8); use 1, 2, 4 or 8" in lines
    assert lines[-1] == f"{path}: optimizer.min_lr is 1.0, must be at most optimizer.lr (0.001); use 0.0, for example"


def test_a_recipe_must_be_named_as_its_file(tmp_path: Path) -> None:
    path = builders.recipe_file(tmp_path).rename(tmp_path / "other.yaml")

    (line,) = _refused(path)

    assert line.startswith(f"{path}: name is 'smoke', must be the file's name without its ending (other)")
    assert line.endswith("write `name: other`, or rename the file to smoke.yaml")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "must be a file of token ids"),
        (b"", "must hold at least 65 ids (model.sequence_length + 1) of 1 bytes (data.dtype uint8), it holds 0 bytes"),
        (bytes(64), "it holds 64 bytes; give another file or data.dtype"),
    ],
)
def test_a_token_file_that_cannot_give_a_sample_is_refused(tmp_path: Path, content: bytes | None, text: str) -> None:
    ids = tmp_path / "ids.bin"
    if content is not None:
        ids.write_bytes(content)

    (line,) = _refused(builders.recipe_file(tmp_path, data=builders.tokens(ids)))

    assert f"data.path is '{ids}'" in line
    assert text in line


# (bytes of the file, what follows its name)
TEXTS: list[tuple[bytes, str]] = [
    (b"a: 1\nb: 2\na: 3\n", ", line 3: key 'a' is given twice (first in line 1); delete one of the two"),
    (b"a:\n  x: 1\n  'x': 2\n", ", line 3: key 'x' is given twice (first in line 2); delete one of the two"),
    (b"a: [1\nb: 2\n", ", line 2: not YAML (while parsing a flow sequence, expected ',' or ']', but got ':');"),
    (b"a: 1\n\tb: 2", ", line 2: not YAML (while scanning for the next token, found character '\\t' that cannot"),
    (b"", ": is empty, must hold a recipe; start from recipes/smoke.yaml"),
    (b"# nothing\n", ": is empty, must hold a recipe; start from recipes/smoke.yaml"),
    (b"- 1\n", ": holds a list, must be a mapping (`key: value` lines); see recipes/smoke.yaml"),
    (b"3", ": holds int 3, must be a mapping (`key: value` lines); see recipes/smoke.yaml"),
    (b"a: 1\nb: \xff", ", line 2: byte 0xff is not UTF-8; save the file as UTF-8 text"),
    (b"a: \x01", ": not YAML (unacceptable character #x0001: special characters are not allowed"),
    (b"1: 2", ", line 1: key 1 is not text; write it in quotes"),
    (b"? [1]\n: 2", ", line 1: key (a list or mapping) is not text; write it in quotes"),
    (b"a: &x 1\nb: *x", ", line 2: aliases (*name) are refused; write the value out"),
    (b"a: !!python/object:os.x 1", ", line 1: tag 'tag:yaml.org,2002:python/object:os.x' is refused;"),
    (b"a: 1\n---\nb: 2", ", line 2: not YAML (expected a single document in the stream, but found another document)"),
    (b"a: " + b"9" * 5000, ", line 1: a number of 5000 digits is too long; write a shorter one"),
    (b"a: " + b"[" * 1500, ", line 1: is nested too deep for a recipe; write sections of plain values"),
]


@pytest.mark.parametrize(("content", "text"), TEXTS, ids=range(len(TEXTS)))
def test_a_file_that_is_not_a_recipes_yaml_gets_one_line_with_file_and_line(
    tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "smoke.yaml"
    path.write_bytes(content)

    (line,) = _refused(path)

    assert line.startswith(f"{path}{text}")


def test_a_missing_file_gets_the_recipes_beside_it(tmp_path: Path) -> None:
    builders.recipe_file(tmp_path)

    assert _refused(tmp_path / "smok.yaml") == [f"{tmp_path}/smok.yaml: no such file; {tmp_path} has smoke.yaml"]
    assert _refused(tmp_path) == [f"{tmp_path}: is a folder, must be a recipe itself; {tmp_path} has smoke.yaml"]
    assert _refused(tmp_path / "no" / "x.yaml") == [
        f"{tmp_path}/no/x.yaml: no such file; give the path of a recipe (NAME.yaml)"
    ]


def test_scalars_are_read_without_surprises(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "float: [1e-3, -1.5E+3, .5, 2., .inf]\nint: [010, +3, -4]\ntext: [yes, on, 1:30, 2026-01-01, 1_000, 0x1f, e3]\n"
        "bool: [true, False]\nnull: [~, null, ]\nnothing:\n".replace("null:", "'null':")
    )

    assert document.read(path) == {
        "float": [1e-3, -1.5e3, 0.5, 2.0, float("inf")],
        "int": [10, 3, -4],
        "text": ["yes", "on", "1:30", "2026-01-01", "1_000", "0x1f", "e3"],
        "bool": [True, False],
        "null": [None, None],
        "nothing": None,
    }


def test_a_byte_order_mark_is_allowed(tmp_path: Path) -> None:
    path = builders.recipe_file(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert load.load(path).name == "smoke"


_KEYS = [(section, key) for section, body in builders.document().items() if isinstance(body, dict) for key in body]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _lines(path: Path) -> list[str]:
    try:
        load.load(path)
    except RecipeError as error:
        return str(error).split("\n")
    return []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(_KEYS), value=_VALUES)
def test_any_value_anywhere_is_accepted_or_refused_by_lines_that_name_the_file(
    tmp_path: Path, place: tuple[str, str], value: object
) -> None:
    section, key = place
    path = tmp_path / "smoke.yaml"
    body = builders.document()
    body[section][key] = value
    path.write_text(json.dumps(body), encoding="utf-8")

    assert all(line.startswith(str(path)) for line in _lines(path))


def test_a_long_path_is_shown_whole_and_other_long_text_is_cut() -> None:
    path = "/" + "/".join(["folder"] * 30)
    assert show(path) == repr(path)
    assert len(show("x" * 200)) == 80
