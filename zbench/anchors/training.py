"""Predicts whole training steps of dense models, as their frameworks and a paper published them. Pure: no torch.

Each step has every sequence on one rank: data parallelism only, as in all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Literal

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, Row, is_known, published_rows
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.interfaces.result import StepResult
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Ints, Plan
from zbench.simulated.executor import Simulated

USUAL = StepOverlap()

# Megatron's table names 7.1B parameters, a vocabulary of 131,072 (not tied) and sequences of 4,096; 30 layers of
# 4,096 are what makes 7.11B. A GELU feed-forward of 4 x hidden counts as a SwiGLU one of 8/3 (see flexsp.GPT_7B).
MEGATRON = Model(
    name="megatron_7b",
    num_layers=30,
    hidden=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ffn_hidden=10923,
    vocab=131072,
    sharding="zero1",
)
LLAMA = Model(
    name="llama3_8b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_hidden=14336,
    vocab=128256,
    sharding="zero3",
)


# InternLM 7B as InternEvo's configs/7B_sft.py has it; optimizer state over all GPUs (zero1=-1).
INTERNLM = Model(
    name="internlm_7b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ffn_hidden=11008,
    vocab=103168,
    sharding="zero1",
)
# GPT-3's XL and 2.7B with heads of 128, as FlashAttention-2 benchmarks them; whether anything was sharded is not said.
GPT_1_3B = Model(
    name="gpt_1.3b",
    num_layers=24,
    hidden=2048,
    num_heads=16,
    num_kv_heads=16,
    head_dim=128,
    ffn_hidden=5461,
    vocab=50257,
    sharding="zero1",
)
GPT_2_7B = Model(
    name="gpt_2.7b",
    num_layers=32,
    hidden=2560,
    num_heads=20,
    num_kv_heads=20,
    head_dim=128,
    ffn_hidden=6827,
    vocab=50257,
    sharding="zero1",
)


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A published training run: its model, batch and cluster.

    preset, device: as in conf/cluster and conf/cluster/device. sequences: of one GPU in a micro-batch, each `length`
    tokens. rerun: share of the layers' matmuls that the backward runs again. nics: (number of a node, bytes/s of
    each), where they are not the preset's. overlap: of gathers and reductions, as its published configuration says;
    anchors are predicted with whole steps' usual one.
    """

    model: Model
    preset: str
    device: str
    length: int
    sequences: int
    micro_batches: int = 1
    rerun: float = 0.0
    nics: tuple[int, float] | None = None
    overlap: StepOverlap = USUAL


@dataclass(frozen=True, slots=True)
class TrainingOperations:
    """The seconds of a published step by what they go to, means over GPUs. published: the step's, of its tokens or
    FLOPs a second. played: by part of zbench.interfaces.result.SECONDS_FOR, as it is simulated; they sum to its
    seconds."""

    case: str
    published: float
    played: Mapping[str, float]

    def as_row(self) -> dict[str, object]:
        """Returns the step as an object of --json."""
        return asdict(self) | {"predicted": sum(self.played.values())}


# As its configs/7B_sft.py has it: overlap_sync_param=False, reduce_bucket_size=512 * 1024 * 1024 parameters.
_INTERNEVO = StepOverlap("all", 512 * 1024 * 1024)
SETUPS = {
    # Attention by cuDNN, as in Transformer Engine at the time; how many sequences a GPU had is not published: a guess.
    "megatron": PublishedRun(MEGATRON, "h100_4x8", "h100_80g_cudnn", 4096, 4),
    # Local batch of 2 (the page), 8,192 tokens (its configuration of the model), selective checkpointing: every
    # second matmul and all elementwise work run again.
    "torchtitan": PublishedRun(LLAMA, "h100_4x8", "h100_96g_500w", 8192, 2, rerun=0.5),
    # 4 micro-batches of 2 x 2,048 tokens, 4 x 100 Gb/s RoCE a node (the page).
    "internevo": PublishedRun(
        INTERNLM, "a100_8x8", "a100_80g", 2048, 2, micro_batches=4, nics=(4, 12.5e9), overlap=_INTERNEVO
    ),
    # One node; how many sequences a GPU had is not published: 16K tokens a step are a guess.
    "gpt_1.3b_2k": PublishedRun(GPT_1_3B, "a100_8x8", "a100_80g", 2048, 8),
    "gpt_1.3b_8k": PublishedRun(GPT_1_3B, "a100_8x8", "a100_80g", 8192, 2),
    "gpt_2.7b_2k": PublishedRun(GPT_2_7B, "a100_8x8", "a100_80g", 2048, 8),
    "gpt_2.7b_8k": PublishedRun(GPT_2_7B, "a100_8x8", "a100_80g", 8192, 2),
}


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    """Returns the published training steps beside their predictions."""
    return [_anchor(row, get_cluster) for row in published_rows("training")]


