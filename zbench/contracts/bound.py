"""The seconds that no schedule of a contract can beat under the same cost model: what a framework's engine costs.

Above zbench.cost.bound, which holds for any plan, a contract adds what its engine cannot do without. What is used of
the engine and of the clock (zbench.simulator) is told where it is used; memory and collectives are left out, as in the
bound of any plan. Pure.

Rings. A sample of L tokens on a ring of G ranks has two costs that add up over the samples of a pack:

- *work*, for each of the G ranks on average: L / G tokens of linear modules and of the head, at the rate of the whole
  batch on one rank, which no fewer tokens reach; and 1 / G of its attention, which cutting makes no less;
- *transfers*, over every link between neighbours: keys and values of all tokens but those that the receiver owns, at
  most 2 ceil(L / 2G), once in a forward, and in a backward their gradients (`keep`), and keys and values again, all
  (`regather`) or all but what the receiver had last in the forward (`carry`). From 2G tokens on every rank has queries
  of the sample that see keys of all ranks, so nothing of it can be left out. A ring
  wider than a node has two links that are NICs. What a link carries takes its bytes at the link's whole rate, at least.

A group takes no less than the sum of either, and so no less than any mean of the two sums, weighed w and 1 - w. Ranks
meet at the end of every forward and backward with ZeRO-3, so that all groups of a micro-batch have the same seconds,
and those of G ranks take G times that of W ranks' time: the step takes no less than the sum over samples of the least,
over sizes, of G times the mean, over W. That holds for every w, so the best of several is taken. Nor does it take less
than a single sample, at the size at which the longer of its costs is least. Without ZeRO-3 ranks do not meet, and a
rank may work on while its last messages are sent: there w is 1. A size counts where a micro-batch can have such a
group: where the other ranks can have groups with the samples that are left, and the sample keeps to max_tokens.

Whole samples. A sample takes no less than its work on its data-parallel rank, and of the k + 1 longest on k ranks two
are on one.

Permutations. A document takes no less than its work on the G ranks of its group. Of a pack a rank owns 1 / G, and keys
and values of the rest come through its links, those that its node does not own through the node's NICs; in a backward
their gradients go the other way. Summed over packs that is as much for all ranks as if every token came to G - 1 of
them, and the rank that has most has the mean at least.
"""

from dataclasses import dataclass

import numpy as np

from zbench.contracts.contract import AlignedPow2Rings, Contract, EqualTokenPermutation, RingContract, WholeOnDP
from zbench.cost.bound import at_best, bound_seconds, least_seconds
from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags, Floats
from zbench.describe.batch import Batch
from zbench.describe.links import NIC
from zbench.describe.model import KV
from zbench.describe.units import with_noun
from zbench.passes.reverse import Mode
from zbench.plans.plan import Ints

WEIGHTS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0)  # of work against transfers; any is right, these are tried


