"""Steps on the clock: attention alone is played as plans are."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from tests.helpers.arithmetic import arithmetic
from zbench.cost import gathers
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.overlap import BACKWARD, StepOverlap
from zbench.planned.step import StepPlans
from zbench.simulator.attention import playable, programs
from zbench.simulator.clock import Free, run_hops
from zbench.simulator.estimate.carried import carried_bytes
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.steps import play
from zbench.simulator.steps.expand import CLASS, OP
from zbench.simulator.steps.play import play_layers, play_step
from zbench.step.operations import COMPUTE, GATHER, QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Instance, Step

FAST = 1e6  # times: links that cost nothing to speak of
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
    timeline = run_hops(programs(plan, cost)[backward], np.zeros(16), Free.zero(cost.cluster))
    step = attention_alone(whole_step(found.model, found.plans, 1, "none"), name)
    played = play_step(step, found.plans, cost)
    assert played.seconds == pytest.approx(timeline.done.max(), rel=1e-12)
    assert played.seconds > 1e-4


@pytest.mark.parametrize(("system", "zero"), [("zeppelin", "3"), ("ring", "1")])
def test_without_links_a_step_takes_what_it_takes_as_arithmetic(system: str, zero: str) -> None:
    """All work is that of planners' estimate: with links that cost nothing, and no latencies, what is left are the
    embedding's rows and the head's norm, which are charged here alone, and ranks that meet at every layer's gathers."""
    found, cost = planned(system)
    one = cost.cluster
    quick = replace(
        one,
        nic_bandwidth=FAST * one.nic_bandwidth,
        nvlink_bandwidth=FAST * one.nvlink_bandwidth,
        nic_latency=0,
        nvlink_latency=0,
    )
    free = make_cost(quick, replace(found.model, sharding=f"zero{zero}"))
    step = whole_step(found.model, found.plans, 1, zero)
    prove_step(step)
    played = play_step(step, found.plans, free)
    assert played.settled
    assert played.seconds == pytest.approx(StepEstimate(free).seconds(found.plans), rel=1e-3)
    attention, linear = arithmetic(found.plans, free)
    assert played.busy["compute"] + played.busy["optimizer"] == pytest.approx(
        linear + free.optimizer_seconds(), rel=1e-2
    )
    assert played.busy["attend"] == pytest.approx(attention, rel=1e-9)


@pytest.mark.parametrize("window", [0, 1])
def test_parameters_that_stay_are_gathered_in_the_first_forward_no_further_ahead_than_the_window(window: int) -> None:
    """ZeRO-1, two micro-batches: one gather of each layer, which begins when the layer before the last one is done;
    with a window of 0 when the last one is."""
    found, cost = planned("ring")
    plans = (*found.plans, *found.plans)
    step = whole_step(found.model, plans, 1, "1", window)
    gathering = [one.name for one in step.templates if (one.operations.kind == GATHER).any()]
    assert gathering == ["embedding.0", "forward.0", "head.0"]
    prove_step(step)
    program, timeline = play_layers(step, plans, cost)
    ended, begun = {}, {}
    for number, one in enumerate(program.instances):
        mine = np.arange(program.begin[number], program.begin[number + 1])
        if one.variant.of.template.name != "forward.0":
            continue
        gathers = mine[(program.kinds[mine] == GATHER) & (program.table[CLASS, mine] >= 0)]
        begun[one.layer + window] = timeline.start[gathers].min(initial=np.inf)
        made = one.variant.ops[program.table[OP, mine], 1]  # b reads the last parameter of a layer
        last_use = (program.kinds[mine] == COMPUTE) & (made == one.variant.of.layout.labels.index("b"))
        ended[one.layer] = timeline.done[mine[last_use]].max()
    last = found.model.num_layers - 1
    assert all(begun[layer] >= ended[layer - 1 - window] - 1e-12 for layer in range(2, last + 1))
    if window:
        assert all(begun[layer] < ended[layer - 1] for layer in range(2, last + 1))  # beside the layer before
    assert play_step(step, plans, cost).seconds == pytest.approx(timeline.done.max(), rel=2e-3)


