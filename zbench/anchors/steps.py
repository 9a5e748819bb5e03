"""Predicts FlexSP's training steps with documents of different lengths, 64 A100, GPT-7B. Pure: no torch.

Published: the model, the cluster, 512 documents of at most 192K tokens a step, longer ones dropped, 28 GB of every
GPU's 40 as the planners' budget, and how the public code packs the two baselines. Not published: which documents a
step had. Here a step is the mean of BATCHES drawn from the histogram of the same million documents
(conf/workload/wikipedia.yaml). Not published either: how much of ZeRO-3's collectives is hidden; played,
they hide as far as they can.
"""

from dataclasses import replace
from statistics import fmean
from typing import Protocol

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, is_known, published_rows
from zbench.anchors.flexsp import GPT_7B
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.simulated.executor import Simulated
from zbench.systems.common.padding import Padding
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.flexsp_batch_ada import FlexSPBatchAda
from zbench.workloads.fill import Lengths

BATCHES = 8
SEQUENCES, LONGEST = 512, 196_608
BUDGET = 28e9  # bytes of a GPU; the repository's training script (its solver scripts say 30 GB)
# The smallest degree whose group holds LONGEST tokens within BUDGET, by FlexSP's published 4.48 MB a token.
STATIC = 64


class GetWorkload(Protocol):
    """A function that returns a preset of conf/workload by name."""

    def __call__(self, name: str) -> Lengths: ...


def anchors(get_cluster: GetCluster, get_workload: GetWorkload) -> list[Anchor]:
    """Returns FlexSP's published steps beside their predictions."""
    cost = published_cost(get_cluster)
    systems = flexsp_systems(cost)
    wikipedia = get_workload("wikipedia")
    drawn = [batch(wikipedia, step) for step in range(BATCHES)]
    found = []
    for row in published_rows("steps"):
        system = systems[row["system"]]
        predicted = fmean(Simulated(cost).step(one, system.plan(one)).seconds for one in drawn)
        case = f"GPT-7B, 512 documents of Wikipedia, {row['system']}, {row['unit']}"
        found.append(Anchor("steps", case, float(row["seconds"]), predicted, row["source"], is_known(row), "steps"))
    return found


def flexsp_systems(cost: Cost, as_published: bool = False) -> dict[str, FlexSP | FlexSPBatchAda]:
    """Returns what the published steps are of, by the names of their rows. as_published: with documents padded and the
    smallest groups as in the public code."""
    padding: Padding = "published" if as_published else "none"
    return {
        "static": FlexSPBatchAda(cost, degree=STATIC, packing="published", padding=padding),
        "flexsp_batch_ada": FlexSPBatchAda(cost, packing="published", padding=padding),
        "flexsp": FlexSP(cost, least_degree=2 if as_published else 1, padding=padding),
    }


def published_cost(get_cluster: GetCluster) -> Cost:
    """Returns the cost model of GPT-7B on 64 A100 whose memory is the paper's budget."""
    cluster = get_cluster("a100_8x8")
    return Cost(replace(cluster, device=replace(cluster.device, memory_bytes=BUDGET)), GPT_7B)


def batch(lengths: Lengths, step: int) -> Batch:
    """Returns the batch of the first SEQUENCES of the drawn documents that are short enough."""
    drawn = lengths.draw(np.random.default_rng((step, 7)), 2 * SEQUENCES)
    return Batch(drawn[drawn <= LONGEST][:SEQUENCES], seed=0, step=step)
