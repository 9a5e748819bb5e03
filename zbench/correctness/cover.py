"""Chooses few combinations of systems, models and clusters that have every pair of them. Pure: no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from zbench.describe.arrays import Flags


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
    Each system has as few as have all models and all clusters, of these those with pairs that no system before it has;
    pairs that none has are given to systems in turn. Ties are broken by the seed.
    """
    rng = np.random.default_rng(seed)
    able = np.array([[can_be(model, cluster) for cluster in clusters] for model in models])
    missing = np.ones(able.shape, bool)  # pairs of a model and a cluster that no system has yet
    found: list[Combination] = []
    for system in systems:
        mine = _fewest(able, missing, rng)
        missing[tuple(zip(*mine, strict=True))] = False
        found += [Combination(system, models[m], clusters[c]) for m, c in mine]
    for turn, (m, c) in enumerate(np.argwhere(missing).tolist()):
        found.append(Combination(systems[turn % len(systems)], models[m], clusters[c]))
    return sorted(found)


def _fewest(able: Flags, missing: Flags, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Returns the fewest pairs that have every model and every cluster, in one that can be where there is one; of
    these, as far as can be seen, the most that are missing.

    A largest matching, and one more pair for each model and each cluster outside it, is a smallest edge cover (Gallai).
    """
    # Whether a pair serves its model: it can be, or none of that model can. So with clusters.
    of_model: Flags = able | ~able.any(1, keepdims=True)
    of_cluster: Flags = able | ~able.any(0, keepdims=True)
    rows, columns = (rng.permutation(size) for size in able.shape)
    worth = (of_model & of_cluster) * (1.0 + len(rows) + missing)
    m, c = linear_sum_assignment(worth[np.ix_(rows, columns)], maximize=True)
    found = [pair for pair in zip(rows[m].tolist(), columns[c].tolist(), strict=True) if worth[pair] > 0]
    served = [set(side) for side in zip(*found, strict=True)] or [set(), set()]
    for model in rows.tolist():
        if model not in served[0]:
            found.append((model, int(columns[(of_model[model] * (1 + missing[model]))[columns].argmax()])))
    for cluster in columns.tolist():
        if cluster not in served[1]:
            found.append((int(rows[(of_cluster[:, cluster] * (1 + missing[:, cluster]))[rows].argmax()]), cluster))
    return found
