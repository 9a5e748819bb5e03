"""Chooses few combinations of systems, models and clusters that have every pair of them. Pure: no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, order=True)
class Combination:
    """A combination of a system, a model and a cluster, by their names."""

    system: str
    model: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.system}-{self.model}-{self.cluster}"


def pairwise_cover(
    systems: Sequence[str],
    models: Sequence[str],
    clusters: Sequence[str],
    can_be: Callable[[str, str], bool],
    seed: int = 0,
) -> list[Combination]:
    """Chooses combinations that have every pair of a system, a model and a cluster.

    Of a pair with a system one combination at least is of a model on a cluster that it can be on, where there is one.
    They are chosen one by one, each with the most pairs that are still missing; ties are broken by the seed.
    """
    shape = len(systems), len(models), len(clusters)
    able = np.array([[can_be(model, cluster) for cluster in clusters] for model in models])
    order = np.random.default_rng(seed).permutation(int(np.prod(shape)))
    s, m, c = (axis.ravel()[order] for axis in np.indices(shape))
    # Whether a combination serves its pair of system and model: it can be, or none of that model can. So with clusters.
    placeable, filled = (np.logical_or.reduce(able, axis) for axis in (1, 0))
    serves_model, serves_cluster = able[m, c] | ~placeable[m], able[m, c] | ~filled[c]
    with_model, with_cluster, placed = (np.ones((shape[i], shape[j]), bool) for i, j in ((0, 1), (0, 2), (1, 2)))
    found: list[Combination] = []
    while True:
        first, second = with_model[s, m] & serves_model, with_cluster[s, c] & serves_cluster
        gain = first.astype(int) + second + placed[m, c]
        at = int(gain.argmax())
        if gain[at] == 0:
            return sorted(found)
        found.append(Combination(systems[s[at]], models[m[at]], clusters[c[at]]))
        with_model[s[at], m[at]] &= not serves_model[at]
        with_cluster[s[at], c[at]] &= not serves_cluster[at]
        placed[m[at], c[at]] = False
