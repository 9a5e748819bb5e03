"""Records of the planner: arrays and numbers that belong together, each with a name.

Functions compiled by numba take all of them: NamedTuples of arrays, numbers and other NamedTuples, and numpy arrays
with named fields. Seconds are of one layer, forward and backward together, where nothing else is said. A node is one of
the cluster's, or a GPU where nodes do not share heads.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints

Table = NDArray[np.void]  # an array with named fields
Record = Any  # one element of a Table: np.void, and for numba a record
FORWARD, BACKWARD = 0, 1  # directions, where arrays have an axis of two

# What one node has of a cut sequence: tokens [first_start, first_stop) and [second_start, second_stop), the second of
# which may be none. Shards of one sequence are next to each other in a table, in the order of their first pieces.
SHARD = np.dtype(
    [(name, np.int64) for name in ("seq", "node", "first_start", "first_stop", "second_start", "second_stop")],
    align=True,
)
# What a node computes and receives of its shards of cut sequences in one direction. tokens: of all of these. own:
# seconds of a GPU's attends to the shards' own keys; others: to keys of other shards, with starts and joins; last_call:
# of these, the last call. starts: seconds of all starts of own attends. keys: seconds of keys on NICs. ready: when all
# nodes of these sequences have their linear modules done. away: the share of a shard's tokens that are at home on
# other nodes of its group. heads: how many of a shard a GPU has.
SHARD_WORK = np.dtype(
    [
        (name, np.float64)
        for name in ("tokens", "own", "others", "last_call", "starts", "keys", "ready", "away", "heads")
    ],
    align=True,
)


class Sequences(NamedTuple):
    """Holds sequences that are placed: the tokens (int64 [n]) and the seconds of attention (float64 [n]) of each."""

    tokens: Ints
    attention: Floats

    def work(self, linear: float) -> Floats:
        """Returns the seconds that each sequence takes, whole, where a token's linear modules take `linear`."""
        work: Floats = self.attention + linear * self.tokens
        return work


class TokenSeconds(NamedTuple):
    """Holds the seconds that tokens take on one GPU.

    linear: the linear modules of a token, with a layer's share of its output head. square, query: the attention of the
    first n tokens of a sequence takes square n^2 + query n. repack: the strided copies of a token whose heads are
    shared.
    """

    linear: float
    square: float
    query: float
    repack: float


class Nodes(NamedTuple):
    """Describes the nodes that sequences are placed on, which are all alike.

    num_nodes: how many there are. num_ranks: GPUs of each. capacity: tokens that one has room for. token: what tokens
    take. forward: the share of the forward in attention. across: seconds in which the kv of a token gets through all
    NICs of a node. one_peer: how many times as long it takes to or from a single other node. taken: float64 [2],
    seconds for which parameters' gathers and gradients' reductions take the NICs in the forward and in the backward.
    """

    num_nodes: int
    num_ranks: int
    capacity: int
    token: TokenSeconds
    forward: float
    across: float
    one_peer: float
    taken: Floats


class Rule(NamedTuple):
    """Describes one way to place sequences on nodes.

    cut: how many of the longest sequences are cut. first: cut sequences are placed before the others, so that they get
    nodes of their own; otherwise they fill what the others leave. wrap: each goes on where the one before ended;
    otherwise it starts on the nodes with the most room. front: nodes with less room than this, of the roomiest one of
    the sequence, get a stretch from its beginning. squeeze: room that is not worth it, in even shares of a node. even:
    a cut sequence is on all nodes, in equal parts. wide: so many nodes next to each other are one group while sequences
    are placed, and share the heads of what is cut over several groups, so that fewer keys cross; it divides the number
    of nodes. full: nodes are filled up to so many even shares of the work; beyond 1, fewer of them share a sequence,
    and they stay uneven.
    """

    cut: int
    first: bool = False
    wrap: bool = False
    front: float = 0.0
    squeeze: float = 0.03
    even: bool = False
    wide: int = 1
    full: float = 1.0


class Loads(NamedTuple):
    """Holds what nodes (or groups of nodes) have so far; compiled functions add to it.

    seconds: float64 [n], of the work of all GPUs of each. held: float64 [n], tokens. capacity: tokens that one has room
    for.
    """

    seconds: Floats
    held: Floats
    capacity: int


class Estimate(NamedTuple):
    """Holds the seconds that a placement takes, as step 1 sees it.

    linear, busy, keys: float64 [nodes], seconds of a GPU's linear modules, of its attention, and of the keys on a
    node's NICs. layer: seconds of a layer. passes: float64 [2], of its forward and of its backward.
    """

    linear: Floats
    busy: Floats
    keys: Floats
    layer: float
    passes: Floats


class NodeSettings(NamedTuple):
    """Holds what step 2 knows of a node.

    num_ranks: its GPUs. num_heads: query heads of the model. capacity: tokens that a GPU has room for. chunks: parts in
    which a GPU's heads are exchanged at most. groups: groups of shared sequences at most. homes: tokens of shared
    sequences are at home where GPUs lack tokens (otherwise evenly).
    """

    num_ranks: int
    num_heads: int
    capacity: int
    chunks: int
    groups: int
    homes: bool


class PassSeconds(NamedTuple):
    """Holds what one direction of a layer takes.

    linear, attention: its shares of the seconds of linear modules and of attention in both directions. start, join:
    seconds of starting one call, and of starting to join a call's results. out, home: seconds of a token's way to the
    heads and back home, all heads, through one NVLink port; nic_out, nic_home: the same through all NICs of a node.
    join_query, join_key: seconds of joining a query's and a key's results to earlier ones. begins: the share of the
    linear modules after which gathers and reductions begin, and take a NVLink port for `kept` and NICs for `kept_nic`
    seconds.
    """

    linear: float
    attention: float
    start: float
    join: float
    out: float
    home: float
    nic_out: float
    nic_home: float
    join_query: float
    join_key: float
    begins: float
    kept: float
    kept_nic: float


class Pace(NamedTuple):
    """Holds what a layer waits for: its forward and its backward, the least of a call, a message's latency."""

    passes: tuple[PassSeconds, PassSeconds]
    least: float
    latency: float


class NodeWork(NamedTuple):
    """Holds what one node of P GPUs has to do, with G groups of sequences that share heads.

    linear: float64 [P], seconds of linear modules. local: float64 [2, P], seconds of attention of sequences that are
    whole on a GPU, by direction. shards: SHARD_WORK [2], by direction. group_tokens: float64 [G]. group_work: float64
    [2, G], seconds of all heads, by direction. heads: int64 [G, P + 1], bounds of every GPU's heads. busiest: the share
    of the homes that the GPU with most of them has, in even shares.
    """

    linear: Floats
    local: Floats
    shards: Table
    group_tokens: Floats
    group_work: Floats
    heads: Ints
    busiest: float
