"""What data parallelism adds: bytes conserved, nothing negative, and hidden only behind what there is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arithmetic import arithmetic, without_collectives
from tests.helpers.oracles import small
from tests.helpers.strategies import SHARP, costs
from zbench.cost.collective import Collectives, once_a_step
from zbench.cost.cost import Cost
from zbench.cost.gathers import everything, gather_seconds, nic_bytes
from zbench.cost.job import make_cost
from zbench.cost.memory.state import WholeBytes, state_bytes
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.degrees import NODE, WORLD, ShardDegrees
from zbench.describe.links import NIC, Domain
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.local_packing import LocalPacking

seconds = st.floats(0, 10)
MODEL = Model(
    name="four", num_layers=4, hidden=64, num_heads=4, num_kv_heads=2, head_dim=16, ffn_hidden=128, vocab=256
)  # fmt: skip
NODES = Cluster(
    name="two", num_nodes=2, gpus_per_node=4, nics_per_node=2, nic_bandwidth=1e9, nic_efficiency=0.8, nic_latency=1e-5,
    nvlink_bandwidth=1e11, nvlink_efficiency=0.8, nvlink_latency=1e-6, device=SHARP,
)  # fmt: skip


def sharded(cost: Cost, sharding: str) -> Collectives:
    return Collectives.of(replace(cost, model=replace(cost.model, sharding=sharding)))


@given(costs(), st.floats(1, 1e12))
def test_a_gather_moves_what_a_ring_or_tree_must(cost: Cost, size: float) -> None:
    """Every node has to receive what the other nodes hold; its NICs share that evenly."""
    c = cost.cluster
    needed = size * (c.num_nodes - 1) / c.num_nodes
    assert nic_bytes(cost, size) <= needed / c.nics_per_node < nic_bytes(cost, size) + 1
    taken = gather_seconds(cost, size)
    if c.num_ranks == 1:
        assert taken == 0
        return
    assert taken >= needed / c.nics_per_node / c.nic_bandwidth * (1 - 1e-9) - 1 / c.nic_bandwidth
    assert gather_seconds(cost, 2 * size) >= taken
    assert taken >= c.nic_latency * (c.num_nodes - 1)


@given(costs(), seconds, seconds)
def test_layers_and_collectives_share_the_busiest_nic(cost: Cost, span: float, share: float) -> None:
    """With what nothing hides, a forward or backward is long enough for both; more attention never ends it sooner."""
    of = Collectives.of(cost)
    nic = min(share, span)
    for shown, carried in ((of.forward, of.gather), (of.backward, of.reduce + of.every_micro_batch * of.gather)):
        assert shown(span, nic) >= 0
        assert span + shown(span, nic) >= (nic + carried) * (1 - 1e-12)
        assert shown(span, span) >= shown(span, nic)
        assert span + shown(span, nic) <= (span + nic + carried) * (1 + 1 / of.num_layers) * (1 + 1e-12)
    if cost.cluster.num_ranks == 1:
        assert of.forward(span, nic) == of.backward(span, nic) == 0


def test_pipelines_keep_their_parameters_for_the_step(uneven: Cost) -> None:
    three = replace(uneven, model=replace(uneven.model, sharding="zero3"))
    assert Collectives.of(three).every_micro_batch
    assert Collectives.of(three).reduced
    assert not Collectives.of(three, everything(three)).every_micro_batch
    assert not Collectives.of(three, everything(three)).reduced


@given(costs(), seconds, st.floats(0, 1), st.floats(0, 1))
def test_a_pipeline_alone_gathers_in_its_first_forward_and_reduces_in_its_last_backward(
    cost: Cost, total: float, share: float, busy: float
) -> None:
    for name in ("none", "zero1"):
        of = sharded(cost, name)
        first = last = share * total
        ahead, back = first / of.passes, last * (of.passes - 1) / of.passes
        gather = of.forward(ahead, busy * ahead) if name == "zero1" else 0.0
        end = of.end_of_pipelines(*(np.array([one]) for one in (total, first, last, busy)))
        assert end == pytest.approx(total + gather + of.backward(back, busy * back), rel=1e-9, abs=1e-12)


@given(costs(), seconds, st.lists(st.tuples(st.floats(0.1, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_gradients_of_several_pipelines_wait_for_the_last_to_begin_its_last_backward(
    cost: Cost, longest: float, shares: list[tuple[float, float, float]]
) -> None:
    """Never sooner than of any of them alone, nor later than if reductions began when all have ended."""
    of = sharded(cost, "zero1")
    total, first, last = (
        np.array([one[n] * longest * (shares[i][0] if n else 1) for i, one in enumerate(shares)]) for n in range(3)
    )
    busy = np.zeros(len(total))
    end = of.end_of_pipelines(total, first, last, busy)
    alone = [of.end_of_pipelines(*(column[[i]] for column in (total, first, last, busy))) for i in range(len(total))]
    waited = total + [of.forward(one / of.passes, 0.0) for one in first.tolist()]
    assert max(alone) <= end * (1 + 1e-12)
    assert end <= (waited.max() + of.reduce) * (1 + 1e-12)


def test_a_short_last_micro_batch_beside_a_long_one_shows_a_reduction() -> None:
    """One of 3 s, beside two of 1.5 s each, whose gradients are whole in the last second alone: of a reduction of 1.5 s
    and four layers all but that second is to come, and the first layer's gradients are there a quarter later."""
    of = replace(sharded(make_cost(NODES, MODEL), "zero1"), passes=3, gather=0.0, reduce=1.5)
    total, busy = np.array([3.0, 3.0]), np.zeros(2)
    assert of.end_of_pipelines(total, np.array([3.0, 3.0]), np.array([3.0, 3.0]), busy) == pytest.approx(3.375)
    assert of.end_of_pipelines(total, np.array([3.0, 1.5]), np.array([3.0, 1.5]), busy) == pytest.approx(
        3 - 1 + 0.25 + 1.5
    )


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3", "hpz"])
@pytest.mark.parametrize(("opens", "closes"), [(True, False), (False, False), (False, True), (True, True)])
def test_a_part_of_a_step_has_what_falls_into_it(sharding: str, opens: bool, closes: bool) -> None:
    """ZeRO-1 gathers in the first forward and reduces in the last backward, ZeRO-3 does both in every micro-batch."""
    degrees = ShardDegrees(weights=WORLD, secondary=NODE, gradients=WORLD, optimizer=WORLD)
    cost = make_cost(NODES, replace(MODEL, sharding=degrees if sharding == "hpz" else sharding))
    whole, part = Collectives.of(cost), Collectives.of(cost.of_part(opens, closes))
    gathers = opens or sharding in ("zero3", "hpz")
    reduces = closes or sharding in ("zero2", "zero3", "hpz")
    assert part.gather == whole.gather * gathers
    assert part.reduce == whole.reduce * reduces
    assert (part.gather_ports == whole.gather_ports * gathers).all()
    assert (part.reduce_ports == whole.reduce_ports * reduces).all()
    assert part.shown_in_forward(0.0, 0.0) == whole.shown_in_forward(0.0, 0.0) * gathers
    assert part.backward(1e9, 0.0) == pytest.approx(whole.backward(1e9, 0.0) * reduces)
    assert once_a_step(cost) == (sharding in ("none", "zero1", "zero2"))


