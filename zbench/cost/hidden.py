"""Tells how much of what layers keep reaches host memory behind what is computed meanwhile."""

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.recompute import kept_activation_bytes
from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints


def hidden_shares(lengths: Ints, cost: Cost) -> Floats:
    """Returns of each sequence the seconds of a layer's forward over those in which a GPU's link takes what the layer
    keeps to host memory, float64 [n]: the share of its tokens whose copies are hidden, if at most 1.

    Ranks that share a sequence have the same share of both. A backward takes longer than the forward, which is what
    counts, and links to hosts are as fast in both directions.
    """
    model, link = cost.model, cost.cluster.host
    assert link is not None, "a run with something of layers on hosts has refused a cluster without a link there"
    computing = of_parts(cost).linear_seconds(lengths) + cost.whole_seconds(lengths, False)
    return np.asarray(computing / cost.message_seconds(lengths * kept_activation_bytes(model), link))
