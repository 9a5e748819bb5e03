"""executor=simulated: what a step comes to as one plan, for every system, and its trace."""

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.arithmetic import arithmetic_of_pipelines
from tests.helpers.oracles import small
from tests.helpers.variants import SYSTEMS, Variant
from zbench.correctness.reference.byte_law import step_traffic
from zbench.cost import gathers
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.stage import in_whole_steps, refusal
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import Experts
from zbench.interfaces.abilities import Chooses
from zbench.interfaces.dealt import Dealt
from zbench.plans.plan import Plan
from zbench.report.overview import shares_of
from zbench.simulated.executor import Simulated
from zbench.simulator.attention import playable
from zbench.simulator.estimate.carried import carried_bytes
from zbench.systems.hydraulis.cost import offered_schemes
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking
from zbench.systems.zeppelin.planner import Zeppelin

LENGTHS = np.array([5000, 1800, 900, 400, 300, 220, 120, 77])
BATCH = Batch(LENGTHS, seed=0, step=0)


def cost_of(**model: Any) -> Cost:
    """Two nodes of four GPUs, a model of 14 layers, so that two are left out where twelve are played."""
    one = small(2, 4)
    return make_cost(one.cluster, replace(one.model, num_layers=14, **model), pipelines=False)


def planned(system: Variant, cost: Cost) -> tuple[Plan, ...]:
    made = system.make(cost)
    if isinstance(made, Chooses):
        pytest.skip("it chooses before a run")
    return made.plan(BATCH)


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_every_system_s_steps_are_played(system: Variant) -> None:
    cost = cost_of(sharding="zero3")
    plans = planned(system, cost)
    result = Simulated(cost).step(BATCH, plans)
    assert result.bound_seconds <= result.seconds
    assert shares_of(asdict(result)).sum(axis=0) == pytest.approx(result.seconds)
    busy = np.add(result.attention_seconds, result.linear_seconds)
    assert (busy + result.exposed_seconds <= result.seconds * (1 + 1e-9)).all()
    assert (np.array(result.exposed_nic_seconds) <= np.array(result.exposed_seconds) + 1e-12).all()
    assert (np.array(result.exposed_seconds) <= np.array(result.communication_seconds) + 1e-12).all()
    spent = {name: np.array(seconds) for name, seconds in result.seconds_for.items()}
    assert sum(spent.values()) == pytest.approx(np.full(8, result.seconds), rel=1e-12)
    assert min(seconds.min() for seconds in spent.values()) >= 0
    assert spent["attention"] == pytest.approx(np.array(result.attention_seconds), rel=1e-9)
    assert spent["linear"] == pytest.approx(np.array(result.linear_seconds), rel=1e-9)
    assert sum(result.nic_tx_bytes) == sum(result.nic_rx_bytes)
    assert np.sum(list(result.nic_tx_for.values()), axis=0).tolist() == result.nic_tx_bytes
    sent = np.zeros(cost.cluster.num_nics, np.int64)
    for plan in plans:
        for part in playable(plan, cost):
            sent += carried_bytes(part, cost)[0]
    assert result.nic_tx_for.get("attention", [0] * len(sent)) == sent.tolist()
    assert min(result.peak_bytes) > 0
    assert result.capacity_bytes == cost.cluster.device.memory_bytes


