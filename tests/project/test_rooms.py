"""The folders of zbench: none is too large to be read, and none imports one that imports it."""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILES = 20
TAKEN = {"plan", "verify", "simulate", "bound"}  # names of the library's functions, as in zbench.plan(...)


def modules() -> dict[str, Path]:
    found = {}
    for folder in ("zbench", "zbench/systems", "zbench/workloads"):  # links, which rglob does not follow by itself
        for path in sorted((ROOT / folder).rglob("*.py")):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Lists the modules of zbench that a file imports, at its top and inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(known)


def room(module: str, path: Path) -> str:
    """A module's folder. A command's __main__, which nothing but a command imports, is on top of its folder."""
    if path.name == "__init__.py" or path.name == "__main__.py":
        return module
    return module.rpartition(".")[0]


def arrows(known: dict[str, Path]) -> dict[str, set[str]]:
    """Which folders each folder imports. zbench itself has the version and the folder of yamls only."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in known.items():
        own = room(module, path)
        found[own] |= {room(name, known[name]) for name in imported(path, known)} - {own, "zbench"}
    return found


def test_no_folder_imports_one_that_imports_it() -> None:
    try:
        tuple(TopologicalSorter(arrows(modules())).static_order())
    except CycleError as error:
        pytest.fail(f"folders import each other: {' -> '.join(error.args[1])}")


def test_no_folder_has_too_many_files() -> None:
    sizes: dict[Path, int] = defaultdict(int)
    for path in modules().values():
        sizes[path.parent] += 1
    assert not {str(folder): size for folder, size in sizes.items() if size > MOST_FILES}


def test_nothing_but_the_command_lies_in_zbench_itself() -> None:
    assert {path.stem for path in (ROOT / "zbench").glob("*.py")} == {"__init__", "__main__"}
    assert not TAKEN & {path.name for path in (ROOT / "zbench").iterdir()}
