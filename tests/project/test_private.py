"""A name with a leading underscore is its module's own: no other module of zbench imports or uses it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def borrowed(source: str) -> Iterator[str]:
    """Yields the private names of zbench's other modules that a file imports, or takes from what it imports of them."""
    tree = ast.parse(source)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zbench":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"line {node.lineno}: {node.module} {name}" for name in parts if is_private(name))
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] == "zbench"]
            imported |= {alias.asname or alias.name.split(".")[0] for alias in ours}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        owner = node.value
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        if isinstance(owner, ast.Name) and owner.id in imported:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_module_uses_another_modules_private_names() -> None:
    found = []
    for folder in ("zbench", "zbench/systems", "zbench/workloads"):  # links, which rglob does not follow by itself
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += [f"{path.relative_to(ROOT)}, {one}" for one in borrowed(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from zbench.cost.cost import _seconds", 1),
        ("from zbench.run import run\nrun._step()", 1),
        ("import zbench.run.run as run\nrun._step()", 1),
        ("from zbench.run.run import Run\nRun._open(1)", 1),
        ("from zbench.run import run\nrun.step.__doc__", 0),
        ("import os\nos._exit(0)", 0),
        ("class One:\n    def two(self): return self._three", 0),
    ],
)
def test_borrowed_names_are_found(source: str, count: int) -> None:
    assert len(list(borrowed(source))) == count
