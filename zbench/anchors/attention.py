"""Group b: one layer's attention on 8 and 16 H100, by method and mask. Pure: no torch.

The benchmark (MagiAttention's) ran every method on FlashAttention-3 behind one wrapper, which copies
real tokens out of padded buffers and back: `Cost(staged=True)`. Its time is that of the slowest rank;
its rate counts the visible pairs only, 4 FLOPs a pair, head and head dimension, 2.5 times that backward.
Its USP and LoongTrain exchange heads inside a node and pass kv between nodes; its inner ring is the whole ring.
"""

from collections import defaultdict

import numpy as np

from zbench.anchors import hybrid
from zbench.anchors.anchor import Anchor, GetCluster, Row, published
from zbench.anchors.packs import packs
from zbench.build import Builder
from zbench.clock import Program, run
from zbench.cluster import Cluster
from zbench.cost import BACKWARD_FLOPS, FORWARD_FLOPS, Cost
from zbench.layers import finished
from zbench.legs import LANES, link_ids
from zbench.model import Model
from zbench.patterns import all_gather, ring, sequence_zigzag, ulysses_ring
from zbench.plan import ATTEND, Ints, Plan
from zbench.rewrite import reverse
from zbench.simulate import programs

NUM_PACKS, SEED = 20, 1  # the benchmark's own number of packs; the seed is this project's
MODEL = Model(name="attention", num_layers=1, hidden=8192, num_heads=64, num_kv_heads=8, head_dim=128,
              ffn_hidden=1, vocab=1)  # fmt: skip


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    by_batches: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in published("attention"):
        by_batches[row["mask"], int(row["num_gpus"]), int(row["tokens_per_gpu"])].append(row)
    found: dict[int, float] = {}
    for (mask, num_gpus, tokens), rows in by_batches.items():
        cluster = get_cluster("h100_4x8", num_nodes=num_gpus // 8)
        batches = batches_of(mask, num_gpus * tokens)
        for method in dict.fromkeys(row["method"] for row in rows):
            forward, backward = rates(method, batches, "causal" in mask, cluster)
            for row in rows:
                if row["method"] == method:
                    found[id(row)] = forward if row["pass"] == "fwd" else backward
    return [_anchor(row, found[id(row)]) for rows in by_batches.values() for row in rows]


def _anchor(row: Row, flops: float) -> Anchor:
    family = f"{row['mask']} {row['pass']} {row['num_gpus']} GPUs"
    case = f"{family} {row['method']}, TFLOP/s/GPU"
    return Anchor("attention", case, float(row["tflops_per_gpu"]), flops / 1e12, row["source"], family)


def batches_of(mask: str, total: int) -> list[Ints]:
    return packs(total, NUM_PACKS, SEED) if mask.startswith("varlen") else [np.array([total], np.int64)]


def rates(method: str, batches: list[Ints], causal: bool, cluster: Cluster) -> tuple[float, float]:
    """Mean FLOP/s per GPU over batches of (forward, backward)."""
    cost = Cost(cluster, MODEL, staged=True)
    done = np.array([_rates(method, lengths, causal, cost) for lengths in batches])
    return float(done[:, 0].mean()), float(done[:, 1].mean())


def plan_of(method: str, lengths: Ints, causal: bool, cluster: Cluster) -> Plan:
    """The plan that the benchmark's method `method` follows, on all ranks of `cluster`."""
    num_ranks, seqs = cluster.num_ranks, np.arange(len(lengths), dtype=np.int64)
    group, ranks = np.zeros_like(seqs), np.arange(num_ranks, dtype=np.int64)
    builder = Builder(lengths, num_ranks, MODEL.num_heads, causal)
    if method == "ulysses":
        ulysses_ring(builder, seqs, group, ranks.reshape(1, 1, -1))
        return reverse(builder.build(), "keep")
    if method == "ring_p2p":
        ring(builder, seqs, group, ranks.reshape(1, -1))
        return reverse(builder.build(), "carry")
    if method in ("usp", "loongtrain"):  # with a ring of one or two rows the benchmark's double ring is a single one
        ulysses_ring(builder, seqs, group, ranks.reshape(1, -1, cluster.gpus_per_node))
        return reverse(builder.build(), "carry")
    assert method == "ring_allgather", method
    return reverse(_gather_halves(builder, cluster), "regather")


def _gather_halves(builder: Builder, cluster: Cluster) -> Plan:
    """All-gather of the whole kv, then one attend for each half of a rank's zigzag q, as Transformer Engine does.

    The pattern has one block and one attend a rank. Here each rank stands in its grid twice, with one
    zigzag half each; what a rank would send to itself, or get twice, is left out.
    """
    num_ranks = cluster.num_ranks
    seq, start, stop, owner = sequence_zigzag(builder.lengths, num_ranks)
    follows = np.concatenate([[False], seq[1:] == seq[:-1]])
    second = follows & (owner <= np.concatenate([[0], owner[:-1]]))  # owners go up, then down, in every sequence
    grid = np.repeat(np.arange(num_ranks, dtype=np.int64), 2).reshape(cluster.num_nodes, -1)
    all_gather(builder, seq, start, stop, 2 * owner + second, grid)
    plan = builder.build()
    ops = plan.forward
    key = (ops.blocks.astype(np.int64) * num_ranks + ops.dst) * 2 + ops.kind
    first = np.zeros(len(ops), bool)
    first[np.unique(key, return_index=True)[1]] = True
    return plan.with_(forward=ops.take((ops.kind == ATTEND) | (first & (ops.src != ops.dst))))


def _rates(method: str, lengths: Ints, causal: bool, cost: Cost) -> tuple[float, float]:
    sizes = lengths.astype(float)
    pairs = float((sizes * (sizes + 1) / 2 if causal else sizes**2).sum())
    work = pairs * MODEL.num_heads * MODEL.head_dim / cost.cluster.num_ranks
    if method == "hybrid_dcp":
        parts = [hybrid.mixed_programs(plan, cost) for plan in hybrid.plans(lengths, causal, cost.cluster, MODEL)]
    else:
        parts = [programs(plan_of(method, lengths, causal, cost.cluster), cost)]
    forward, backward = (sum(slowest_rank_seconds(one, cost) for one in column) for column in zip(*parts, strict=True))
    return FORWARD_FLOPS * work / forward, BACKWARD_FLOPS * work / backward


def slowest_rank_seconds(program: Program, cost: Cost) -> float:
    """When the last rank has everything it attended and was sent, all ranks starting together."""
    ready = np.zeros(cost.cluster.num_ranks)
    timeline = run(program, ready, np.zeros(len(ready) * LANES), np.zeros(link_ids(cost.cluster)[0]))
    return float(finished(program, timeline, ready).max())
