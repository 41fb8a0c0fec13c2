"""The rules of the house: which package may import which, how much a package holds, and that a name is used once.

The packages are those that CONTRIBUTING.md draws. Imports run in one direction: a package imports only packages of
earlier stages. What does not keep a rule yet stands in the lists below, by name. A list only ever gets shorter: a test
fails where it names what is no longer there.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

STAGES = (
    {"spec"},
    {"recipe", "fingerprint"},
    {"plan"},
    {"worker", "launch", "compare"},
    {"overhead", "checks", "stress"},
    {"gates"},
    {"localize"},
    {"report"},
    {"commands"},
)
"""Packages by stage. A package imports those of earlier stages; those of one stage do not know each other."""
TOP = {"samebits", "samebits.cli", "samebits.workflow"}
"""Modules outside the packages. They may import everything, and no package imports them."""
CONTAINER = ("spec", "fingerprint", "worker")
"""Packages that enter the container."""
LIBRARIES = {"spec": {"numpy"}, "fingerprint": {"numpy"}, "worker": {"numpy", "torch", "megatron", "typing_extensions"}}
"""What those may import beyond the standard library. torch itself depends on typing_extensions."""
WITHOUT_TORCH = ("compare", "overhead", "checks", "stress", "gates", "localize", "report")
"""Packages that judge and report."""
SUBMITS = "samebits.launch.submit"
"""The module that imports submitit."""
KERNEL, STAGING = "samebits.worker.capture.triton_kernel", "samebits.worker.capture.staging"
"""The module that imports triton, and the one that imports it in turn."""
ENTRY_POINTS = {
    "samebits.cli",  # console script
    "samebits.workflow",  # imported by workflow/Snakefile
    "samebits.worker.main",  # `python -m`, in the container
    "samebits.worker.perturb",  # `python -m`, in the container, under `samebits stress`
    "samebits.worker.inject.launch_line",  # `python -m`, in the container, for a recipe with a launch line
    "samebits.worker.inject.site.sitecustomize",  # imported by Python itself as it starts
    "samebits.worker.inject.megatron_core",
}
"""Modules that something outside the source starts."""

MOST_LINES_OF_CODE = 18_486
MOST_MODULES = 187
MOST_MODULES_OF_A_PACKAGE = 20
SMALL = 60
"""Fewer lines of code than this with a single importer: the module belongs into its importer."""

# What does not keep the rules yet. Nothing may be added.
LARGE_PACKAGES: dict[str, int] = {}
KNOWN_ARROWS: set[tuple[str, str]] = set()
KNOWN_TWICE: set[str] = set()
KNOWN_SMALL: set[str] = {"samebits.checks.check", "samebits.commands.stress", "samebits.worker.trainer.train"}


def modules(source: Path) -> dict[str, str]:
    """Return the text of every module below a folder by its dotted name; a package goes by its own name."""
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path.read_text("utf-8")
        for path in sorted((source / "samebits").rglob("*.py"))
    }


MODULES = modules(SOURCE)


def package_of(module: str) -> str:
    """Return the package directly below `samebits` that holds a module, or the module's own name in TOP."""
    return module if module in TOP else module.split(".")[1]


def imported(tree: ast.AST, known: Iterable[str]) -> Iterator[str]:
    """Yield the dotted names of modules imported anywhere below a node; names from `known` in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import: {ast.unparse(node)}"
            inner = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name if name in known else str(node.module) for name in inner)


def executed(tree: ast.Module) -> ast.Module:
    """Return a module without what it imports for type checking alone."""
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(kept, [])


def own(texts: Mapping[str, str], *, type_checking: bool = True) -> dict[str, set[str]]:
    """Return for every module the modules of samebits that it imports."""
    graph = {}
    for name, text in texts.items():
        tree = ast.parse(text)
        found = imported(tree if type_checking else executed(tree), texts)
        graph[name] = {other for other in found if other.partition(".")[0] == "samebits"} - {name}
    return graph


def foreign(text: str) -> set[str]:
    """Return the top-level names of imported modules that are neither ours nor the standard library's."""
    tops = {name.partition(".")[0] for name in imported(ast.parse(text), ())}
    return tops - {"samebits"} - sys.stdlib_module_names


