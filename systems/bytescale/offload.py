"""ByteScale's offloading: over how few ranks a sequence may be cut where what its layers keep waits in host memory.

The paper's first algorithm has, for a sequence of s tokens that is longer than C, which a GPU holds, a share r of the
activations of all layers but two on hosts, as large as transfers take no longer than what is computed meanwhile, and
so D(s) = ceil((2 Act(s) + (1 - r) (l - 2) Act(s)) / (l Act(C))) ranks (arXiv 2502.21231, section 4). Here what waits is
all that layers keep (memory.offload=activations, the paper's) or their inputs, of as large a share of a sequence's
tokens (memory.offload_tokens=auto, the paper's) or of as many first layers (memory.offload_layers=auto) as is hidden.
What a GPU holds with so much away is what planners' memory says, which has two layers' and a layer at work in it.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.hidden import hidden_shares
from zbench.describe.checks import FEWEST
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.plans.plan import Ints
from zbench.systems.zeppelin.zones import capacity_tokens

PARTS = 64  # of a sequence's tokens: fewer capacities to look up than lengths


def tokens_with_hosts(lengths: Ints, cost: Cost) -> Ints | None:
    """Returns the tokens of each sequence that a rank may have, int64 [n]: what a GPU holds with as many layers, or as
    large a share of all tokens, on hosts as are behind the sequence's own layers. None where a run leaves neither open:
    what a GPU holds is the same for all sequences then."""
    model = cost.model
    if FEWEST not in (model.offload_layers, model.offload_tokens):
        return None
    of_layers = model.offload_layers == FEWEST
    hidden = hidden_layers(lengths, cost) if of_layers else hidden_parts(lengths, cost)
    every, which = np.unique(hidden, return_inverse=True)
    models = [model.offloading(count) if of_layers else _with_parts(model, count) for count in every.tolist()]
    return np.array([capacity_tokens(replace(cost, model=one)) for one in models], np.int64)[which]


def hidden_layers(lengths: Ints, cost: Cost) -> Ints:
    """Returns of how many layers of a stage what waits reaches host memory while all of a sequence's layers there are
    computed, int64 [n]: of at most those of which something can wait there."""
    layers = cost.layers
    return np.minimum(layers * hidden_shares(lengths, cost), cost.model.most_offloaded(layers)).astype(np.int64)


def hidden_parts(lengths: Ints, cost: Cost) -> Ints:
    """Returns of how many of PARTS parts of each sequence's tokens what waits reaches host memory while a layer is
    computed, int64 [n]."""
    return np.minimum(PARTS * hidden_shares(lengths, cost), PARTS).astype(np.int64)


def _with_parts(model: Model, count: int) -> Model:
    """Returns the model with something of so many of PARTS parts of all tokens on hosts."""
    if count == 0:
        return model.offloading(0)
    return replace(model, offload_tokens=ALL_LAYERS if count == PARTS else count / PARTS)
