"""Rooms that are pure, and modules elsewhere that call themselves so, import neither torch, hydra nor wandb."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "describe",
    "plans",
    "cost",
    "interfaces",
    "simulator",
    "passes",
    "proof",
    "contracts",
    "step",
    "rollouts",
    "systems",
)  # nothing in them is an edge
BLOCKED = ("torch", "hydra", "omegaconf", "wandb")
PROGRAM = """
import importlib, sys
blocked = {blocked!r}
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError("a pure module imports " + name)
sys.meta_path.insert(0, Wall())
for name in {names!r}:
    importlib.import_module(name)
assert not set(blocked) & {{name.partition(".")[0] for name in sys.modules}}
"""


def pure_modules(rooms_only: bool) -> list[str]:
    found = []
    for folder in ("zbench", "zbench/systems", "zbench/workloads"):  # links, which rglob does not follow by itself
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            in_room = name.split(".")[1:2] and name.split(".")[1] in ROOMS
            words = ast.get_docstring(ast.parse(path.read_text())) or ""
            if in_room or ("Pure" in words and not rooms_only):
                found.append(name)
    return found


def test_every_room_is_there() -> None:
    assert {name.split(".")[1] for name in pure_modules(rooms_only=True)} == set(ROOMS)


@pytest.mark.parametrize("rooms_only", [True, False], ids=["rooms", "all"])
def test_pure_modules_import_without_torch_hydra_and_wandb(rooms_only: bool) -> None:
    program = PROGRAM.format(blocked=BLOCKED, names=pure_modules(rooms_only))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wall_stands() -> None:
    program = PROGRAM.format(blocked=BLOCKED, names=["omegaconf"])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "a pure module imports omegaconf" in done.stderr