@pytest.mark.parametrize(("degree", "stages"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("system", ["ring", "ulysses"])
def test_with_tensor_parallelism_and_stages_too_a_rank_is_a_gpu(system: str, degree: int, stages: int) -> None:
    """Plans are of groups, and what a group attends to each of its GPUs does with its heads; seconds close for each."""
    cost = cost_of(sharding="zero1", tensor_parallel=degree, pipeline_parallel=stages)
    plans = planned(next(one for one in SYSTEMS if str(one) == system), cost)
    assert plans[0].num_ranks == 8 // degree // stages
    result = Simulated(cost).step(BATCH, plans)
    for name in ("attention", "linear", "communication", "exposed", "exposed_nic"):
        assert len(getattr(result, f"{name}_seconds")) == 8
    assert len(result.peak_bytes) == 8
    by_group = np.array(result.attention_seconds).reshape(-1, degree)
    assert by_group == pytest.approx(np.repeat(by_group[:, :1], degree, axis=1), rel=1e-9)
    assert system != "ring" or len(np.unique(by_group[:, 0])) > 1
    shares = shares_of(asdict(result))
    assert shares.shape[1] == 8
    assert shares.sum(axis=0) == pytest.approx(result.seconds)


def test_exchanges_inside_groups_are_on_nvlink() -> None:
    cost = cost_of(sharding="zero1", tensor_parallel=2)
    (ring,) = [one for one in SYSTEMS if str(one) == "ring"]
    result = Simulated(cost).step(BATCH, planned(ring, cost))
    assert len(result.nic_tx_bytes) == cost.gpus.cluster.num_nics
    assert result.bound_seconds <= result.seconds
    # Of hidden states four exchanges in a layer's forward and six in its backward, the head's three and the embedding's
    # one; and the loss's of 16 bytes a token (a maximum, a sum and two terms).
    tokens, hidden = BATCH.num_tokens, cost.gpus.model.hidden
    exchanged = (10 * cost.layers + 4) * tokens * hidden * 2 + 16 * tokens
    assert result.nvlink_bytes == step_traffic(planned(ring, cost), cost).inside_tx.sum() + exchanged


def test_what_is_made_again_and_repacked_is_apart() -> None:
    """Repacking of attention that is made again counts as recomputation."""
    (ulysses,) = [one for one in SYSTEMS if str(one) == "ulysses"]
    found = {}
    for level in ("none", "selective", "full"):
        cost = cost_of(sharding="zero1", recompute=level)
        found[level] = Simulated(cost).step(BATCH, planned(ulysses, cost)).seconds_for
        assert np.ptp(sum(map(np.array, found[level].values()))) < 1e-12
    assert min(found["none"]["repacking"]) > 0
    for name in ("repacking", "attention", "linear"):
        for level in ("selective", "full"):
            assert found[level][name] == pytest.approx(found["none"][name], rel=1e-9)
    assert "recomputation" not in found["none"]
    assert 0 < min(found["selective"]["recomputation"]) < min(found["full"]["recomputation"])


@pytest.mark.parametrize("level", ["selective", "full"])
def test_a_routed_plan_is_made_again(level: str) -> None:
    """A plan that sends over several NICs drops what its forward brought, and the backward brings it again."""
    one, batch = cost_of(sharding="zero3", recompute=level), Batch(np.array([60_000, 77]), seed=0, step=0)
    cost = make_cost(replace(one.cluster, nics_per_node=4), one.model)
    (plan,) = Zeppelin(cost).plan(batch)
    assert (plan.forward.via >= 0).any()
    assert Simulated(cost).step(batch, (plan,)).seconds > 0


def test_zero_2_gathers_once_and_reduces_in_every_micro_batch() -> None:
    """But for norms' gains, which have a home of their own, and for what the loss sums, NICs send what gathers and
    reductions of all parameters take."""
    found = {}
    for sharding, count in (("zero1", 1), ("zero1", 3), ("zero2", 1), ("zero2", 3), ("zero3", 3)):
        cost = cost_of(sharding=sharding)
        plans = Dealt(LocalPacking(cost), count).plan(BATCH)
        step, size = Simulated(cost).step(BATCH, plans), float(cost.model.total_params)
        assert len(plans) == count
        if sharding != "zero3":  # with which table and head are gathered once, and layers twice
            sums = count if sharding == "zero2" else 1
            each = gathers.nic_bytes(cost, 2 * size) + sums * gathers.nic_bytes(cost, GRADIENT_BYTES * size)
            assert sum(step.nic_tx_bytes) == pytest.approx(cost.cluster.num_nics * each, rel=1e-6)
        found[sharding, count] = [sum(step.nic_tx_for[queue]) for queue in ("parameters", "gradients")]
    once, thrice = found["zero2", 1], found["zero2", 3]
    assert once == found["zero1", 1] == pytest.approx(found["zero1", 3], rel=1e-6)
    assert thrice == pytest.approx([once[0], 3 * once[1]], rel=1e-6)
    assert thrice[1] == found["zero3", 3][1]


def test_stages_and_experts_send_through_nics_of_their_own_purposes() -> None:
    (ring,) = [one for one in SYSTEMS if str(one) == "ring"]
    staged = cost_of(sharding="zero1", pipeline_parallel=2, micro_batches=2)
    result = Simulated(staged).step(BATCH, Dealt(ring.make(staged), 2).plan(BATCH))
    assert len(result.attention_seconds) == len(result.peak_bytes) == 8
    assert result.bound_seconds <= result.seconds
    crossing = BATCH.num_tokens * staged.model.hidden * staged.model.element_bytes
    assert sum(result.nic_tx_for["stages"]) == 2 * crossing  # x on, dx back
    routed = cost_of(sharding="zero3", num_experts=8, experts_per_token=2, ffn_hidden=1024)
    spread = Simulated(routed, expert_parallel=8, experts=Experts(skew=1.0)).step(BATCH, planned(ring, routed))
    together = Simulated(routed).step(BATCH, planned(ring, routed))
    assert sum(spread.nic_tx_for["experts"]) > 0
    assert "experts" not in together.nic_tx_for
    assert sum(spread.nic_tx_for["parameters"]) < sum(together.nic_tx_for["parameters"]) / 2  # experts are not gathered


@pytest.mark.parametrize("system", ["ring", "zeppelin", "usp"])
def test_a_trace_has_every_byte_and_ends_with_the_step(system: str, tmp_path: Path) -> None:
    cost = cost_of(sharding="zero3")
    (of,) = [one for one in SYSTEMS if str(one) == system]
    cluster, path = cost.cluster, tmp_path / "t.json"
    result = Simulated(cost).traced_step(BATCH, planned(of, cost), str(path))
    written = json.loads(path.read_text())["traceEvents"]
    titles = {(one["pid"], one["tid"]): one["args"]["name"] for one in written if one["name"] == "thread_name"}
    found = [one for one in written if one["ph"] == "X"]
    sent = np.zeros(cluster.num_nics, np.int64)
    for one in found:
        title = titles[one["pid"], one["tid"]]
        if title.startswith("NIC") and "sends" in title:
            sent[int(title.split()[1])] += one["args"]["bytes"]
    assert sent.tolist() == result.nic_tx_bytes
    assert {one["args"]["for"] for one in found if "for" in one["args"]} >= {"attention", "parameters", "gradients"}
    assert max(one["ts"] + one["dur"] for one in found) == pytest.approx(1e6 * result.seconds, rel=0.01)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in found:
        tracks.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    for spans in tracks.values():
        assert all(a[1] <= b[0] + 0.002 for a, b in pairwise(sorted(spans)))  # events are rounded to a nanosecond
    layers = {one["args"]["layer"] for one in found if one["name"] == "attend forward"}
    assert layers == set(range(cost.model.num_layers))


def test_what_it_cannot_play_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"sharding.window is 15; it takes 0 to 14 layers, all"):
        Simulated(cost_of(sharding="zero3"), window=15)
    with pytest.raises(ValueError, match=r"parallel.expert_parallel is 3; it has to divide 8 GPUs"):
        Simulated(cost_of(num_experts=6), expert_parallel=3)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
@pytest.mark.parametrize("pairs", [[[4, 1], [2, 1]], [[2, 2], [1, 1]], [[1, 7], [1, 1]]], ids=str)
def test_pipelines_side_by_side(pairs: list[list[int]], sharding: str) -> None:
    """As Hydraulis plans them: parts of the seconds close, and all that GPUs compute is what the sequences take."""
    cost = replace(cost_of(sharding=sharding), pipelines=True)
    plans = Hydraulis(cost, tp_pp_pairs=pairs).plan(BATCH)
    result = Simulated(cost).step(BATCH, plans)
    assert plans[0].pipelines is not None
    assert result.bound_seconds <= result.seconds
    busy = np.add(result.attention_seconds, result.linear_seconds)
    assert (busy + result.exposed_seconds <= result.seconds * (1 + 1e-9)).all()
    assert (np.array(result.exposed_nic_seconds) <= np.array(result.exposed_seconds) + 1e-12).all()
    assert (np.array(result.exposed_seconds) <= np.array(result.communication_seconds) + 1e-12).all()
    spent = {name: np.array(seconds) for name, seconds in result.seconds_for.items()}
    assert sum(spent.values()) == pytest.approx(np.full(8, result.seconds), rel=1e-12)
    attends, linear = arithmetic_of_pipelines(plans, cost)
    assert attends.any()
    assert result.attention_seconds == pytest.approx(attends, rel=1e-6)
    assert result.linear_seconds == pytest.approx(linear, rel=0.02)


def test_pipelines_parameters_and_gradients_stay_for_the_step_with_every_sharding() -> None:
    """In what is played and in what planners reckon: ZeRO-2 and 3 need the memory that ZeRO-1 does."""
    found = []
    for sharding in ("zero1", "zero2", "zero3"):
        cost = replace(cost_of(sharding=sharding), pipelines=True, even_slices=True)
        plans = Hydraulis(cost, tp_pp_pairs=[[2, 2], [1, 1]]).plan(BATCH)
        found.append((Simulated(cost).step(BATCH, plans).peak_bytes, peak_bytes(plans, cost).tolist()))
    assert found[0] == found[1] == found[2]


def test_pipelines_in_a_job_with_stages_of_its_own() -> None:
    plans = Hydraulis(replace(cost_of(), pipelines=True), tp_pp_pairs=[[2, 1]]).plan(BATCH)
    with pytest.raises(ValueError, match=r"^plans have pipelines, and the job has tensor parallelism 2 and 1 stages"):
        Simulated(cost_of(tensor_parallel=2)).step(BATCH, plans)


def test_models_that_planners_have_pipelines_for() -> None:
    assert in_whole_steps(cost_of())
    for model in ({"num_experts": 2}, {"tensor_parallel": 2}):
        assert not in_whole_steps(cost_of(**model))


@pytest.mark.parametrize(
    ("model", "shape", "told"),
    [
        ({"num_kv_heads": 1}, (2, 1), "tp has to divide model.num_kv_heads=1, of which whole steps cut even slices"),
        (
            {"tied_embeddings": True, "offload": "optimizer", "sharding": "zero1"},
            (1, 2),
            "model.tied_embeddings is true, and no host updates a table on two stages of one of several pipelines",
        ),
    ],
)
def test_which_pipelines_whole_steps_have_not(model: dict[str, Any], shape: tuple[int, int], told: str) -> None:
    cost = replace(cost_of(**model), pipelines=True)
    for even, reason in ((False, ""), (True, told)):
        found = refusal(*shape, replace(cost, even_slices=even))
        assert found.startswith(reason)
        assert bool(found) == even
        assert (shape in offered_schemes(replace(cost, even_slices=even))) != even
