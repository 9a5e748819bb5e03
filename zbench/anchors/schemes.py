"""The plans that the methods of MagiAttention's benchmark follow, on any number of GPUs. Pure: no torch.

Read in its source (exps/dist_attn): USP and LoongTrain exchange heads between the GPUs of a node and pass kv between
nodes. LoongTrain's ring is double: it is cut in as many inner rings as the largest divisor of its ranks that leaves
an inner ring no shorter than the outer one, so a ring of one, two or three nodes is a single one, of four 2 x 2.
Hybrid context parallelism has a plan a round: zbench.anchors.hybrid. MagiAttention itself runs as its benchmark_conf.py
of release 1.1.0 says, which the charts were made with: chunks of 2,048 tokens, largest area first, keys in two stages.
"""

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.mask import Mask
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, ring, sequence_zigzag, ulysses_ring
from zbench.plans.plan import ATTEND, Ints, Plan
from zbench.systems.magi_dispatch.planner import MagiDispatch

MODEL = Model(
    name="attention", num_layers=1, hidden=8192, num_heads=64, num_kv_heads=8, head_dim=128, ffn_hidden=1, vocab=1
)
# Whether keys cross to a node once: they do by MagiAttention's own kernels, by an all-to-all they do not.
MAGI = {"magi_a2av": False, "magi_native": True}
MAGI_CHUNK, MAGI_STAGES = 2048, 2


def scheme_plan(method: str, lengths: Ints, causal: bool, cluster: Cluster) -> Plan:
    """Returns the plan of the benchmark's method `method`, on all ranks of `cluster`."""
    num_ranks, seqs = cluster.num_ranks, np.arange(len(lengths), dtype=np.int64)
    group, ranks = np.zeros_like(seqs), np.arange(num_ranks, dtype=np.int64)
    if method in MAGI:
        system = MagiDispatch(
            Cost(cluster, MODEL),
            chunk_tokens=MAGI_CHUNK,
            chunks_per_rank=1,
            overlap_stages=MAGI_STAGES,
            hierarchical=MAGI[method],
        )
        return system.laid(lengths, seqs, group, num_ranks, Mask(causal))
    builder = Builder(lengths, num_ranks, MODEL.num_heads, Mask(causal))
    by_node = ranks.reshape(1, -1, cluster.gpus_per_node)
    if method == "ulysses":
        ulysses_ring(builder, seqs, group, ranks.reshape(1, 1, -1))
        return reverse(builder.build(), "keep")
    if method == "ring_p2p":
        ring(builder, seqs, group, ranks.reshape(1, -1))
        return reverse(builder.build(), "carry")
    if method in ("usp", "loongtrain"):
        inner = inner_ring(cluster.num_nodes) if method == "loongtrain" else None
        ulysses_ring(builder, seqs, group, by_node, inner)
        return reverse(builder.build(), "carry")
    assert method == "ring_allgather", method
    return reverse(_gather_halves(builder, cluster), "regather")


def inner_ring(num_rows: int) -> int:
    """Returns how many ranks an inner ring of LoongTrain's double ring over `num_rows` has."""
    windows = max(count for count in range(1, num_rows + 1) if num_rows % count == 0 and count**2 <= num_rows)
    return num_rows // windows


def unhidden_hops(num_rows: int) -> int:
    """Returns how many messages of dkv, one after another, nothing hides in the backward of the benchmark's LoongTrain.

    dkv goes once round every inner ring, back to where it began, before it goes on to the next window, and compute
    waits for its last hop (loongtrain.py there), and with several windows for the last hop between them. That is the
    benchmark's code and not the method: dkv could travel behind compute, as in Transformer Engine's ring.
    """
    windows = num_rows // inner_ring(num_rows)
    return 0 if num_rows == 1 else windows + (windows > 1)


def _gather_halves(builder: Builder, cluster: Cluster) -> Plan:
    """Returns an all-gather of the whole kv, then one attend for each half of a rank's zigzag q, as Transformer Engine
    does.

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
