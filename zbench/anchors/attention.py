"""Predicts measured rows of one layer's attention on several GPUs, by method and mask. Pure: no torch.

The benchmark (MagiAttention's) ran every method behind one wrapper, with FlashAttention-3 on Hopper and with cuDNN
through Transformer Engine on Blackwell: `Cost(wrapper=...)`, zbench.cost.staging. Its time is that of the slowest rank;
its rate counts the visible pairs only, 4 FLOPs a pair, head and head dimension, 2.5 times that backward.
Its published rows of 8 and 16 H100 are the anchors of group attention; a user's own rows go the same way.
MagiAttention itself does without the wrapper, and has a kernel of its own, whose rates nobody here has: it is predicted
with FlashAttention-3's, or cuDNN's, and its rows are a group apart, magi.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal, get_args

import numpy as np

from zbench.anchors import hybrid
from zbench.anchors.anchor import Anchor, GetCluster, is_known, published_rows
from zbench.anchors.measured import MeasuredRow, measured_row
from zbench.anchors.packs import document_packs
from zbench.anchors.schemes import MAGI, MODEL, scheme_plan, unhidden_hops
from zbench.cost.cost import Cost
from zbench.cost.kernel import BACKWARD_FLOPS, FORWARD_FLOPS
from zbench.cost.staging import FLASH, FUSED, Backend
from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC
from zbench.describe.model import DKV
from zbench.describe.units import with_noun
from zbench.plans.plan import Ints
from zbench.simulator.attention import programs
from zbench.simulator.clock import Free, run_hops
from zbench.simulator.estimate.layers import finished
from zbench.simulator.hop_graph import HopGraph

NUM_PACKS, SEED = 20, 1  # the benchmark's own number of packs; the seed is this project's
# By hw: the preset of conf/cluster whose nodes and links a row's GPUs have, and the wrapper's backend there.
CLUSTERS: dict[str, tuple[str, Backend]] = {"h100": ("h100_4x8", FLASH), "b200": ("b200_4x8", FUSED)}
MASKS = ("full", "causal", "varlen_full", "varlen_causal")
Group = Literal["attention", "magi"]
GROUPS: tuple[Group, ...] = get_args(Group)
METHODS: dict[Group, tuple[str, ...]] = {
    "attention": ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain", "hybrid_dcp"),
    "magi": tuple(MAGI),
}


def anchors(get_cluster: GetCluster, group: Group = "attention") -> list[Anchor]:
    """Returns the published rows of a group that can be predicted, each beside its prediction."""
    sources = published_rows(group)
    rows = [measured_row(source) for source in sources]
    return [
        compared(row, rate, source["source"], group, is_known(source))
        for row, rate, source in zip(rows, predict(rows, get_cluster, group=group), sources, strict=True)
        if rate is not None
    ]


def compared(row: MeasuredRow, rate: float, source: str, group: str, known: bool) -> Anchor:
    """Makes an anchor of a row and its predicted FLOP/s; the rows of one configuration are one family."""
    case = f"{row.configuration} {row.method}, TFLOP/s/GPU"
    plain = row.plain()
    family, method = plain.configuration, plain.method
    return Anchor(group, case, row.tflops_per_gpu, rate / 1e12, source, known, family, method)


def are_known(rows: Sequence[MeasuredRow]) -> list[bool]:
    """Returns which rows are of a configuration and method that constants were chosen with, whoever measured them
    again."""
    chosen = [measured_row(row) for group in GROUPS for row in published_rows(group) if is_known(row)]
    known = {(row.configuration, row.method) for row in chosen}
    return [(row.configuration, row.method) in known for row in map(MeasuredRow.plain, rows)]


def why_no_prediction(row: MeasuredRow, group: Group) -> str:
    """Returns why a row has no prediction in a group; "" where it has one."""
    given, row = row, row.plain()
    if row.hw not in CLUSTERS:
        return f"hw {given.hw}: no cluster is described with it; there are {', '.join(CLUSTERS)}"
    if row.mask not in MASKS:
        return f"mask {given.mask}: it has no plan; there are {', '.join(MASKS)}"
    if row.method not in METHODS[group]:
        of = next((other for other in GROUPS if row.method in METHODS[other]), None)
        plans = f"it has no plan; there are {', '.join(METHODS[group])}"
        return f"method {given.method}: " + (f"it is of group {of}, --group {of}" if of else plans)
    if row.method == "ulysses" and row.cp_size > MODEL.num_heads:
        return f"method ulysses on {row.cp_size} GPUs: {MODEL.num_heads} heads are exchanged by as many GPUs at most"
    return ""


def predict(
    rows: Sequence[MeasuredRow],
    get_cluster: GetCluster,
    tell: Callable[[int], None] = lambda done: None,
    group: Group = "attention",
) -> list[float | None]:
    """Predicts the FLOP/s a GPU of every row, None where `why_no_prediction` says why.

    tell is told how many of `num_plays` are done.

    Rows of one pack share its lengths, and the two passes of a method its plans.
    """
    presets = cache(get_cluster)
    found: list[float | None] = [None] * len(rows)
    done = 0
    for (hw, mask, num_gpus, tokens), by_method in _by_pack(rows, group).items():
        preset, backend = CLUSTERS[hw]
        cost = Cost(cluster_of_gpus(presets(preset), num_gpus), MODEL, wrapper=backend)
        batches = batches_of(mask, num_gpus * tokens)
        for method, numbers in by_method.items():
            played = []
            for lengths in batches:
                played.append(rates(method, lengths, "causal" in mask, cost))
                done += 1
                tell(done)
            forward, backward = np.mean(played, axis=0).tolist()
            for at in numbers:
                found[at] = forward if rows[at].plain().pass_ == "fwd" else backward
    return found


def num_plays(rows: Sequence[MeasuredRow], group: Group = "attention") -> int:
    """Returns how many packs `predict` plays, each method's once for both passes."""
    return sum(len(methods) * _num_batches(mask) for (_, mask, _, _), methods in _by_pack(rows, group).items())


