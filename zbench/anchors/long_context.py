"""Predicts training steps of one long sequence over all GPUs: EasyContext's and TRL's million tokens. Pure: no torch.

Published: model, GPUs, lengths, zigzag ring (EasyContext) or PyTorch's context parallelism (TRL), parameters split over
all ranks, layers run again in the backward, kernels of Hugging Face's transformers (not fused), FlashAttention-2 or
cuDNN. PyTorch gathers keys where a ring passes them on; at these lengths either is hidden, and both are rings here.
Not modelled: parameters and optimizer on the host (EasyContext), layers' inputs on the host (TRL), MLPs by tiles
(TRL's 32B). Not published: which A100, links, and of EasyContext whether 128K means 128,000 or 131,072.
"""

from dataclasses import replace

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, Row, is_known, published_rows
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import AUTO, Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import Ints, Plan
from zbench.simulated.executor import Simulated

LLAMA2_7B = Model(
    name="llama2_7b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ffn_hidden=11008,
    vocab=32000,
    recompute="full",
    sharding="zero3",
    kernels="eager",
)
# Qwen3's technical report (arXiv 2505.09388), table 1, and the models' published configurations; TRL's chunked loss.
QWEN3_8B = Model(
    name="qwen3_8b",
    num_layers=36,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_hidden=12288,
    vocab=151936,
    recompute="full",
    sharding="zero3",
    kernels="eager",
    loss_chunk_tokens=AUTO,
)
MODELS = {
    "llama2_7b": LLAMA2_7B,
    "qwen3_8b": QWEN3_8B,
    "qwen3_0.6b": replace(
        QWEN3_8B, name="qwen3_0.6b", num_layers=28, hidden=1024, num_heads=16, ffn_hidden=3072, tied_embeddings=True
    ),
    "qwen3_32b": replace(QWEN3_8B, name="qwen3_32b", num_layers=64, hidden=5120, num_heads=64, ffn_hidden=25600),
}
CLUSTERS = {
    ("easycontext", "flash2"): ("a100_8x8", "a100_80g"),
    ("trl", "cudnn"): ("h100_4x8", "h100_80g_cudnn"),
    ("trl", "flash2"): ("h100_4x8", "h100_80g_flash2"),
}


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    """Returns the published steps beside their predictions."""
    return [_anchor(row, get_cluster) for row in published_rows("long_context")]


def _anchor(row: Row, get_cluster: GetCluster) -> Anchor:
    preset, device = CLUSTERS[row["framework"], row["attention"]]
    num_gpus, tokens = int(row["num_gpus"]), int(row["tokens"])
    cost = Cost(get_cluster(preset, num_nodes=num_gpus // 8, device=device), MODELS[row["model"]])
    lengths = np.full(num_gpus if row["scheme"] == "data_parallel" else 1, tokens, np.int64)
    step = Simulated(cost).step(Batch(lengths, seed=0, step=0), (_plan(row["scheme"], lengths, cost),))
    predicted = step.seconds if row["unit"] == "s/step" else int(lengths.sum()) / step.seconds
    scheme = row["scheme"].replace("_", " ")
    family = f"{row['framework']} {row['model']} {tokens:,} tokens, {num_gpus} GPUs"
    case = f"{family}, {scheme}, {row['attention']}, {row['unit']}"
    measured = float(row["value"])
    return Anchor("long_context", case, measured, predicted, row["source"], is_known(row), family)


def _plan(scheme: str, lengths: Ints, cost: Cost) -> Plan:
    """Plans one sequence over all ranks ("ring"), or one on each ("data_parallel")."""
    num_ranks = cost.cluster.num_ranks
    builder = Builder(lengths, num_ranks, cost.model.num_heads)
    seqs = np.arange(len(lengths), dtype=np.int64)
    if scheme == "data_parallel":
        local(builder, seqs, seqs)
        return reverse(builder.build(), "keep")
    assert scheme == "ring", scheme
    ring(builder, seqs, seqs, np.arange(num_ranks, dtype=np.int64).reshape(1, -1))
    return reverse(builder.build(), "carry")
