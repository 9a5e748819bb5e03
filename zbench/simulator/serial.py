"""Makes routed transfers of a rank run one after another.

A routed transfer is dispatched, sent and combined, each share as soon as it has arrived where that is done next. Here
a rank begins to dispatch a message only when its last one has been combined: the three steps of successive messages
never overlap, as in a communication layer that returns when it is done (Zeppelin's, arXiv 2509.21841, adds the three
times up; whether its messages overlap is not told). Without these waits they overlap as far as queues and links allow.
"""

import numpy as np

from zbench.plans.dataflow import Edges
from zbench.plans.plan import Ops


def in_turn(found: Edges, ops: Ops) -> Edges:
    """Returns `found` with an edge from every routed transfer to the next one of the same source in plan order."""
    routed = np.flatnonzero(ops.via >= 0)
    routed = routed[np.argsort(ops.src[routed], kind="stable")]
    same = ops.src[routed[1:]] == ops.src[routed[:-1]]
    before, after = (side[same].astype(found.producer.dtype) for side in (routed[:-1], routed[1:]))
    return Edges(np.concatenate([found.producer, before]), np.concatenate([found.consumer, after]))
