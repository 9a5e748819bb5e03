"""A rank that stands for a tensor-parallel group, against the simulator's own tensor parallelism and GPU by GPU."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.arithmetic import without_collectives
from tests.helpers.oracles import small
from zbench.cost.bound import bound_seconds
from zbench.cost.cost import Cost
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import check_memory, moments_of_stages, pipeline_moments
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import grouped
from zbench.cost.stage import Stage
from zbench.describe.batch import Batch
from zbench.describe.links import Domain
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Plan
from zbench.proof.verify import OutOfMemory, verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

LENGTHS = np.array([16_384, 4_000, 2_048, 512])


def whole(cost: Cost, ranks: list[int], pipelines: Pipelines | None = None) -> tuple[Plan, ...]:
    """Every sequence whole on its rank."""
    builder = Builder(LENGTHS, cost.cluster.num_ranks, cost.model.num_heads)
    local(builder, np.arange(len(LENGTHS)), np.array(ranks))
    return (reverse(builder.build(), "keep").with_(pipelines=pipelines),)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize(
    ("recompute", "sharding"), [("none", "zero3"), ("full", "zero3"), ("none", "zero1"), ("selective", "zero2")]
)
def test_groups_take_as_long_as_the_pipelines_of_one_stage_that_they_are(
    tp: int, recompute: str, sharding: str
) -> None:
    cost = small(1, 8)
    cost = replace(cost, model=replace(cost.model, recompute=recompute, sharding=sharding))
    count = 8 // tp
    leads = np.arange(count) * tp
    of = Pipelines(leads, np.full(count, tp), np.ones(count, np.int64))
    place = [sequence % count for sequence in range(len(LENGTHS))]
    groups = grouped(cost, tp)
    with without_collectives():
        one = StepEstimate(groups).seconds(whole(groups, place))
        other = StepEstimate(cost).seconds(whole(cost, [tp * rank for rank in place], of))
    assert one == pytest.approx(other, rel=1e-9)
    # A token is the same in both, at every moment; pipelines keep their parameters for a step, ranks may not.
    (mine,), theirs = moments_of_stages(groups), pipeline_moments(cost, tp, 1)
    assert theirs.kept == pytest.approx(mine.kept / tp)
    for one_line, other_line in zip(mine.moments(True), theirs.moments(True), strict=True):
        assert other_line.token == pytest.approx(one_line.token / tp)
    tokens = np.bincount(place, LENGTHS, count)
    peak = peak_bytes(whole(groups, place), groups)
    lines = MemoryLines(mine.lines(1, True))
    assert peak.tolist() == [lines.bytes(each) for each in tokens]


@pytest.mark.parametrize("nics", [1, 4, 8])
def test_a_group_has_the_rates_memory_and_links_of_its_gpus_and_the_model_its_work(nics: int) -> None:
    cost = small(2, 8)
    cost = replace(cost, cluster=replace(cost.cluster, nics_per_node=nics))
    groups = grouped(cost, 4)
    assert (groups.cluster.num_ranks, groups.cluster.nics_per_node) == (4, min(nics, 2))
    for backward in (False, True):
        alone = cost.whole_seconds(LENGTHS, backward)
        assert groups.whole_seconds(LENGTHS, backward) == pytest.approx(alone / 4)
    assert groups.head_seconds(LENGTHS) == pytest.approx(cost.head_seconds(LENGTHS) / 4)
    assert groups.optimizer_seconds() == pytest.approx(cost.optimizer_seconds())
    heads = cost.model.num_heads
    for tensor in range(6):
        whole_heads = groups.model.message_bytes_per_token(tensor, 0, groups.model.num_heads)
        assert whole_heads == cost.model.message_bytes_per_token(tensor, 0, heads)
    sizes, across = np.array([1e9, 1e9]), np.array([True, False])
    alone = cost.transfer_seconds(sizes, across)
    assert groups.transfer_seconds(sizes, across) == pytest.approx(alone / [nics / min(nics, 2), 4])
    assert groups.model.total_params == cost.model.total_params


@pytest.mark.parametrize("nics", [2, 4, 8])
@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_group_s_message_takes_as_long_as_those_of_its_gpus(nics: int, tp: int, channels: int) -> None:
    """Each GPU sends its share to one peer: by a channel, or less where more of the group share the NIC."""
    cost, size = small(2, 8), 1e9
    cluster = replace(cost.cluster, nics_per_node=nics, nic_channels=channels)
    groups, yes = grouped(replace(cost, cluster=cluster), tp), np.array([True])
    on_a_nic = min(tp, 8 // nics)
    share = size / tp * max(on_a_nic, channels) / (cluster.nic_bandwidth * cluster.nic_efficiency)
    assert groups.message_seconds(np.array([size]), yes)[0] == pytest.approx(share)


def test_what_groups_exchange_is_what_a_stage_of_a_pipeline_does() -> None:
    cost, tokens = small(1, 8), np.array([0, 1, 5_000])
    for tp in (2, 4, 8):
        assert grouped(cost, tp).group_gather_seconds(tokens) == pytest.approx(
            Stage.of(cost, tp, 1).gather_seconds(tokens)
        )
    assert not cost.exchange_seconds(tokens).any()


def test_groups_inside_domains_gather_over_their_links() -> None:
    """Pairs of GPUs on cards of two and of four: the pair is inside, or the card a domain of two groups."""
    card = Domain("card", 2, 1e12, 0.5, 1e-6)
    cost = small(1, 8)
    cost = replace(cost, cluster=replace(cost.cluster, domains=(card, replace(card, name="four", gpus=4))))
    tokens, size = np.array([5_000]), cost.model.hidden * cost.model.element_bytes
    pairs = grouped(cost, 2)
    assert pairs.inner == (card,)
    assert [(one.name, one.gpus, one.bandwidth) for one in pairs.cluster.domains] == [("four", 2, 2e12)]
    assert pairs.group_gather_seconds(tokens) == pytest.approx(tokens * size / 2 / 0.5e12 + 1e-6)
    for tp in (2, 4, 8):
        assert grouped(cost, tp).group_gather_seconds(tokens) == pytest.approx(
            Stage.of(cost, tp, 1).gather_seconds(tokens)
        )
    with pytest.raises(
        ValueError, match=r"^parallel\.tensor_parallel is 3; it has to divide cluster\.domains\.card\.gpus=2"
    ):
        grouped(
            replace(cost, cluster=cost.cluster.part(1, 6, 1), model=replace(cost.model, num_heads=6, num_kv_heads=6)), 3
        )


@pytest.mark.parametrize("system", [Ring, Zeppelin, Hydraulis])
def test_plans_for_groups_are_proven_and_no_faster_than_the_bound(system: type) -> None:
    cost = grouped(small(2, 8), 2)
    batch = Batch(LENGTHS, 0, 0)
    plans = system(cost).plan(batch)
    verify_step(batch, plans)
    assert all(plan.pipelines is None or plan.pipelines.tp.max() == 1 for plan in plans)
    assert StepEstimate(cost).seconds(plans) >= bound_seconds(batch, cost) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("tp", "changes", "told"),
    [
        (3, {}, "parallel.tensor_parallel is 3; it has to divide cluster.gpus_per_node=8"),
        (16, {}, "parallel.tensor_parallel is 16; it has to divide cluster.gpus_per_node=8"),
        (4, {"nics_per_node": 3}, "cluster.nics_per_node=3 cannot be shared evenly by its 2 groups"),
    ],
)
def test_groups_that_cannot_be_alike_are_refused(tp: int, changes: dict[str, int], told: str) -> None:
    cost = small(2, 8)
    with pytest.raises(ValueError, match=told):
        grouped(replace(cost, cluster=replace(cost.cluster, **changes)), tp)


def test_heads_that_do_not_divide_are_refused() -> None:
    cost = small(1, 8)
    with pytest.raises(ValueError, match=r"it has to divide model\.num_kv_heads=2"):
        grouped(replace(cost, model=replace(cost.model, num_kv_heads=2)), 4)


@pytest.mark.parametrize("nics", [1, 4, 8])
def test_a_steps_result_is_of_gpus_and_nics_as_configured(nics: int) -> None:
    cost = small(2, 8)
    cost = replace(cost, cluster=replace(cost.cluster, nics_per_node=nics))
    groups = grouped(cost, 4)
    batch = Batch(LENGTHS, 0, 0)
    plans = Ring(groups).plan(batch)
    step = Simulated(groups).step(batch, plans)
    assert len(step.nic_tx_bytes) == len(step.nic_rx_bytes) == 2 * nics
    assert step.capacity_bytes == int(cost.cluster.device.memory_bytes)
    assert len(step.peak_bytes) == 16
    assert groups.cluster.device.name == cost.cluster.device.name


def test_memory_that_is_not_enough_is_told_of_one_gpu() -> None:
    cost = grouped(small(2, 8), 4)
    little = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=4 * 2.0**30)))
    batch = Batch(LENGTHS, 0, 0)
    with pytest.raises(
        OutOfMemory, match=r"^tensor-parallel group \d needs [\d.]+ GiB on each of its GPUs, a .* has 1\.0 GiB"
    ):
        verify_step(batch, Ring(little).plan(batch), little)
    least = replace(little, cluster=replace(little.cluster, device=replace(little.cluster.device, memory_bytes=4e6)))
    with pytest.raises(ValueError, match=r"on every GPU, and a GPU \(.*\) has 0\.0 GiB"):
        check_memory(least)
