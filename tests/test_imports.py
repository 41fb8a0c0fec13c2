"""The shape of the source: imports form a tree, files and functions stay small."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "samebits").rglob("*.py"))
}
NOUNS = (
    *(
        "samebits",
        "samebits.spec.sections",
        "samebits.spec.questions",
        "samebits.spec.surroundings",
        "samebits.spec.overhead",
    ),
    "samebits.spec.command",
    "samebits.spec.stressors",
    *("samebits.spec.strict", "samebits.spec.plan", "samebits.spec.pins", "samebits.fingerprint"),
)
"""Enter the container: standard library and numpy only."""


def is_in(module: str, *places: str) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def is_noun(module: str) -> bool:
    return module == "samebits" or is_in(module, *NOUNS[1:])


def imports(module: str) -> Iterator[str]:
    """Modules that one of ours imports, anywhere in it, for type checking included; ours by their full name."""
    yield from imported(module, parsed(module))


def executed(module: str) -> Iterator[str]:
    """Those that are not for type checking alone."""
    tree = parsed(module)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    yield from imported(module, tree)


def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(module: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            inner = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name if name in MODULES else str(node.module) for name in inner)


def outside(module: str) -> set[str]:
    """Top-level names of what is neither ours nor the standard library's."""
    tops = {name.partition(".")[0] for name in imports(module)}
    return tops - {"samebits"} - sys.stdlib_module_names


def ours(module: str) -> set[str]:
    return {name for name in imports(module) if is_in(name, "samebits")}


@pytest.mark.parametrize("module", [name for name in MODULES if is_in(name, "samebits.compare", "samebits.report")])
def test_judging_and_reporting_never_import_torch(module: str) -> None:
    assert not outside(module) & {"torch", "megatron"}
    assert not any(is_in(name, "samebits.worker", "samebits.launch") for name in ours(module))


@pytest.mark.parametrize("module", [name for name in MODULES if is_in(name, "samebits.worker")])
def test_what_runs_in_the_image_imports_only_what_the_image_holds(module: str) -> None:
    # typing_extensions is a dependency of torch; triton has a test of its own.
    assert outside(module) - {"triton"} <= {"numpy", "torch", "megatron", "typing_extensions"}
    assert all(is_in(name, "samebits.worker") or is_noun(name) for name in ours(module))


@pytest.mark.parametrize("module", [name for name in MODULES if is_noun(name)])
def test_nouns_import_the_standard_library_and_numpy_only(module: str) -> None:
    assert outside(module) <= {"numpy"}
    assert all(is_noun(name) for name in ours(module))


def test_only_submit_imports_submitit() -> None:
    assert [name for name in MODULES if "submitit" in outside(name)] == ["samebits.launch.submit"]


def test_only_the_kernel_imports_triton_and_only_staging_the_kernel_in_a_function() -> None:
    """Everything works where Triton is missing or broken."""
    kernel = "samebits.worker.capture.triton_kernel"
    assert [name for name in MODULES if "triton" in outside(name)] == [kernel]
    assert [name for name in MODULES if kernel in imports(name)] == ["samebits.worker.capture.staging"]
    at_import = ast.Module(
        [node for node in parsed("samebits.worker.capture.staging").body if not is_definition(node)], []
    )
    assert kernel not in imported("samebits.worker.capture.staging", at_import)


def is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def test_imports_form_no_cycle() -> None:
    """Of those that are executed: an import for type checking alone may point back."""
    graph = {name: {other for other in executed(name) if is_in(other, "samebits")} - {name} for name in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", MODULES)
def test_files_stay_within_300_lines(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("module", MODULES)
def test_functions_stay_within_40_lines(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    long = [
        f"{node.name} has {(node.end_lineno or 0) - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 40
    ]
    assert not long
