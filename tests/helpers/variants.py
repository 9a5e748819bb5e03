"""Every system in conf/system, as its yaml has it and with each choice of its yaml made the other way."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from zbench.cost.cost import Cost
from zbench.interfaces.protocols import System
from zbench.passes.reverse import MODES
from zbench.run.choices import NEEDS, choices

SWITCHES = {
    ("bytescale", "tokens_per_rank"): ("published",),
    ("flexsp", "least_degree"): (2,),
    ("flexsp", "padding"): ("published",),
    ("flexsp_batch_ada", "packing"): ("published",),
    ("flexsp_batch_ada", "padding"): ("published",),
    ("hydraulis", "batching"): ("published", "fixed", "first_fit"),
    ("in_contract", "contract"): ("any_rings", "whole_on_dp", "equal_token_permutation"),
    ("magi_dispatch", "algorithm"): ("binary_search", "backtracking", "topp"),
    ("magi_dispatch", "overlap_stages"): (0, 3),
    ("magi_dispatch", "chunk_tokens"): (7,),
    ("mesh", "method"): ("allgather", "ulysses"),
    ("mesh", "batching"): ("arrival", "balanced"),
    ("ring", "wait"): ("published",),
    ("ring", "run_ahead"): ("published",),
    ("ring", "padding"): ("published",),
    ("torch_cp", "balancer"): ("per_document", "ptrr"),
    ("zeppelin", "partitioner"): ("published",),
    ("zeppelin", "routed_transfers"): ("serial",),
}
FOLDER = Path(__file__).parents[2] / "conf" / "system"


@dataclass(frozen=True)
class Variant:
    """A yaml and the keys that differ from it."""

    path: Path
    changes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return ",".join([self.path.stem, *(f"{key}={value}" for key, value in self.changes)])

    def make(self, cost: Cost) -> System:
        """Skips the test that calls it where the system's package is not installed; a broken one fails."""
        package = NEEDS.get(self.path.stem)
        if package is not None and find_spec(package) is None:
            pytest.skip(f"{self.path.stem} needs {package}, of the extra `peers`")
        return _maker(self)(cost=cost)


@cache
def _maker(variant: Variant) -> Callable[..., System]:
    node = OmegaConf.merge(OmegaConf.load(variant.path), OmegaConf.create(dict(variant.changes)))
    return instantiate(node, _partial_=True, _convert_="all")


SYSTEMS = [Variant(FOLDER / f"{name}.yaml") for name in choices("system")]


def _others(system: Variant) -> list[Variant]:
    """Every switch of the yaml turned over by itself, every other backward mode, and other values in SWITCHES."""
    found = []
    for key, value in OmegaConf.load(system.path).items():
        if isinstance(value, bool):
            found.append(Variant(system.path, ((key, not value),)))
        if key == "received_kv":
            found += [Variant(system.path, ((key, mode),)) for mode in MODES if mode != value]
        found += [Variant(system.path, ((key, other),)) for other in SWITCHES.get((system.path.stem, str(key)), ())]
    return found


VARIANTS = [variant for system in SYSTEMS for variant in (system, *_others(system))]
