"""Two levels of gathers and reductions by degrees, in a node and between nodes, and where there are none.

A collective by degrees is among GPUs a stride apart in a run: of parameters cut over w groups all GPUs of w groups,
of gradients that are summed once a step over the rest every g-th group. It has two levels where the run is of several
nodes and a node has several of its members. Others are in one node, or between single GPUs of nodes, already:
sharding.degrees.reductions and updates with node make them so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from zbench.describe.degrees import WORLD
from zbench.describe.overlap import FLAT, HIERARCHICAL
from zbench.describe.units import with_noun
from zbench.step.passes.parameters.zero import ShardedParameters

_GIVEN = f"sharding.collectives is {HIERARCHICAL}"


@dataclass(frozen=True, slots=True)
class _Collectives:
    """Collectives between two degrees. run, stride: GPUs. key: the degree of the run. sums: whether they reduce."""

    run: int
    stride: int
    key: str
    sums: bool

    def is_cut(self, node: int) -> bool:
        """Returns whether they are over several nodes and among several GPUs of each."""
        return self.run > node > self.stride


def _collectives(of: ShardedParameters) -> Iterator[_Collectives]:
    """Yields the collectives of a step's parameters and gradients."""
    degrees = of.degrees

    def between(outer: int, inner: int, key: str, sums: bool = False) -> _Collectives:
        run, stride = (of.num_gpus if degree == WORLD else degree * of.degree for degree in (outer, inner))
        return _Collectives(run, stride, key, sums)

    yield between(degrees.weights, 1, "weights")
    yield between(degrees.secondary, 1, "secondary")
    for inner, outer in of.reduced_by(last=True):
        yield between(outer, inner, "gradients", sums=True)
    yield between(WORLD, degrees.optimizer, "optimizer")
    for outer, inner in pairwise((degrees.optimizer, *of.passed_on, degrees.weights)):
        yield between(outer, inner, "optimizer")


def check_levels(of: ShardedParameters, gpus_per_node: int) -> None:
    """Refuses degrees of which no collective has two levels, or one has runs of broken nodes or sums in fewer bits.

    Raises:
        ValueError: there is such.
    """
    cut = [one for one in _collectives(of) if one.is_cut(gpus_per_node)]
    if not cut:
        raise ValueError(
            f"{_GIVEN}; with sharding.degrees {of.degrees.told} on {with_noun(of.num_gpus, 'GPU')} every gather and "
            f"reduction is inside a node or between single GPUs of nodes, so it takes {FLAT}"
        )
    for one in cut:
        if one.run % gpus_per_node or gpus_per_node % one.stride:
            raise ValueError(
                f"{_GIVEN}; runs of sharding.degrees.{one.key} are {with_noun(one.run, 'GPU')}, and two levels take "
                f"whole nodes of {gpus_per_node} with as many members in each, so it takes {FLAT}"
            )
    if of.degrees.bits.gradients is not None and any(one.sums for one in cut):
        raise ValueError(
            f"{_GIVEN}; with sharding.bits.gradients={of.degrees.bits.gradients} a second level would encode sums once "
            f"more, so it takes {FLAT}, or sharding.degrees.reductions=node where all ranks reduce them at once"
        )