def upward(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Return pairs of a module and an imported one that stands in no earlier stage and in another package."""
    stage = {package: number for number, packages in enumerate(STAGES) for package in packages}
    stage |= dict.fromkeys(TOP - {"samebits"}, len(STAGES))
    return {
        (importer, other)
        for importer, others in graph.items()
        if importer not in TOP
        for other in others - {"samebits"}
        if package_of(importer) != package_of(other) and stage[package_of(importer)] <= stage[package_of(other)]
    }


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return one cycle of imports as a list of names, empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def lines_of_code(text: str) -> int:
    """Count lines that hold code: not those that are blank, comment, or part of a docstring of anything."""
    outside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in outside for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def is_package(module: str) -> bool:
    return (SOURCE.joinpath(*module.split(".")) / "__init__.py").exists()


def modules_by_package() -> Counter[str]:
    return Counter(module.rpartition(".")[0] for module in MODULES if not is_package(module))


def defined_twice(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return names of classes that are defined more than once, with the modules that define them."""
    places = defaultdict(list)
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def importers() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {module: set() for module in MODULES}
    for importer, others in own(MODULES).items():
        for other in others & MODULES.keys():
            found[other].add(importer)
    return found


def test_every_module_stands_in_a_package_that_has_a_stage() -> None:
    assert {package_of(module) for module in MODULES} - TOP == set().union(*STAGES)


def test_imports_between_packages_run_in_one_direction() -> None:
    assert upward(own(MODULES)) == KNOWN_ARROWS


def test_imports_form_no_cycle() -> None:
    """Counting imports that are executed: one for type checking alone may point back inside its package."""
    assert cycle(own(MODULES, type_checking=False)) == []


def test_parts_of_the_worker_form_no_cycle() -> None:
    """Its sub-packages among themselves; modules directly in `worker` join them."""
    parts: dict[str, set[str]] = defaultdict(set)
    for importer, others in own(MODULES, type_checking=False).items():
        parts[importer.rpartition(".")[0]] |= {other.rpartition(".")[0] for other in others}
    inner = {part for part in parts if part.startswith("samebits.worker.")}
    assert not cycle({part: (parts[part] & inner) - {part} for part in inner})


@pytest.mark.parametrize("package", CONTAINER)
def test_what_enters_the_container_imports_only_what_an_image_holds(package: str) -> None:
    inside = [module for module in MODULES if package_of(module) == package]
    found = {(module, name) for module in inside for name in foreign(MODULES[module]) - LIBRARIES[package]}
    assert found <= {(KERNEL, "triton")}
    graph = own(MODULES)
    assert {package_of(other) for module in inside for other in graph[module]} <= {*CONTAINER, "samebits"}
    assert foreign(MODULES["samebits"]) == set()
    assert {package_of(other) for other in graph["samebits"]} <= {*CONTAINER}


def test_only_the_kernel_imports_triton_and_only_staging_the_kernel_in_a_function() -> None:
    """Everything works where Triton is missing or broken."""
    assert [name for name, text in MODULES.items() if "triton" in foreign(text)] == [KERNEL]
    assert importers()[KERNEL] == {STAGING}
    body = ast.parse(MODULES[STAGING]).body
    at_import = [node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert KERNEL not in imported(ast.Module(at_import, []), MODULES)


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_judging_and_reporting_never_import_torch(package: str) -> None:
    inside = [module for module in MODULES if package_of(module) == package]
    assert [module for module in inside if foreign(MODULES[module]) & {"torch", "megatron"}] == []


def test_one_module_imports_submitit() -> None:
    assert [name for name, text in MODULES.items() if "submitit" in foreign(text)] == [SUBMITS]


def test_no_package_holds_more_than_20_modules() -> None:
    large = {name: count for name, count in modules_by_package().items() if count > MOST_MODULES_OF_A_PACKAGE}
    assert large == LARGE_PACKAGES


def test_the_source_is_small() -> None:
    assert sum(not is_package(module) for module in MODULES) <= MOST_MODULES
    assert sum(map(lines_of_code, MODULES.values())) <= MOST_LINES_OF_CODE


def test_no_class_name_is_used_twice() -> None:
    assert defined_twice(MODULES).keys() == KNOWN_TWICE


def test_no_small_module_serves_a_single_other() -> None:
    users = importers()
    small = {
        module: lines_of_code(text)
        for module, text in MODULES.items()
        if module not in ENTRY_POINTS and not is_package(module) and len(users[module]) == 1
    }
    assert {name for name, lines in small.items() if lines < SMALL} == KNOWN_SMALL


def test_what_nothing_imports_is_an_entry_point() -> None:
    unused = {module for module, users in importers().items() if not users and not is_package(module)}
    assert unused == ENTRY_POINTS


def paths_of_the_tree() -> Iterator[Path]:
    """Yield what README's annotated tree names: folders by indentation, Python files in their line's folder."""
    tree = (ROOT / "README.md").read_text("utf-8").partition("## Where things are\n")[2].partition("\n## ")[0]
    folders: dict[int, Path] = {0: ROOT}
    for line in filter(None, tree.splitlines()):
        indent = len(line) - len(line.lstrip())
        names = line[:27].replace(",", " ").split()
        if indent < 20:
            above = folders[max(level for level in folders if level < indent)]
            folders = {level: folder for level, folder in folders.items() if level < indent}
            folders[indent] = above / names[-1]
            yield from (above / name for name in names)
        inside = folders[max(folders)]
        yield from (inside / word for word in re.findall(r"[\w./]+\.py\b", line[27:]))


def paths_of_contributing() -> Iterator[Path]:
    """Yield what CONTRIBUTING.md has between backticks and looks like a path."""
    quoted = re.findall(r"`([\w./]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    packages = {package for stage in STAGES for package in stage}
    for name in quoted:
        top = name.partition("/")[0]
        if top in packages or name in ("cli.py", "workflow.py"):
            yield SOURCE / "samebits" / name
        elif "/" in name:
            yield ROOT / name


def paths_in_prose() -> Iterator[Path]:
    """Yield tests and documents that docstrings, comments and documents name by their path."""
    texts = [*MODULES.values(), *(path.read_text("utf-8") for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))]
    for text in texts:
        yield from (ROOT / name for name in re.findall(r"\b(?:tests|docs|bench)/[\w./]+\.(?:py|md)\b", text))


def test_documents_name_only_paths_that_exist() -> None:
    named = [*paths_of_the_tree(), *paths_of_contributing(), *paths_in_prose()]
    assert len(named) > 50
    assert [str(path.relative_to(ROOT)) for path in named if not path.exists()] == []
