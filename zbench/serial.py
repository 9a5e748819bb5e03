"""Routed transfers whose legs go one after another: what waits for what. Pure: no torch.

Dispatch, transfer through the NICs and combine are three steps of which each begins when the one before has ended on
every share, and a rank begins to route a message when its last one has been combined (Zeppelin's communication routing
layer, arXiv 2509.21841, adds the three up; whether successive messages overlap there is not told). Without these waits
shares are passed on as they come and legs of successive messages overlap.
"""

import numba as nb
import numpy as np

from zbench.legs import Legs
from zbench.links import NIC
from zbench.plan import Ints, Ops


def serial_order(parts: Legs, ops: Ops) -> tuple[Ints, Ints]:
    """(legs, legs that wait for them), beside what data and lanes ask for; int64 [num_waits] both."""
    stage = np.where(parts.link_class == NIC, 1, np.where(parts.after >= 0, 2, 0))
    routed = np.flatnonzero(ops.via >= 0)
    before, following = _waits(routed, ops.src[routed].astype(np.int64), stage, parts.first)
    return np.array(before, np.int64), np.array(following, np.int64)


@nb.njit(cache=True)
def _waits(routed, src, stage, first):  # type: ignore[no-untyped-def]
    """stage: of every leg, 0 dispatch, 1 through NICs, 2 combine. routed, src: operations and their source ranks."""
    before, following = [0 for _ in range(0)], [0 for _ in range(0)]
    latest = np.full(src.max() + 1 if len(src) else 0, -1, np.int64)
    for at in range(len(routed)):
        op, last = routed[at], latest[src[at]]
        begin, end = first[op], first[op + 1]
        if begin == end:
            continue  # a message of no bytes
        earliest, previous_end = stage[begin:end].min(), 0
        if last >= 0:
            previous_end = stage[first[last] : first[last + 1]].max()
        for leg in range(begin, end):
            for other in range(begin, end):
                if stage[other] == stage[leg] - 1:
                    before.append(other)
                    following.append(leg)
            if stage[leg] == earliest and last >= 0:
                for other in range(first[last], first[last + 1]):
                    if stage[other] == previous_end:
                        before.append(other)
                        following.append(leg)
        latest[src[at]] = op
    return before, following
