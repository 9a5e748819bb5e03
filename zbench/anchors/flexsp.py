"""Predicts FlexSP's all-to-all bandwidths and compute coefficients on 64 A100. Pure: no torch.

Bandwidth is the bytes of a tensor on one GPU over the time of its all-to-all (nothing subtracted for
the part that stays), all groups of a degree at work at once. The coefficients are those of seconds
a s^2 + b s + c of a whole model, forward and backward, on one GPU.
"""

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, is_known, published_rows
from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model, Q
from zbench.plans.area import TILE, Work
from zbench.plans.build import Builder
from zbench.plans.dataflow import Edges, edges
from zbench.plans.patterns import ulysses_ring
from zbench.simulator.attention import prepare
from zbench.simulator.clock import Free, run_hops

TOKENS = 8192  # of one GPU: 64 MiB a tensor, large enough for its size not to matter
# FlexSP's GPT-7B (table 3). Its GELU feed-forward of 4 x hidden has the matmul parameters and the
# elementwise traffic of a SwiGLU one of 8/3 x hidden: two matrices for three, two passes of 4 for three of 8/3.
GPT_7B = Model(
    name="gpt_7b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ffn_hidden=10923,
    vocab=50257,
    tied_embeddings=True,
    sharding="zero3",
)
# A tensor as wide with a head for each of 64 ranks, for its messages only.
WIDE = Model(name="wide", num_layers=1, hidden=4096, num_heads=64, num_kv_heads=64, head_dim=64, ffn_hidden=1, vocab=1)


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    """Returns FlexSP's bandwidths and coefficients beside their predictions."""
    cluster = get_cluster("a100_8x8")
    out = []
    for row in published_rows("all_to_all"):
        predicted = bandwidth(cluster, int(row["degree"])) / 1e9
        case, measured = f"all-to-all of {row['degree']} GPUs, GB/s", float(row["gigabytes_per_second"])
        out.append(Anchor("flexsp", case, measured, predicted, row["source"], is_known(row), "all-to-all"))
    found = dict(zip(("alpha1", "alpha2"), coefficients(Cost(cluster, GPT_7B)), strict=True))
    for row in published_rows("compute"):
        case, predicted = f"GPT-7B {row['coefficient']}, {row['unit']}", found[row["coefficient"]] * 1e3
        out.append(Anchor("flexsp", case, float(row["value"]), predicted, row["source"], is_known(row)))
    return out


def bandwidth(cluster: Cluster, degree: int) -> float:
    """Returns the bytes/s per GPU of an all-to-all of q in every group of `degree` ranks at once: transfers and a
    repack."""
    cost, num_groups = Cost(cluster, WIDE), cluster.num_ranks // degree
    builder = Builder(np.full(num_groups, TOKENS * degree), cluster.num_ranks, WIDE.num_heads)
    groups = np.arange(num_groups, dtype=np.int64)
    ulysses_ring(builder, groups, groups, np.arange(cluster.num_ranks, dtype=np.int64).reshape(-1, 1, degree))
    plan = builder.build()
    ops = plan.forward.take(plan.forward.tensor == Q)
    found = edges(plan, ops, False)
    assert isinstance(found, Edges)
    program = prepare(plan, ops, found, cost, False)
    timeline = run_hops(program, np.zeros(cluster.num_ranks), Free.zero(cluster))
    size = np.array([TOKENS * WIDE.num_heads * WIDE.head_dim * WIDE.element_bytes])
    return float(size[0] / (timeline.done.max() + cost.repack_seconds(size)[0]))


def coefficients(cost: Cost) -> tuple[float, float]:
    """Returns (seconds a token^2, seconds a token) of a parabola through lengths of whole tiles, causal, on one GPU."""
    lengths = TILE * np.array([64, 256, 1024, 1536], np.int64)  # 8K to the 192K of FlexSP's runs
    a, b, _ = np.polyfit(lengths, _step_seconds(cost, lengths), 2)
    return float(a), float(b)


def _step_seconds(cost: Cost, lengths: Ints) -> Floats:
    """Returns the seconds, forward and backward, of the whole model for one sequence of each length (a multiple of
    TILE)."""
    model, work, one = cost.model, Work.whole(lengths), np.ones_like(lengths)
    heads, kv_heads = model.num_heads * one, model.num_kv_heads * one
    attention = cost.kernel_seconds(work, heads, kv_heads, False) + cost.kernel_seconds(work, heads, kv_heads, True)
    return model.num_layers * (attention + 3 * cost.linear_seconds(lengths)) + cost.head_seconds(lengths)
