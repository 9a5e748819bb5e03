"""Tokens of experts on the clock: matmuls, bytes and memory are of those that go to a slice of the experts."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from tests.helpers.arithmetic import arithmetic
from tests.helpers.steps import EXPERTS, plan_of, plan_of_blocks
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.curve import Curve
from zbench.describe.expert_schedule import DRAWN, TOKEN_CHOICE
from zbench.planned.step import StepPlans
from zbench.plans.plan import Plan
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.play import play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step

LENGTHS = (9000, 4100, 1500, 900, 700, 300, 300, 77)


@cache
def planned() -> tuple[StepPlans, Cost]:
    """On devices that take time for matmuls and attention alone."""
    found = zbench.plan(LENGTHS, cluster="a800_2x8", model="moe_8x550m", system="ring")
    device = replace(found.cluster.device, copy_bandwidth=1e30, kernel_seconds=1e-30)
    return found, make_cost(replace(found.cluster, device=device), found.model)


@cache
def small(degree: int, skew: float, zero: str) -> tuple[Step, list[Plan]]:
    plans = [plan_of([9, 6, 1], 4, 4)]
    return whole_step(EXPERTS, plans, 1, zero, experts=ExpertParallel(degree, 3, skew)), plans


def on_nodes_of_one_gpu(gpus: int) -> Cost:
    found = planned()[0].cluster
    return Cost(replace(found, num_nodes=gpus, gpus_per_node=1, nics_per_node=1), EXPERTS)


@pytest.mark.parametrize(("degree", "skew"), [(1, 0.0), (8, 2.0)])
def test_matmuls_of_all_gpus_are_those_of_active_experts(degree: int, skew: float) -> None:
    """Wherever tokens go, together they take what as many tokens with their experts take in a layer's arithmetic."""
    found, cost = planned()
    step = whole_step(found.model, found.plans, 1, "none", experts=ExpertParallel(degree, 0, skew))
    played = play_step(step, found.plans, cost)
    _, linear = arithmetic(found.plans, cost)
    assert played.busy["compute"].sum() == pytest.approx(linear.sum(), rel=1e-9)
    assert np.ptp(played.busy["compute"]) > (np.ptp(linear) + 1e-3 if degree > 1 else 0)


