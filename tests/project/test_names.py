"""One name has one meaning, and no function takes more than can be kept in mind."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("zbench", "systems", "workloads")  # zbench's links to the last two are not followed
MOST_PARAMETERS = 8  # of a function; self and cls aside

# Names that several modules define for the same thing, and what that is.
SHARED = {
    "main": "what a command does, as python -m calls it",
    "anchors": "every module of zbench.anchors has its anchors by this name",
    "table": "every figure's module: what it draws, of records (zbench.figures)",
    "draw": "every figure's module: its table on axes (zbench.figures)",
    "where": "every figure's module: the line that says what its runs are (zbench.figures)",
    "hop_seconds": "how long messages take to the next; stages have their own until a step is one kind of plan",
    "verify": "the library's, which calls the proof's with the cluster and model of a step's plans",
    "install": "every adapter's: puts the planner into its framework (zbench.adapters)",
}


Kinds = tuple[type[ast.ClassDef], ...] | tuple[type[ast.FunctionDef], type[ast.AsyncFunctionDef]]


@cache
def trees() -> dict[str, ast.Module]:
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    named = {str(path.relative_to(ROOT)): path for path in files}
    own = {name: path for name, path in named.items() if path.resolve() == path.absolute()}
    return {name: ast.parse(path.read_text()) for name, path in own.items()}


def several(kinds: Kinds) -> dict[str, list[str]]:
    """The public names of classes or functions that more than one module defines, and those modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                found[node.name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(name, number of parameters) of every function and method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            of = node.args
            names = [one.arg for one in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg) if one]
            yield node.name, len(names) - (names[:1] in (["self"], ["cls"]))


def test_every_module_is_looked_at_once() -> None:
    found = trees()
    assert {"zbench/plans/plan.py", "systems/ring.py", "workloads/fixed.py"} <= found.keys()
    assert not any(name.startswith(("zbench/systems/", "zbench/workloads/")) for name in found)


def test_no_two_classes_have_one_name() -> None:
    assert several((ast.ClassDef,)) == {}


def test_no_two_functions_have_one_name_unless_they_do_the_same() -> None:
    found = several((ast.FunctionDef, ast.AsyncFunctionDef))
    assert {name: modules for name, modules in found.items() if name not in SHARED} == {}
    assert SHARED.keys() <= found.keys(), "a name that nobody shares any more is to be taken off the list"


def test_no_function_has_more_parameters_than_can_be_kept_in_mind() -> None:
    assert {
        f"{module}: {name}": count
        for module, tree in trees().items()
        for name, count in functions(tree)
        if count > MOST_PARAMETERS
    } == {}


def test_parameters_are_counted_as_they_are_written() -> None:
    source = "class A:\n  def f(self, a, /, b, *c, d, **e): ...\ndef g(): ...\nasync def h(x): ..."
    assert sorted(functions(ast.parse(source))) == [("f", 5), ("g", 0), ("h", 1)]
