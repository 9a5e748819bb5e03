"""Permutations of a pack's tokens in which every rank has as many, and about as much attention.

PyTorch's own orders where they give every rank as many (zbench.systems.torch_cp.balancers), and tiles of several sizes
dealt largest area first, each to the rank with the least area that has room (Graham 1969, with counts).
"""

from collections.abc import Iterator

import numpy as np

from zbench.contracts.schedule import ContractError, TokenPermutation
from zbench.cost.cost import Cost
from zbench.describe.units import with_noun
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_groups import gathered
from zbench.systems.torch_cp.balancers import BALANCERS, Pieces, pieces

TILES = (128, 512, 2048)  # tokens of the tiles that are dealt; the mask's have 128


def check_even(lengths: Ints, ranks: int) -> None:
    """Returns if every rank can own as many tokens.

    Raises:
        ContractError: the ranks do not divide the tokens.
    """
    if (tokens := int(lengths.sum())) % ranks:
        raise ContractError(
            f"the pack has {tokens:,} tokens, which {with_noun(ranks, 'rank')} cannot share evenly; pad it to a "
            "multiple"
        )


def permutations(lengths: Ints, ranks: int, cost: Cost) -> Iterator[TokenPermutation]:
    """Yields candidates; the ranks divide the tokens."""
    begin = np.cumsum(lengths) - lengths
    for balancer in BALANCERS:
        seq, start, stop, owner = pieces(balancer, lengths, ranks, TILES[0])
        order = _runs(begin[seq] + start, begin[seq] + stop)
        counts = np.bincount(np.repeat(owner, stop - start), minlength=ranks)
        if (counts == counts[0]).all() and (np.diff(owner) >= 0).all():
            yield TokenPermutation(tuple(lengths.tolist()), ranks, order)
    for tile in TILES:
        yield dealt_tiles(lengths, ranks, tile, cost)


def dealt_tiles(lengths: Ints, ranks: int, tile: int, cost: Cost) -> TokenPermutation:
    """Deals tiles of the pack: every rank gets as many of `tile` tokens and one of what its share leaves."""
    tokens, share = int(lengths.sum()), int(lengths.sum()) // ranks
    whole = (share - 1) // tile  # of a rank; its last tile has the rest, at least a token
    sizes = np.concatenate([np.full(whole * ranks, tile), np.full(ranks, share - whole * tile)])
    stop = np.cumsum(sizes)
    start = stop - sizes
    area = _keys_seen(lengths, cost)
    sums = np.concatenate([[0], np.cumsum(area)])
    work = sums[stop] - sums[start]
    room = np.stack([np.full(ranks, whole), np.ones(ranks, np.int64)])
    load, owner = np.zeros(ranks), np.empty(len(sizes), np.int64)
    for at in np.argsort(-work, kind="stable").tolist():
        kind = int(at >= whole * ranks)
        rank = int(np.argmin(np.where(room[kind] > 0, load, np.inf)))
        owner[at] = rank
        room[kind, rank] -= 1
        load[rank] += work[at]
    by_rank = np.argsort(owner, kind="stable")
    order = _runs(start[by_rank], stop[by_rank])
    assert len(order) == tokens
    return TokenPermutation(tuple(lengths.tolist()), ranks, order)


def plan_of_permutation(schedule: TokenPermutation, sequences: Ints, cost: Cost, backward: Mode = "regather") -> Plan:
    """Makes the plan of a pack whose ranks gather all keys. sequences: int64, which of the batch's each document is;
    documents behind the last of them are padding, which nobody computes. backward: what becomes of gathered kv."""
    lengths = np.array(schedule.lengths[: len(sequences)], np.int64)
    builder = Builder(lengths, schedule.ranks, cost.model.num_heads, cost.model.mask, sequences=sequences)
    owned, ranks = owned_pieces(schedule, len(sequences)), np.arange(schedule.ranks)
    gathered(builder, np.arange(len(sequences)), owned, ranks, cost.cluster.gpus_per_node)
    return reverse(builder.build(), backward)


def owned_pieces(schedule: TokenPermutation, num_documents: int) -> Pieces:
    """Returns what every rank owns of the first documents of the pack; those behind them are padding."""
    ends = np.cumsum(schedule.lengths)
    share = len(schedule.order) // schedule.ranks
    owned = np.sort(schedule.order.reshape(schedule.ranks, share), axis=1).reshape(-1)
    document = np.searchsorted(ends, owned, side="right")
    rank = np.repeat(np.arange(schedule.ranks), share)
    cut = np.flatnonzero((np.diff(owned) != 1) | (np.diff(document) != 0) | (np.diff(rank) != 0)) + 1
    first, last = np.concatenate([[0], cut]), np.concatenate([cut, [len(owned)]]) - 1
    kept = document[first] < num_documents
    first, last = first[kept], last[kept]
    seq = document[first]
    begin = (ends - schedule.lengths)[seq]
    return seq, owned[first] - begin, owned[last] + 1 - begin, rank[first]


def padded(lengths: Ints, ranks: int) -> Ints:
    """Returns the documents of a pack, with one of padding behind them where the ranks do not divide its tokens."""
    missing = -int(lengths.sum()) % ranks
    return np.append(lengths, missing) if missing else lengths


def _keys_seen(lengths: Ints, cost: Cost) -> Ints:
    """Returns int64 [num_tokens]: how many keys every token of the pack sees."""
    mask = cost.model.mask
    if not mask.causal:
        return np.asarray(np.repeat(lengths, lengths), np.int64)
    at = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(mask.reach(at) + 1, np.int64)


def _runs(start: Ints, stop: Ints) -> Ints:
    """Returns the positions of runs [start, stop), one run after another."""
    size = stop - start
    found: Ints = np.arange(int(size.sum())) + np.repeat(start - (np.cumsum(size) - size), size)
    return found
