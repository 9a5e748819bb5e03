"""What calls itself pure imports neither torch, hydra nor wandb; the core of the project calls itself so."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = {
    "zbench.area", "zbench.batch", "zbench.bound", "zbench.build", "zbench.clock", "zbench.cluster",
    "zbench.collective", "zbench.columns", "zbench.cost", "zbench.coverage", "zbench.dataflow", "zbench.direct",
    "zbench.direct_occupancy", "zbench.layers", "zbench.loss", "zbench.pairs", "zbench.ring_area", "zbench.walk",
    "zbench.memory", "zbench.metrics", "zbench.model", "zbench.one_f_one_b", "zbench.patterns", "zbench.pipelined",
    "zbench.pipelines", "zbench.plan", "zbench.protocols", "zbench.result", "zbench.rewrite", "zbench.rows",
    "zbench.rewrite.order", "zbench.rewrite.remap", "zbench.rewrite.reverse", "zbench.rewrite.route",
    "zbench.simulate", "zbench.stage", "zbench.units", "zbench.verify",
    "zbench.systems.ring", "zbench.systems.allgather", "zbench.systems.ulysses",
}  # fmt: skip
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


def pure_modules() -> list[str]:
    """Modules whose docstring says "Pure", and all of zbench.systems."""
    found = []
    for folder in ("zbench", "zbench/systems", "zbench/workloads"):  # links, which rglob does not follow by itself
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            words = ast.get_docstring(ast.parse(path.read_text())) or ""
            if "Pure" in words or folder == "zbench/systems" or path.parent.name == "rewrite":
                found.append(name)
    return found


def test_the_core_calls_itself_pure() -> None:
    assert set(pure_modules()) >= CORE


@pytest.mark.parametrize("together", [True, False], ids=["all", "core"])
def test_pure_modules_import_without_torch_hydra_and_wandb(together: bool) -> None:
    names = pure_modules() if together else sorted(CORE)
    program = PROGRAM.format(blocked=BLOCKED, names=names)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wall_stands() -> None:
    program = PROGRAM.format(blocked=BLOCKED, names=["omegaconf"])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "a pure module imports omegaconf" in done.stderr