def training_operations(get_cluster: GetCluster, as_published: bool = False) -> list[TrainingOperations]:
    """Returns what the seconds of the published training steps go to, played as whole steps. as_published: with gathers
    and reductions as their configurations have them."""
    found = []
    for row in published_rows("training"):
        setup, cluster = _setup(row, get_cluster)
        overlap = setup.overlap if as_published else USUAL
        executor = partial(Simulated, window=overlap.window, gradient_bucket=overlap.gradient_bucket)
        step, again = _played(setup, cluster, executor)
        played = {name: fmean(seconds) for name, seconds in step.seconds_for.items()}
        if again:
            played["recomputation"] = again
        predicted = _told(row, setup, step.seconds + again)
        published = (step.seconds + again) * predicted / float(row["value"])
        found.append(TrainingOperations(_case(row, setup), published, played))
    return found


def _anchor(row: Row, get_cluster: GetCluster) -> Anchor:
    setup, cluster = _setup(row, get_cluster)
    step, again = _played(setup, cluster, Simulated)
    predicted, case = _told(row, setup, step.seconds + again), f"{_case(row, setup)}, {row['unit']}"
    return Anchor("training", case, float(row["value"]), predicted, row["source"], is_known(row), row["framework"])


def _setup(row: Row, get_cluster: GetCluster) -> tuple[PublishedRun, Cluster]:
    """Returns the run of a published row, with its kernels, and its cluster."""
    setup = SETUPS[row["run"]]
    cluster = get_cluster(setup.preset, num_nodes=int(row["num_gpus"]) // 8, device=setup.device)
    if setup.nics is not None:
        cluster = replace(cluster, nics_per_node=setup.nics[0], nic_bandwidth=setup.nics[1])
    kernels: Literal["fused", "eager"] = "eager" if row["kernels"] == "eager" else "fused"
    return replace(setup, model=replace(setup.model, kernels=kernels)), cluster


def _case(row: Row, setup: PublishedRun) -> str:
    name = setup.model.name
    run = f"{name}_{setup.length // 1024}k" if row["run"] != row["framework"] else name
    return f"{row['framework']} {run} {row['kernels']} {row['num_gpus']} GPUs"


def _told(row: Row, setup: PublishedRun, seconds: float) -> float:
    """Returns what a step of so many seconds is in the row's unit."""
    tokens_per_second = setup.length * setup.sequences * setup.micro_batches / seconds
    flops = tokens_per_second * megatron_flops(setup.model, setup.length) / 1e12
    return flops if row["unit"] == "TFLOP/s/GPU" else tokens_per_second


def _played(setup: PublishedRun, cluster: Cluster, executor: Callable[[Cost], Simulated]) -> tuple[StepResult, float]:
    """Returns a simulated training step of `setup` on the cluster, and the seconds of what it runs again besides."""
    in_one = cluster.num_ranks * setup.sequences
    lengths = np.full(in_one * setup.micro_batches, setup.length, np.int64)
    cost = Cost(cluster, setup.model)
    plans = tuple(_plan(lengths, seqs, cost) for seqs in np.arange(len(lengths)).reshape(-1, in_one))
    step = executor(cost).step(Batch(lengths, seed=0, step=0), plans)
    if not setup.rerun:
        return step, 0.0
    again = cost.linear_seconds(np.array([setup.length * setup.sequences]), setup.rerun)
    return step, setup.model.num_layers * float(again[0])


def _plan(lengths: Ints, seqs: Ints, cost: Cost) -> Plan:
    """Returns the micro-batch of `seqs`, each whole on one rank, in order."""
    num_ranks = cost.cluster.num_ranks
    builder = Builder(lengths[seqs], num_ranks, cost.model.num_heads, sequences=seqs)
    places = np.arange(len(seqs), dtype=np.int64)
    local(builder, places, places * num_ranks // len(seqs))
    return reverse(builder.build(), "keep")


def megatron_flops(model: Model, length: int) -> int:
    """Returns the FLOPs of a token, forward and backward, as Megatron-LM counted in mid-2024: attention without the
    causal half."""
    return 6 * model.active_matmul_params + 12 * model.num_layers * model.num_heads * model.head_dim * length