def test_a_part_of_a_part_is_neither_first_nor_last() -> None:
    cost = make_cost(NODES, MODEL)
    middle = cost.of_part(True, False).of_part(False, True)
    assert (middle.opens_step, middle.closes_step) == (False, False)
    assert middle.of_step == cost


@given(costs(), st.floats(1e-3, 10))
def test_a_micro_batch_with_its_own_collectives(cost: Cost, layers: float) -> None:
    one, two, three = (sharded(cost, name) for name in ("zero1", "zero2", "zero3"))
    assert one.micro_batch_seconds(layers) == layers
    assert layers <= two.micro_batch_seconds(layers) <= three.micro_batch_seconds(layers) * (1 + 1e-12)
    assert two.micro_batch_seconds(layers) >= max(layers, two.reduce) * (1 - 1e-12)
    assert three.micro_batch_seconds(layers) >= max(layers, 2 * three.gather + three.reduce) * (1 - 1e-12)
    assert three.micro_batch_seconds(2 * layers) >= three.micro_batch_seconds(layers) * (1 - 1e-12)


@given(costs(), seconds, seconds)
def test_plain_data_parallelism_sums_twice_and_gathers_nothing(cost: Cost, span: float, nic: float) -> None:
    none, one = sharded(cost, "none"), sharded(cost, "zero1")
    assert none.shown_in_forward(span, nic) == 0
    assert none.backward(span, nic) >= one.backward(span, nic)
    assert none.reduce == 2 * one.reduce


def test_a_long_backward_hides_all_but_the_last_layer(uneven: Cost) -> None:
    """And a short one hides nothing of what does not fit beside it; the numbers are worked out by hand: two layers."""
    of = sharded(uneven, "zero1")
    assert of.num_layers == 2
    assert of.backward(1e6 * of.reduce, 0.0) == pytest.approx(of.reduce / 2)
    assert of.backward(of.reduce, 0.0) == pytest.approx(of.reduce / 2)
    assert of.backward(of.reduce / 2, 0.0) == pytest.approx(of.reduce * 3 / 4)
    assert of.backward(0.0, 0.0) == pytest.approx(of.reduce)
    assert of.forward(2 * of.gather, 0.0) == 0
    assert of.forward(of.gather, 0.0) == pytest.approx(of.gather / 2)
    assert of.forward(2 * of.gather, 2 * of.gather) == pytest.approx(of.gather)