@pytest.mark.parametrize("window", [0, BACKWARD])
def test_without_a_window_no_parameter_is_gathered_before_the_layer_before_has_used_its_own(window: int | str) -> None:
    """ZeRO-3, forward: each layer's gathers after the last use in the layer before, so the step is slower; backward
    likewise, if the window is not its own."""
    found, cost = planned("ring")
    step = whole_step(found.model, found.plans, 1, "3", StepOverlap(window))
    prove_step(step)
    program, timeline = play_layers(step, found.plans, cost)
    ended, early = {"forward": 0.0, "backward": 0.0}, 0
    for number, one in enumerate(program.instances):
        if (name := one.variant.of.template.name) not in ended:
            continue
        mine = np.arange(program.begin[number], program.begin[number + 1])
        begun = timeline.start[mine[(program.kinds[mine] == GATHER) & (program.table[CLASS, mine] >= 0)]]
        computed = mine[program.kinds[mine] == COMPUTE]
        if name == "forward":  # b reads the last parameter of a layer
            made = one.variant.ops[program.table[OP, computed], 1]
            computed = computed[made == one.variant.of.layout.labels.index("b")]
        if name == "forward" or window == 0:
            assert begun.min(initial=np.inf) >= ended[name] - 1e-12
        elif len(begun):  # of the layer that is next, while this one is computed
            early += begun.min() < timeline.done[computed].max()
        ended[name] = timeline.done[computed].max()
    assert min(ended.values()) > 0
    assert early == (0 if window == 0 else found.model.num_layers - 1)
    seconds = [
        play_step(whole_step(found.model, found.plans, 1, "3", StepOverlap(one)), found.plans, cost).seconds
        for one in (1, BACKWARD, 0)
    ]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[1] < seconds[2]


@pytest.mark.parametrize("system", ["zeppelin", "ring"])
def test_bytes_are_those_of_plans_and_of_collectives(system: str) -> None:
    """Attention's to the byte. The embedding's table and the head's matrix are gathered once here, and twice where all
    parameters are gathered for a forward and again for a backward."""
    found, cost = planned(system)
    model = replace(found.model, sharding="zero3")
    of = make_cost(cost.cluster, model)
    played = play_step(whole_step(model, found.plans, 1, "3"), found.plans, of)
    wanted = sum(carried_bytes(part, of)[0] for plan in found.plans for part in playable(plan, of))
    assert (played.nic_tx["attention"] == wanted).all()
    assert played.nic_tx["attention"].any() or system == "zeppelin"
    size = float(model.total_params)
    gathered, reduced = (gathers.nic_bytes(of, one * size) for one in (model.element_bytes, GRADIENT_BYTES))
    tables = 2 * model.head_params * model.element_bytes * 1 / 2 / 4
    assert played.nic_tx["parameters"] == pytest.approx(np.full(8, 2 * gathered - tables), rel=1e-5)
    assert played.nic_tx["gradients"] == pytest.approx(np.full(8, reduced), rel=1e-5)


def test_memory_is_what_arithmetic_says_and_what_it_leaves_out() -> None:
    """Arithmetic has the shards of all gradients from the start; the account's fullest moment is at the head, when none
    is there but the head's own, which both have whole on every GPU."""
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3"))
    played = play_step(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
    gradients = GRADIENT_BYTES * of.model.total_params // 16
    assert played.memory.peak == pytest.approx(peak_bytes(found.plans, of) - gradients, rel=0.02)
    assert sum(played.memory.held.values()).tolist() == played.memory.peak.tolist()
    full = replace(of.model, recompute="full")
    again = play_step(whole_step(full, found.plans, 1, "3", recompute="full"), found.plans, make_cost(of.cluster, full))
    assert (again.memory.peak < played.memory.peak).all()
    borders = (full.num_layers + 1) * 2 * full.hidden * found.plans[0].tokens_per_rank
    assert played.memory.held["x"].tolist() == borders.tolist()


def test_memory_of_a_window_of_two_layers() -> None:
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3"))
    gathered = []
    for window in (1, 2):
        full = replace(of.model, recompute="full")
        step = whole_step(full, found.plans, 1, "3", window, "full")
        memory = play_step(step, found.plans, make_cost(of.cluster, full)).memory
        gathered.append(memory.peak.max())
    layer = of.model.layer_params * of.model.element_bytes
    assert 0.75 * layer < gathered[1] - gathered[0] < layer


@pytest.mark.parametrize(
    ("system", "layers", "sizes"), [("ring", 26, 1), ("ulysses", 26, 1), ("magi_dispatch", 26, 3), ("ulysses", 10, 1)]
)
def test_where_layers_do_not_settle_all_are_played(
    system: str, layers: int, sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring's are alike in 12; Ulysses' in neither 12 nor 24, but repeat in 12; MagiAttention's do neither, so all 26
    are played. Ten are one program, not three."""
    found, cost = planned(system)
    model = replace(found.model, sharding="zero3", num_layers=layers)
    step, of = whole_step(model, found.plans, 1, "3"), make_cost(cost.cluster, model)
    _, timeline = play_layers(step, found.plans, of)
    count, run = [], play.run_unless
    monkeypatch.setattr(play, "run_unless", lambda *given: count.append(1) or run(*given))
    played = play_step(step, found.plans, of)
    assert played.settled
    assert len(count) == sizes
    assert (played.seconds == timeline.done.max()) == (sizes > 1 or layers == 10)
    assert played.seconds == pytest.approx(timeline.done.max(), rel=2e-3 if system == "ring" else 1e-12)
