"""ByteScale's offloading: over how few ranks a sequence may be cut where what its layers keep waits in host memory.

The paper's first algorithm has, for a sequence of s tokens that is longer than C, which a GPU holds, a share r of the
activations of all layers but two on hosts, as large as transfers take no longer than what is computed meanwhile, and
so D(s) = ceil((2 Act(s) + (1 - r) (l - 2) Act(s)) / (l Act(C))) ranks (arXiv 2502.21231, section 4). Here what waits is
of the first layers, all that they keep (memory.offload=activations, the paper's) or their inputs, and what a GPU holds
with so many of them away is what planners' memory says, which has two layers' and a layer at work in it.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.hidden import hidden_shares
from zbench.describe.checks import FEWEST
from zbench.plans.plan import Ints
from zbench.systems.zeppelin.zones import capacity_tokens


def tokens_with_hosts(lengths: Ints, cost: Cost) -> Ints | None:
    """Returns the tokens of each sequence that a rank may have, int64 [n]: what a GPU holds with as many layers on
    hosts as are behind the sequence's own layers. None where a run does not leave their number open: what a GPU
    holds is the same for all sequences then."""
    if not (cost.model.layers_on_hosts and cost.model.offload_layers == FEWEST):
        return None
    layers = hidden_layers(lengths, cost)
    every, which = np.unique(layers, return_inverse=True)
    each = [capacity_tokens(replace(cost, model=cost.model.offloading(count))) for count in every.tolist()]
    return np.array(each, np.int64)[which]


def hidden_layers(lengths: Ints, cost: Cost) -> Ints:
    """Returns of how many layers of a stage what waits reaches host memory while all of a sequence's layers there are
    computed, int64 [n]: of at most those of which something can wait there."""
    layers = cost.layers
    return np.minimum(layers * hidden_shares(lengths, cost), cost.model.most_offloaded(layers)).astype(np.int64)
