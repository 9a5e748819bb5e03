"""A mesh's packs: which micro-batch and which group every sequence goes to."""

from typing import Literal

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.memory.host_copies import waiting
from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints
from zbench.systems.common.best_fit import best_fit_packs
from zbench.systems.common.bins import bins

Batching = Literal["arrival", "best_fit", "balanced"]


def pack_batch(batching: Batching, lengths: Ints, num_groups: int, most: int, cost: Cost) -> Ints:
    """Returns int64 [num_sequences, 2]: micro-batch and group of every sequence, in packs of at most `most` tokens.

    A longer sequence has a pack of its own. arrival: packs are filled in order, and the groups take them in turn.
    best_fit: the smallest packs that make the fewest micro-batches; packs of about as many tokens run together.
    balanced: as many micro-batches, sequences dealt so that the packs take about the same time.
    """
    if batching == "arrival":
        return np.stack(np.divmod(_filled(lengths, most), num_groups), axis=1)
    pack = best_fit_packs(lengths, num_groups, most)
    if batching == "balanced":
        count = -(-int(pack.max() + 1) // num_groups) * num_groups
        pack = bins(sequence_seconds(lengths, cost), lengths, count, max(most, int(lengths.max())))
        return _together(pack, sequence_seconds(lengths, cost), num_groups)
    return _together(pack, lengths.astype(np.float64), num_groups)


def sequence_seconds(lengths: Ints, cost: Cost) -> np.ndarray:
    """Returns the seconds of a layer, forward and backward, for whole sequences [n], as if alone on a GPU."""
    ahead, back = (cost.whole_seconds(lengths, way) for way in (False, True))
    part = of_parts(cost)
    linear, again = part.linear_seconds(lengths), part.again_seconds(lengths)
    return np.asarray(ahead + back + (3 * linear + again) + waiting(cost, lengths, ahead, back), np.float64)


def _together(pack: Ints, load: np.ndarray, num_groups: int) -> Ints:
    """Puts the heaviest packs in one micro-batch, then the next ones: groups that wait for each other have about as
    much."""
    names, pack = np.unique(pack, return_inverse=True)
    total = np.bincount(pack, weights=load, minlength=len(names))
    place = np.empty(len(names), np.int64)
    place[np.argsort(-total, kind="stable")] = np.arange(len(names))
    return np.stack(np.divmod(place[pack], num_groups), axis=1)


@nb.njit(**ENTERED)
def _filled(lengths, most):  # type: ignore[no-untyped-def]
    """Packs sequences by next fit and returns the pack of each: one that does not fit begins the next pack."""
    pack = np.empty(len(lengths), np.int64)
    at, held = 0, 0
    for i in range(len(lengths)):
        if held and held + lengths[i] > most:
            at, held = at + 1, 0
        pack[i] = at
        held += lengths[i]
    return pack
