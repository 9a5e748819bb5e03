"""Predicts the benchmark of ring-flash-attention: one layer of Llama 3 8B's attention on 8 GPUs. Pure: no torch.

Every GPU has 8,192 tokens. The batch API ran one causal sequence over all; the variable-length API four packs in turn.
zigzag_ring cuts each document in 16 pieces; llama3 cuts the pack in 8 and gathers the keys of 4 kv heads at a time,
here of all 8 at once. Its plain ring (no zigzag) and striped ring have no plan here. Attention is FlashAttention-2's.
The README does not say which A100 (80 GB is assumed) nor how its 8 GPUs were connected (NVSwitch is assumed).
"""

from dataclasses import replace

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, Row, is_known, published_rows
from zbench.anchors.attention import slowest_rank_seconds
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, ring
from zbench.plans.plan import Ints, Plan
from zbench.simulator.attention import programs

LLAMA = Model(
    name="llama3_8b_layer", num_layers=1, hidden=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_hidden=1, vocab=1
)
# Ends of the documents on one GPU's share, as the benchmark's script has them; times the number of GPUs.
ENDS = {"batch": [[8192]], "varlen": [[8192], [256, 7648, 8192], [4096, 8192], [3104, 6304, 7904, 8064, 8192]]}
CLUSTERS = {"a100": ("a100_8x8", "a100_80g"), "h800": ("h800_4x8", "h100_80g_flash2")}


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    """Returns the benchmark's published iterations beside their predictions."""
    return [_anchor(row, get_cluster) for row in published_rows("ring_flash_attention")]


def _anchor(row: Row, get_cluster: GetCluster) -> Anchor:
    preset, device = CLUSTERS[row["gpu"]]
    cost = Cost(replace(get_cluster(preset, num_nodes=1, device=device), nics_per_node=1), LLAMA)
    packs = [np.diff(np.array([0, *ends])) * cost.cluster.num_ranks for ends in ENDS[row["api"]]]
    seconds = np.mean(
        [iteration_seconds(ring_flash_plan(row["method"], pack, cost), cost, row["passes"]) for pack in packs]
    )
    family = f"8 {row['gpu'].upper()}, {row['api']} API, {row['passes']}"
    case = f"{family}, {row['method']}, iterations/s"
    measured = float(row["iterations_per_second"])
    return Anchor("ring_flash", case, measured, 1 / float(seconds), row["source"], is_known(row), family)


def iteration_seconds(plan: Plan, cost: Cost, passes: str) -> float:
    """Returns the seconds of one iteration: of the slowest rank's forward or, where `passes` is not "fwd", of both
    passes."""
    forward, backward = (slowest_rank_seconds(one, cost) for one in programs(plan, cost))
    return forward if passes == "fwd" else forward + backward


def ring_flash_plan(method: str, lengths: Ints, cost: Cost) -> Plan:
    """Returns the plan of one of the benchmark's functions, on all ranks."""
    num_ranks = cost.cluster.num_ranks
    builder = Builder(lengths, num_ranks, cost.model.num_heads)
    ranks = np.arange(num_ranks, dtype=np.int64).reshape(1, -1)
    if method == "zigzag_ring":
        seqs = np.arange(len(lengths), dtype=np.int64)
        ring(builder, seqs, np.zeros_like(seqs), ranks)
        return reverse(builder.build(), "carry")
    assert method == "llama3", method
    all_gather(builder, *_shares(lengths, num_ranks), ranks)
    return reverse(builder.build(), "regather")


def _shares(lengths: Ints, num_ranks: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the pieces (seq, start, stop, owner): the documents one after another, cut in `num_ranks` equal
    shares."""
    ends = np.cumsum(lengths)
    share = int(ends[-1]) // num_ranks
    edges = np.union1d(np.concatenate([[0], ends]), share * np.arange(num_ranks + 1))
    begin, end = edges[:-1], edges[1:]
    seq = np.searchsorted(ends, begin, side="right")
    offset = ends[seq] - lengths[seq]
    return seq, begin - offset, end - offset, begin // share