def test_experts_have_the_rate_of_their_own_rows() -> None:
    """A device of half the rate below 1,000 rows: of seconds of z, experts with fewer tokens have twice."""
    found, cost = planned()
    how = ExpertParallel(4, 0, 1.0)
    step = whole_step(found.model, found.plans, 1, "none", experts=how)
    layout, template = step.layouts[0], step.templates[1]
    routing = PlanParts(found.plans[0], found.model, 1, how).routing
    assert routing is not None
    homes = layout.tensors[layout.number["x"]].home
    curve = Curve((999.0, 1000.0), (1e14, 2e14))
    device = replace(cost.cluster.device, matmul_by_tokens={found.model.name: curve})
    seconds = compute_seconds(
        Sizes(layout, (template,)), found.plans[0], replace(cost, cluster=replace(cost.cluster, device=device))
    )
    number, rows = layout.labels.index("z"), 0
    for op in np.flatnonzero((template.operations.kind == COMPUTE) & (template.operations.what == number)).tolist():
        gpu = int(template.operations.src[op])
        mine = 2 * (gpu % 4) + np.arange(2)
        tokens = routing.to_experts[homes // 4 == gpu // 4][:, mine].sum(axis=0)
        flops = 2 * tokens * 2 * found.model.hidden * found.model.ffn_hidden
        assert seconds[op] == pytest.approx((flops / np.where(tokens < 1000, 1e14, 2e14)).sum(), rel=1e-9)
        rows += int((tokens < 1000).sum())
    assert 0 < rows < 32


@pytest.mark.parametrize(("degree", "skew", "zero"), [(2, 0.0, "none"), (4, 9.0, "1"), (4, 1.0, "3")])
def test_bytes_of_messages_are_those_that_the_step_states(degree: int, skew: float, zero: str) -> None:
    """To the byte, of every GPU, which has a node of its own; of collectives, of which each has an even share on the
    clock, all together but for what shares lose to whole bytes."""
    step, plans = small(degree, skew, zero)
    played, stated = play_step(step, plans, on_nodes_of_one_gpu(4)), stated_bytes(step)
    for queue in ("experts", "attention"):
        for way, found in enumerate((played.nic_tx, played.nic_rx)):
            assert found[queue].tolist() == [one[queue][way] for one in stated]
    for queue in ("parameters", "gradients"):
        total = sum(one.get(queue, (0, 0))[0] for one in stated)
        assert played.nic_tx[queue].sum() == pytest.approx(total, abs=4 * 4 * len(step.templates[1].operations))
    assert played.nic_tx["experts"].any()


@pytest.mark.parametrize("degree", [2, 4])
def test_memory_is_of_routed_tokens(degree: int) -> None:
    """What forwards keep of z on a GPU: of the layers that are not backward yet, the tokens that its experts have."""
    plans = [plan_of([900, 600, 100], 4, 4)]
    step = whole_step(EXPERTS, plans, 1, "3", experts=ExpertParallel(degree, 3, 3.0))
    held = play_step(step, plans, on_nodes_of_one_gpu(4)).memory.held["z"]
    layout, each = step.layouts[0], EXPERTS.num_experts // degree
    home, tensor = layout.tensors[layout.number["x"]].home, layout.tensors[layout.number["z"]]
    assert tensor.amounts is not None
    amounts = tensor.amounts.reshape(len(home), -1)
    found = [
        amounts[home // degree == gpu // degree][:, gpu % degree * each + np.arange(each)].sum() for gpu in range(4)
    ]
    assert {int(size) // int(one * tensor.unit) for size, one in zip(held, found, strict=True)} <= {1, 2}
    assert (held % (np.array(found) * tensor.unit) == 0).all()
    assert np.ptp(found) > 100


def test_seats_are_played_as_padded_rows_are() -> None:
    """Matmuls of experts and bytes of their messages, whoever a router chooses; of a formula that names seats by parts
    of their tokens each part has its share, and all of them have all."""
    plans, how = [plan_of_blocks([9, 6, 1], 4, 4)], ExpertParallel(4, 3, capacity=1.0, padded=True)
    steps = [whole_step(EXPERTS, plans, 1, "1", experts=replace(how, routing=one)) for one in (TOKEN_CHOICE, DRAWN)]
    cost = on_nodes_of_one_gpu(4)
    played, stated = play_step(steps[0], plans, cost), stated_bytes(steps[0])
    assert played.nic_tx["experts"].tolist() == [one["experts"][0] for one in stated]
    seconds = []
    for step in steps:
        sizes = Sizes(step.layouts[0], (step.templates[1],))
        ops, label = sizes.templates[0].operations, step.layouts[0].labels.index("z")
        mine = np.flatnonzero((ops.kind == COMPUTE) & (ops.what == label))
        seconds.append(compute_seconds(sizes, plans[0], cost)[mine].tolist())
    assert seconds[0] == seconds[1]
    layout, sizes = steps[0].layouts[0], Sizes(steps[0].layouts[0], (steps[0].templates[1],))
    formula, seats = layout.formulas[layout.labels.index("i")], layout.tensors[layout.number["i"]]
    ops = sizes.templates[0].operations
    mine = np.flatnonzero((ops.kind == COMPUTE) & (ops.what == layout.labels.index("i")))
    found = sizes.of(formula, mine).bytes_of(formula.results[0])
    assert seats.amounts is not None
    assert len(layout.index["t"]) > len(layout.index["a"]) == len(found)
    assert found.tolist() == (seats.unit * seats.amounts.reshape(len(found), -1).sum(axis=1)).tolist()