def contract_bound_seconds(batch: Batch, contract: Contract, cost: Cost, backward: Mode = "carry") -> float:
    """Returns the seconds of a step that no schedule of `batch` inside the contract can beat.

    cost: of the cluster that has the contract's ranks, or, of whole samples and permutations, a multiple of them: then
    a rank of whole samples is several GPUs, and documents go whole to groups of a permutation's ranks. backward: how
    the engine's rings have keys and values again.

    Raises:
        ValueError: the contract's ranks are not the cluster's.
    """
    every = bound_seconds(batch, cost)
    if not isinstance(contract, EqualTokenPermutation) or cost.cluster.num_ranks % contract.ranks:
        check_ranks(contract, cost)
    if isinstance(contract, WholeOnDP):
        own = _whole_seconds(batch.lengths, contract, cost)
    elif isinstance(contract, EqualTokenPermutation):
        groups = WholeOnDP(cost.cluster.num_ranks // contract.ranks)
        gathered = _gathered_seconds(int(batch.lengths.sum()), contract.ranks, cost)
        own = max(_whole_seconds(batch.lengths, groups, cost), gathered)
    else:
        own = _ring_seconds(batch.lengths, contract, cost, backward)
    return max(every, own + cost.optimizer_seconds())


def check_ranks(contract: Contract, cost: Cost) -> None:
    """Returns if the cluster has the contract's ranks, or, of whole samples, as many for each.

    Raises:
        ValueError: it has others.
    """
    ranks, name = cost.cluster.num_ranks, cost.cluster.name
    if isinstance(contract, WholeOnDP):
        if ranks % contract.ranks:
            raise ValueError(
                f"the contract is for {with_noun(contract.ranks, 'data-parallel rank')}, which do not divide the "
                f"{ranks} of {name}"
            )
    elif ranks != contract.ranks:
        raise ValueError(f"the contract is for {with_noun(contract.ranks, 'rank')}; the cluster {name} has {ranks}")


@dataclass(frozen=True, slots=True)
class _RingCosts:
    """Seconds of a step that samples cost a rank and a link, float64 [samples, sizes], and which can be, bool."""

    work: Floats
    transfers: Floats
    allowed: Flags


def _ring_seconds(lengths: Ints, contract: RingContract, cost: Cost, backward: Mode) -> float:
    sizes = ring_sizes(contract)
    costs = _RingCosts(
        least_work_seconds(lengths, cost)[:, None] / sizes,
        _transfer_seconds(lengths, sizes, cost, backward),
        _allowed(lengths, sizes, contract),
    )
    if not costs.allowed.any(axis=1).all():
        return 0.0  # no schedule of the contract has such a sample
    longer = np.where(costs.allowed, np.maximum(costs.work, costs.transfers), np.inf)
    alone = float(longer.min(axis=1).max())
    area = 0.0
    for weight in WEIGHTS:
        mean = weight * costs.work + (1 - weight) * costs.transfers
        for inside in (mean, costs.work):  # sizes whose work always hides transfers weigh it alone
            each = np.where(sizes > cost.cluster.gpus_per_node, mean, inside) * sizes
            area = max(area, float(np.where(costs.allowed, each, np.inf).min(axis=1).sum()) / contract.ranks)
    return max(alone, area)


def ring_sizes(contract: RingContract) -> Ints:
    """Lists the sizes that groups of a contract may have, ascending, int64."""
    sizes = np.arange(1, contract.ranks + 1, dtype=np.int64)
    if isinstance(contract, AlignedPow2Rings):
        sizes = sizes[(sizes & (sizes - 1) == 0) | (sizes == contract.ranks)]
    return sizes[sizes >= contract.least]


def least_work_seconds(lengths: Ints, cost: Cost) -> Floats:
    """Returns float64 [n]: the seconds of a step that samples cost all their ranks together, at least: linear modules,
    head and attention of all layers and passes."""
    model, tokens = cost.model, np.array([float(lengths.sum())])
    again = 1 if model.recompute == "full" else 0
    best = at_best(cost)  # a curve of matmuls as it is: with as many tokens it is at its best
    layer = (3 + again) * best.linear_seconds(tokens) + best.again_seconds(tokens)
    token = cost.layers * float(layer[0]) + float(best.head_seconds(tokens)[0])
    attention = (1 + again) * least_seconds(lengths, cost, False) + least_seconds(lengths, cost, True)
    return np.asarray(lengths * (token / tokens[0]) + cost.layers * attention, np.float64)


def _transfer_seconds(lengths: Ints, sizes: Ints, cost: Cost, backward: Mode) -> Floats:
    """Returns float64 [n, sizes]: the seconds of a step that samples keep a link of their ring busy; 0 where the clock
    or the mask does not make ranks wait for it."""
    model = cost.model
    if model.sharding != "zero3" or cost.pp > 1 or model.mask.window:
        return np.zeros((len(lengths), len(sizes)))
    times = 2 + (1 if model.recompute == "full" else 0)  # keys and values forward, their gradients backward
    own = 2 * -(-lengths[:, None] // (2 * sizes))  # of a rank, at most
    sent = np.where((lengths[:, None] >= 2 * sizes) & (sizes > 1), lengths[:, None] - own, 0)
    # What a rank received last it still has where they travel back; with "keep" all of it.
    again = {"keep": 0 * sent, "carry": np.maximum(sent - own, 0), "regather": sent}[backward]
    size = cost.layers * (times * sent + again) * model.message_bytes_per_token(KV, 0, model.num_heads)
    return cost.transfer_seconds(size, np.broadcast_to(cost.cluster.link_among(sizes), size.shape))


def _allowed(lengths: Ints, sizes: Ints, contract: RingContract) -> Flags:
    """Returns bool [n, sizes]: which samples can be in groups of which sizes."""
    rest = contract.ranks - sizes
    if isinstance(contract, AlignedPow2Rings):
        others = np.array([int(one).bit_count() for one in rest])  # fewest powers of two that add up to it
    else:
        others = np.minimum(rest, 1)
    allowed = np.broadcast_to(others < len(lengths), (len(lengths), len(sizes)))
    return allowed if contract.max_tokens is None else allowed & (lengths[:, None] <= sizes * contract.max_tokens)


def _whole_seconds(lengths: Ints, contract: WholeOnDP, cost: Cost) -> float:
    work = np.sort(least_work_seconds(lengths, cost))[::-1] * contract.ranks / cost.cluster.num_ranks
    two = work[contract.ranks - 1] + work[contract.ranks] if len(work) > contract.ranks else 0.0
    return float(max(work[0], two))


def _gathered_seconds(tokens: int, degree: int, cost: Cost) -> float:
    """Returns the seconds of a step in which groups of `degree` ranks gather the keys of packs of so many tokens in
    all; 0 where the clock or the mask does not make ranks wait for it."""
    cluster, model = cost.cluster, cost.model
    if model.mask.window or cost.pp > 1 or degree == 1:
        return 0.0
    per_token, per_node = model.message_bytes_per_token(KV, 0, model.num_heads), cluster.gpus_per_node
    links = [link.rate for number, link in enumerate(cluster.links) if number != cluster.host]
    links = links if per_node % degree else links[:NIC] + links[NIC + 1 :]
    seconds = tokens * (degree - 1) / cluster.num_ranks * per_token / sum(links)
    if degree % per_node == 0:  # groups of whole nodes
        outside = tokens * (degree // per_node - 1) / cluster.num_nodes
        seconds = max(seconds, outside * per_token / (cluster.nics_per_node * cluster.links[NIC].rate))
    return 2 * cost.layers * seconds