def _by_pack(rows: Sequence[MeasuredRow], group: Group) -> dict[tuple[str, str, int, int], dict[str, list[int]]]:
    """Returns the numbers of the rows with a prediction, by what their packs depend on and by method."""
    found: dict[tuple[str, str, int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, row in enumerate(map(MeasuredRow.plain, rows)):
        if not why_no_prediction(row, group):
            found[row.hw, row.mask, row.cp_size, row.seqlen_per_rank][row.method].append(at)
    return found


def cluster_of_gpus(preset: Cluster, num_gpus: int) -> Cluster:
    """Returns `num_gpus` GPUs in equal nodes as large as the preset's, or smaller where those do not divide them.

    Every GPU keeps the preset's share of a NIC, as far as a node has a whole number of them.
    """
    per_node = max(size for size in range(1, preset.gpus_per_node + 1) if num_gpus % size == 0)
    nics = max(1, preset.nics_per_node * per_node // preset.gpus_per_node)
    return replace(preset, num_nodes=num_gpus // per_node, gpus_per_node=per_node, nics_per_node=nics)


def layout_lines(rows: Sequence[MeasuredRow], get_cluster: GetCluster, group: Group) -> list[str]:
    """Returns the nodes that the rows with a prediction are played on, a line for every number of GPUs."""
    sizes = sorted({(hw, num_gpus) for hw, _, num_gpus, _ in _by_pack(rows, group)})
    found = []
    for hw, num_gpus in sizes:
        on = cluster_of_gpus(get_cluster(CLUSTERS[hw][0]), num_gpus)
        nodes = f"{with_noun(on.num_nodes, 'node')} of {with_noun(on.gpus_per_node, 'GPU')}"
        found.append(f"{hw}, {with_noun(num_gpus, 'GPU')}: {nodes} and {with_noun(on.nics_per_node, 'NIC')}")
    return found


def batches_of(mask: str, total: int) -> list[Ints]:
    """Returns the packs of `total` tokens that a mask is measured on, or one sequence of them."""
    return (
        document_packs(total, _num_batches(mask), SEED) if mask.startswith("varlen") else [np.array([total], np.int64)]
    )


def _num_batches(mask: str) -> int:
    return NUM_PACKS if mask.startswith("varlen") else 1


def rates(method: str, lengths: Ints, causal: bool, cost: Cost) -> tuple[float, float]:
    """Returns the FLOP/s per GPU over one pack, of (forward, backward)."""
    sizes = lengths.astype(float)
    pairs = float((sizes * (sizes + 1) / 2 if causal else sizes**2).sum())
    work = pairs * MODEL.num_heads * MODEL.head_dim / cost.cluster.num_ranks
    if method in MAGI:
        cost = replace(cost, wrapper="")
    if method == "hybrid_dcp":
        parts = [hybrid.mixed_programs(plan, cost) for plan in hybrid.plans(lengths, causal, cost.cluster, MODEL)]
    else:
        parts = [programs(scheme_plan(method, lengths, causal, cost.cluster), cost)]
    forward, backward = (sum(slowest_rank_seconds(one, cost) for one in column) for column in zip(*parts, strict=True))
    if method == "loongtrain":
        backward += unhidden_seconds(lengths, cost)
    return FORWARD_FLOPS * work / forward, BACKWARD_FLOPS * work / backward


def unhidden_seconds(lengths: Ints, cost: Cost) -> float:
    """Returns the seconds that the benchmark's LoongTrain waits for dkv between nodes, each GPU having a share of a
    node's heads."""
    cluster = cost.cluster
    per_token = MODEL.message_bytes_per_token(DKV, 0, -(-MODEL.num_heads // cluster.gpus_per_node))
    size = np.array([lengths.sum() / cluster.num_nodes * per_token])
    hop = cost.message_seconds(size, NIC) + cost.latency_seconds(NIC)
    return unhidden_hops(cluster.num_nodes) * float(hop[0])


def slowest_rank_seconds(program: HopGraph, cost: Cost) -> float:
    """Returns when the last rank has everything it attended and was sent, all ranks starting together."""
    ready = np.zeros(cost.cluster.num_ranks)
    timeline = run_hops(program, ready, Free.zero(cost.cluster))
    return float(finished(program, timeline, ready).max())
