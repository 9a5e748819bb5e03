"""Group c: whole training steps of dense models, as Megatron-LM and torchtitan published them. Pure: no torch.

Each step goes through `Simulated` with every sequence on one rank: data parallelism only, as in both.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, Row, published
from zbench.batch import Batch
from zbench.build import Builder
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.model import Model
from zbench.patterns import local
from zbench.plan import Ints, Plan
from zbench.rewrite import reverse
from zbench.simulate import Simulated

# Megatron's table names 7.1B parameters, a vocabulary of 131,072 (not tied) and sequences of 4,096; 30 layers of
# 4,096 are what makes 7.11B. A GELU feed-forward of 4 x hidden counts as a SwiGLU one of 8/3 (see flexsp.GPT_7B).
MEGATRON = Model(name="megatron_7b", num_layers=30, hidden=4096, num_heads=32, num_kv_heads=32, head_dim=128,
                 ffn_hidden=10923, vocab=131072, sharding="zero1")  # fmt: skip
LLAMA = Model(name="llama3_8b", num_layers=32, hidden=4096, num_heads=32, num_kv_heads=8, head_dim=128,
              ffn_hidden=14336, vocab=128256, sharding="zero3")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """A published run. device: as in conf/cluster/device. sequences: of one GPU, each `length` tokens.

    rerun: share of the layers' matmuls that the backward runs again.
    """

    model: Model
    device: str
    length: int
    sequences: int
    rerun: float


SETUPS = {
    # Attention by cuDNN, as in Transformer Engine at the time; how many sequences a GPU had is not published: a guess.
    "megatron": Setup(MEGATRON, "h100_80g_cudnn", 4096, 4, 0.0),
    # Local batch of 2 (the page), 8,192 tokens (its configuration of the model), selective checkpointing: every
    # second matmul and all elementwise work run again.
    "torchtitan": Setup(LLAMA, "h100_96g_500w", 8192, 2, 0.5),
}


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    return [_anchor(row, get_cluster) for row in published("training")]


def _anchor(row: Row, get_cluster: GetCluster) -> Anchor:
    setup, num_gpus = SETUPS[row["framework"]], int(row["num_gpus"])
    cluster = get_cluster("h100_4x8", num_nodes=num_gpus // 8, device=setup.device)
    kernels: Literal["fused", "eager"] = "eager" if row["kernels"] == "eager" else "fused"
    model = replace(setup.model, kernels=kernels)
    tokens_per_second = setup.length * setup.sequences / step_seconds(replace(setup, model=model), cluster)
    flops = tokens_per_second * megatron_flops(model, setup.length) / 1e12
    predicted = flops if row["unit"] == "TFLOP/s/GPU" else tokens_per_second
    case = f"{row['framework']} {model.name} {row['kernels']} {num_gpus} GPUs, {row['unit']}"
    return Anchor("training", case, float(row["value"]), predicted, row["source"], row["framework"])


def step_seconds(setup: Setup, cluster: Cluster) -> float:
    lengths = np.full(cluster.num_ranks * setup.sequences, setup.length, np.int64)
    cost = Cost(cluster, setup.model)
    step = Simulated(cost).step(Batch(lengths, seed=0, step=0), (_plan(lengths, cost),))
    if not setup.rerun:
        return step.seconds
    again = cost.linear_seconds(np.array([setup.length * setup.sequences]), setup.rerun)
    return step.seconds + setup.model.num_layers * float(again[0])


def _plan(lengths: Ints, cost: Cost) -> Plan:
    """Every sequence whole on one rank, in order."""
    num_ranks = cost.cluster.num_ranks
    builder = Builder(lengths, num_ranks, cost.model.num_heads)
    seqs = np.arange(len(lengths), dtype=np.int64)
    local(builder, seqs, seqs * num_ranks // len(lengths))
    return reverse(builder.build(), "keep")


def megatron_flops(model: Model, length: int) -> int:
    """FLOPs of a token, forward and backward, as Megatron-LM counted in mid-2024: attention without the causal half."""
    return 6 * model.active_matmul_params + 12 * model.num_layers * model.num_heads * model.head_dim * length
