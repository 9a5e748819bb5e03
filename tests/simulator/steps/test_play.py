"""Steps on the clock: attention alone is played as plans are."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.planned.step import StepPlans
from zbench.simulator.layers import ClockState, Layers
from zbench.simulator.simulate import programs
from zbench.simulator.steps.play import play_step
from zbench.step.operations import QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.template import Instance, Step

LENGTHS = (9000, 4100, 1500, 900, 700, 300, 300, 77)


@cache
def planned(system: str, cluster: str = "a800_2x8") -> tuple[StepPlans, Cost]:
    found = zbench.plan(LENGTHS, cluster=cluster, model="llama_3b", system=system)
    return found, make_cost(found.cluster, found.model)


def attention_alone(step: Step, name: str) -> Step:
    """One layer of a template, with attention's operations alone."""
    at = next(number for number, one in enumerate(step.templates) if one.name == name)
    template, layout = step.templates[at], step.layouts[0]
    ops = template.operations
    mine = [n for n in template.formulas if layout.formulas[n].terms[0].function in ("attend", "attend_d")]
    kept = ((ops.kind == 0) & np.isin(ops.what, mine)) | (ops.queue == QUEUES.index("attention"))
    alone = replace(template, operations=ops.take(np.flatnonzero(kept)), formulas=tuple(mine))
    return replace(step, templates=(alone,), order=(Instance(0, 0),))


@pytest.mark.parametrize("system", ["ring", "zeppelin", "ulysses"])
@pytest.mark.parametrize(("name", "backward"), [("forward", 0), ("backward", 1)])
def test_attention_alone_takes_what_it_takes_as_a_plan(system: str, name: str, backward: int) -> None:
    """To the last bits of a sum: seconds of messages are added in the same order."""
    found, cost = planned(system)
    (plan,) = found.plans
    state = ClockState.zero(cost.cluster)
    timeline = Layers(programs(plan, cost)[backward], np.zeros(16), 1).one(state)
    step = attention_alone(whole_step(found.model, found.plans, 1, "none"), name)
    played = play_step(step, found.plans, cost)
    assert played.seconds == pytest.approx(timeline.done.max(), rel=1e-12)
    assert played.seconds > 1e-4