def test_a_gather_goes_domain_by_domain() -> None:
    """Eight GPUs of a node in pairs. What a pair lacks, 6/8, comes in by its GPUs' ports to the node; inside it every
    GPU takes in 7/8. Latencies: one inside the pair, three between pairs."""
    cost = small(1, 8)
    pair = Domain("pair", 2, 1e12, 1.0, 1e-6)
    paired = replace(cost, cluster=replace(cost.cluster, domains=(pair,)))
    node = cost.cluster.nvlink_bandwidth * cost.cluster.nvlink_efficiency
    latency = cost.cluster.nvlink_latency
    assert gather_seconds(cost, 1e9) == pytest.approx(7 / 8 * 1e9 / node + 7 * latency)
    assert gather_seconds(paired, 1e9) == pytest.approx(
        max(3 / 8 * 1e9 / node, 7 / 8 * 1e9 / 1e12) + 3 * latency + 1e-6
    )
    slow = replace(paired, cluster=replace(paired.cluster, domains=(replace(pair, bandwidth=1e9),)))
    assert gather_seconds(slow, 1e9) == pytest.approx(7 / 8 + 3 * latency + 1e-6)


def test_ranks_meet_in_every_pass_with_zero3() -> None:
    """Four ranks, each the only one with work in one of two micro-batches: at once with ZeRO-1, in turn with ZeRO-3."""
    cluster = Cluster("one", 1, 4, 1, 25e9, 0.8, 1.5e-5, 2e11, 0.6, 1e-5, SHARP)
    cost = Cost(cluster, Model("few", 2, 64, 4, 4, 16, 128, 64))
    batch = Batch(np.array([4096, 4096]), 0, 0)
    plans = []
    for sequence, rank in ((0, 1), (1, 3)):
        builder = Builder(batch.lengths[:1], 4, 4, sequences=np.array([sequence]))
        local(builder, np.array([0]), np.array([rank]))
        plans.append(reverse(builder.build(), "keep"))
    layers = {}
    for sharding in ("zero1", "zero3"):
        of = replace(cost, model=replace(cost.model, sharding=sharding))
        with without_collectives():
            layers[sharding] = StepEstimate(of).seconds(tuple(plans)) - of.optimizer_seconds()
    _, busy, _, other = np.add(*arithmetic(tuple(plans), cost)).tolist()
    assert busy == other
    assert layers["zero1"] == pytest.approx(busy)
    assert layers["zero3"] == pytest.approx(2 * busy)


def test_a_step_takes_no_less_than_nothing_hides() -> None:
    """A token's layers hide next to nothing, and of ZeRO-3's collectives the last layer waits for its own."""
    cost, batch = small(2, 2), Batch(np.array([1]), 0, 0)
    plans, of = LocalPacking(cost).plan(batch), Collectives.of(cost)
    with without_collectives():
        bare = StepEstimate(cost).seconds(plans)
    assert StepEstimate(cost).seconds(plans) - bare > 2 * of.gather + of.reduce


def test_degrees_gather_and_reduce_in_their_runs() -> None:
    """In pairs and nodes nothing of a micro-batch leaves a node; over all ranks it is ZeRO-3; where parameters
    stay, they are gathered once a step."""
    of = {
        name: Collectives.of(make_cost(NODES, replace(MODEL, sharding=degrees)))
        for name, degrees in (
            ("levels", ShardDegrees(2, 2, NODE, WORLD)),
            ("world", ShardDegrees(WORLD, WORLD, WORLD, WORLD)),
            ("stays", ShardDegrees(1, 1, 4, 8)),
            ("zero3", "zero3"),
            ("zero2", "zero2"),
        )
    }
    assert of["levels"].gather_ports[NIC] == of["levels"].reduce_ports[NIC] == 0
    assert (of["levels"].every_micro_batch, of["levels"].reduced) == (True, True)
    assert 0 < of["levels"].gather < of["world"].gather
    assert of["world"].gather == pytest.approx(of["zero3"].gather)
    assert of["world"].reduce == pytest.approx(of["zero3"].reduce)
    assert of["world"].gather_ports == pytest.approx(of["zero3"].gather_ports)
    assert (of["stays"].every_micro_batch, of["stays"].reduced) == (False, True)
    assert of["stays"].gather == pytest.approx(of["zero2"].gather)


@pytest.mark.parametrize(
    ("degrees", "weights", "gradients", "state"),
    [((2, 2, NODE, WORLD), 2, 4, 8), ((WORLD, 1, WORLD, WORLD), 1, 8, 8), ((1, 1, 1, 2), 1, 1, 2)],
)
def test_a_rank_holds_what_its_degrees_say(
    degrees: tuple[int, int, int, int], weights: int, gradients: int, state: int
) -> None:
    """Parameters as they are kept for the backward, norms' gains, which are not cut, and a loss; and what is whole for
    a while of a layer that is, and of the next."""
    model = replace(MODEL, sharding=ShardDegrees(*degrees))
    cost, gains = make_cost(NODES, model), model.hidden * (2 * model.num_layers + 1)
    held = model.lse_bytes + gains * (model.element_bytes + 4 + 12)
    held += (model.total_params - gains) * (model.element_bytes / weights + 4 / gradients + 12 / state)
    assert state_bytes(cost) == int(held)
    gathered, summed = model.element_bytes * (degrees[0] != 1), 4 * (gradients != 1)
    whole = WholeBytes.of(cost, cost.layers)
    assert whole.inputs == (gathered + summed) * model.layer_params
    assert whole.loss == gathered * model.layer_params + (gathered + summed) * model.head_params
    assert whole.chunks - whole.norm == gathered * (model.layer_params - model.attention_params)
