"""Bound and ceiling of whole steps: below what every system's steps take, and reached where nothing is lost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, batches, cases, costs
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import RECOMPUTE, SHARDING, Model
from zbench.describe.overlap import ALL, END, LAYER
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.result import StepResult
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.systems.allgather import AllGather
from zbench.systems.bytescale.planner import ByteScale
from zbench.systems.dp_balanced import DpBalanced
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.hybrid_dp import HybridDP
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking
from zbench.systems.mesh import Mesh
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses
from zbench.systems.wlb_llm.planner import WLBLLM
from zbench.systems.zeppelin.planner import Zeppelin

SYSTEMS = (
    AllGather, ByteScale, DpBalanced, FlexSP, HybridDP, Hydraulis, LocalPacking, Mesh, Nodewise, Ring, Ulysses, WLBLLM,
    Zeppelin,
)  # fmt: skip
ROUNDING = 1 + 1e-9


def in_order(result: StepResult) -> None:
    """Holds a step to its bound and its ceiling."""
    assert result.bound_seconds <= result.seconds * ROUNDING
    if result.ceiling_seconds is not None:
        assert result.bound_seconds <= result.ceiling_seconds <= result.seconds * ROUNDING


@st.composite
def jobs(draw: st.DrawFn) -> Simulated:
    """Executors of jobs with every sharding and overlap, with and without tensor parallelism and stages; networks from
    so slow that nothing else counts."""
    cost = draw(costs(nodes=3, gpus=4))
    kind = draw(st.sampled_from(("gpus", "gpus", "experts", "groups", "stages", "both")))
    sharding = draw(st.sampled_from(("none", "zero1") if kind in ("stages", "both") else SHARDING))
    layers = draw(st.sampled_from((2, 4, 5)))
    model = replace(cost.model, num_layers=layers, sharding=sharding, loss=draw(st.sampled_from(("whole", "chunked"))))
    cluster = replace(
        cost.cluster,
        nic_bandwidth=draw(st.sampled_from((1e5, 1e7, 1e9, 1e11))),
        port_order=draw(st.sampled_from(("plan", "longest_waiting"))),
        device=replace(cost.cluster.device, compute_slowdown=draw(st.sampled_from((1.0, 1.0, 1.5)))),
    )
    if kind != "experts":
        model = replace(model, num_experts=1, experts_per_token=1)
    model = replace(model, num_kv_heads=model.num_heads)
    if kind in ("groups", "both"):
        cluster = replace(cluster, domains=()).part(cluster.num_nodes, 4, draw(st.sampled_from((1, 2, 4))))
        heads = draw(st.sampled_from((2, 4)))
        model = replace(model, num_heads=4, num_kv_heads=heads, tensor_parallel=draw(st.sampled_from((1, 2, heads))))
    if kind in ("stages", "both"):
        cluster = cluster.part(2, cluster.gpus_per_node, cluster.nics_per_node)
        model = replace(model, num_layers=4, pipeline_parallel=2, tied_embeddings=False)
    return Simulated(make_cost(cluster, model), **draw(overlaps(model)))


@st.composite
def overlaps(draw: st.DrawFn, model: Model) -> dict[str, Any]:
    """Windows and buckets of every kind."""
    window: Any = draw(st.sampled_from((0, 1, 2)))
    if model.sharding in ("zero1", "zero2") and draw(st.booleans()):
        window = ALL
    layer = 4 * 16 * 1000  # more than a layer has
    bucket = draw(st.sampled_from((LAYER, LAYER, END, layer, 3 * layer)))
    return {"window": window if model.sharding != "none" else 1, "gradient_bucket": bucket}


def stepped(executor: Simulated, system: type, batch: Batch, count: int = 2) -> StepResult:
    """Plays a step of what a system plans, in several micro-batches where there are stages."""
    cost = executor.cost
    planner = system(cost)
    whole = planner if cost.pp == 1 or getattr(planner, "plans_stages", False) else Dealt(planner, count)
    return executor.step(batch, whole.plan(batch))


@settings(max_examples=120)
@given(jobs(), st.sampled_from(SYSTEMS), st.data())
def test_no_system_s_step_is_faster(executor: Simulated, system: type, data: st.DataObject) -> None:
    """Of any lengths, on any GPUs, by any strategy."""
    batch = data.draw(batches(data.draw(st.sampled_from((200, 6000)))))
    in_order(stepped(executor, system, batch))
