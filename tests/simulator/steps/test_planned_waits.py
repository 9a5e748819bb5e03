"""Whole steps of plans that wait for more than data: rounds, and messages that a rank sends."""

import numpy as np
import pytest

import zbench
from tests.simulator.steps.test_play import LENGTHS, attention_alone
from zbench.cost.job import make_cost
from zbench.simulator.attention import programs
from zbench.simulator.clock import Free, run_hops
from zbench.simulator.steps.expand import BYTES, OP, RANK
from zbench.simulator.steps.play import play_layers, play_step
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step

KEYS = ({"wait": "published"}, {"padding": "published"}, {"wait": "published", "received_kv": "keep"})


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize(("name", "backward"), [("forward", 0), ("backward", 1)])
def test_attention_alone_waits_as_it_does_as_a_plan(keys: dict[str, str], name: str, backward: int) -> None:
    """To the last bits of a sum: seconds of messages are added in the same order."""
    found = zbench.plan(LENGTHS, cluster="a800_2x8", model="llama_3b", system="ring", **keys)
    cost, (plan,) = make_cost(found.cluster, found.model), found.plans
    timeline = run_hops(programs(plan, cost)[backward], np.zeros(16), Free.zero(cost.cluster))
    step = attention_alone(whole_step(found.model, found.plans, 1, "none"), name)
    assert play_step(step, found.plans, cost).seconds == pytest.approx(timeline.done.max(), rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_waits_of_rounds_are_between_operations_of_one_pass_of_attention(recompute: str) -> None:
    """A backward that makes its forward again has two, of which the second begins when its own data is there."""
    found = zbench.plan(LENGTHS, cluster="a800_2x8", model="llama_3b", system="ring", wait="published")
    cost = make_cost(found.cluster, found.model)
    step = whole_step(found.model, found.plans, 1, "1", recompute=recompute)
    prove_step(step)
    seconds = play_step(step, found.plans, cost).seconds
    (plan,) = found.plans
    assert seconds > play_step(step, (plan.with_(in_rounds=False),), cost).seconds


@pytest.mark.parametrize("stays", [False, True])
def test_linear_modules_wait_for_what_their_gpu_sends(stays: bool) -> None:
    """The first compute after attention, in the forward and in the backward of every layer that is played."""
    run_ahead = "published" if stays else "overlapped"
    found = zbench.plan(LENGTHS, cluster="a800_2x8", model="llama_3b", system="ring", run_ahead=run_ahead)
    cost = make_cost(found.cluster, found.model)
    step = whole_step(found.model, found.plans, 1, "1")
    program, timeline = play_layers(step, found.plans, cost)
    late = 0
    for number, one in enumerate(program.instances):
        if one.variant.of.template.name not in ("forward", "backward"):
            continue
        mine = np.arange(program.begin[number], program.begin[number + 1])
        ops = one.variant.ops[program.table[OP, mine]]
        formulas = one.variant.of.layout.formulas
        visible = np.array([one.relation is not None and one.relation[0] == "visible" for one in formulas])
        compute = ops[:, 0] == COMPUTE
        attend = compute & visible[np.where(compute, ops[:, 1], 0)]
        message = (ops[:, 8] == QUEUES.index("attention")) & (program.table[BYTES, mine] > 0)
        last = np.flatnonzero(attend).max()
        for gpu in range(16):
            sent = mine[message & (ops[:, 2] == gpu)]
            after = mine[compute & ~attend & (ops[:, 2] == gpu) & (np.arange(len(mine)) > last)]
            assert (program.table[RANK, after] == gpu).all()
            late += timeline.done[sent].max() > timeline.start[after].min()
    assert (late == 0) == stays
