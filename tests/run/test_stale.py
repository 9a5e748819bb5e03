"""Compiled functions are compiled anew where what they call, or a constant of theirs, has changed in another file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.run.stale import Sources, reached

MINE = """
import numba as nb
from zbench.systems.other import twice
from zbench.systems.plain import EXTRA

@nb.njit(cache=True)
def mine(x):
    return twice(x) + EXTRA

print(mine(10), sum(mine.stats.cache_hits.values()))
"""
OTHER = """
import numba as nb

@nb.njit(cache=True)
def twice(x):
    return 2 * x
"""
HERE = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a package of compiled functions, and zbench's way to keep them."""
    for name in ("zbench", "systems"):
        (tmp_path / name).mkdir()
    (tmp_path / "zbench" / "run").mkdir()
    for name in ("__init__", "run/__init__", "run/stale"):
        (tmp_path / "zbench" / f"{name}.py").write_text((HERE / "zbench" / f"{name}.py").read_text())
    (tmp_path / "zbench" / "systems").symlink_to("../systems")
    (tmp_path / "zbench" / "workloads").mkdir()
    for name, text in (("__init__", ""), ("mine", MINE), ("other", OTHER), ("plain", "EXTRA = 1\n")):
        (tmp_path / "systems" / f"{name}.py").write_text(text)
    return tmp_path


def printed(root: Path, before: str) -> list[int]:
    """Result and cache hits of the program in a process of its own, which first imports something."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CACHE")}
    found = subprocess.run(
        [sys.executable, "-B", "-c", f"import {before}, zbench.systems.mine"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={**known, "PYTHONPATH": str(root)},
    )
    return [int(word) for word in found.stdout.split()]


def test_what_is_called_in_another_file(root: Path) -> None:
    assert printed(root, "zbench") == [21, 0]
    assert printed(root, "zbench") == [21, 1]
    (root / "systems" / "other.py").write_text(OTHER.replace("2 * x", "3 * x"))
    assert printed(root, "zbench") == [31, 0]
    (root / "systems" / "plain.py").write_text("EXTRA = 5\n")
    assert printed(root, "zbench") == [35, 0]
    assert printed(root, "zbench") == [35, 1]


def test_a_class_that_a_compiled_function_took_and_that_is_gone(root: Path) -> None:
    """An index holds the types of arguments, so reading one of before would miss the class."""
    mine = MINE.replace(
        "import numba as nb\n",
        "from typing import NamedTuple\nimport numba as nb\n\nclass Pair(NamedTuple):\n    a: int\n",
    )
    mine = mine.replace("twice(x) + EXTRA", "twice(x.a) + EXTRA").replace("mine(10)", "mine(Pair(10))")
    (root / "systems" / "mine.py").write_text(mine)
    assert printed(root, "zbench") == [21, 0]
    assert printed(root, "zbench") == [21, 1]
    (root / "systems" / "mine.py").write_text(mine.replace("Pair", "Twin"))
    assert printed(root, "zbench") == [21, 0]


def test_numba_by_itself_goes_on_with_old_copies(root: Path) -> None:
    """Why there is zbench.run.stale; where this fails, numba knows what functions call, and it can go."""
    assert printed(root, "numba") == [21, 0]
    (root / "systems" / "other.py").write_text(OTHER.replace("2 * x", "3 * x"))
    assert printed(root, "numba") == [21, 1]


def test_what_a_file_depends_on(root: Path) -> None:
    folder = root / "systems"
    (folder / "outer.py").write_text("import numba as nb\nfrom zbench.systems import mine as inner\n")
    (folder / "alone.py").write_text("import numba as nb\nfrom zbench.systems.plain import Kind\n")
    (folder / "again.py").write_text("import numba as nb\nfrom zbench.systems.between import EXTRA\n")
    (folder / "between.py").write_text("from zbench.systems.plain import EXTRA\n")
    known = Sources(root / "zbench")
    inside = {folder / f"{name}.py" for name in ("mine", "other", "plain")}
    assert reached(folder / "mine.py", known) == inside
    assert reached(folder / "outer.py", known) == inside | {folder / "outer.py"}
    assert reached(folder / "again.py", known) == {folder / f"{name}.py" for name in ("again", "between", "plain")}
    assert reached(folder / "alone.py", known) == {folder / "alone.py"}
    assert reached(Path("elsewhere.py"), known) == {Path("elsewhere.py")}


def test_no_two_processes_give_functions_one_number(root: Path) -> None:
    """A number is all that tells functions of one name and type apart, as the loops of numba's sort and argsort; from
    two processes' caches they would be taken for each other."""
    program = MINE.replace("print(mine(10), sum(mine.stats.cache_hits.values()))", "mine(10)")
    (root / "systems" / "mine.py").write_text(
        program + "\nfor of in mine.overloads.values():\n    print(of.fndesc.unique_name.rpartition('$')[2])\n"
    )
    numbers = []
    for _ in range(2):
        numbers += printed(root, "zbench")
        for kept in (root / "systems" / "__pycache__").glob("*.nb?"):
            kept.unlink()
    assert len(set(numbers)) == 2
