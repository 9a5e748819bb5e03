"""Where seconds go: parts sum to the step, by hand, by a plain account of every wait, and with layers left out."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from tests.helpers.steps import EXPERTS, MODEL, plan_of
from tests.simulator.steps.test_small_steps import GATHER, OFFLOAD, cluster, computes, feed_forward, layers, played
from tests.simulator.steps.test_stages import cluster as slow_cluster
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.links import Domain
from zbench.interfaces.result import SECONDS_FOR
from zbench.plans.plan import Plan
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.expand import OP, RANK
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.play import PlayedStep, play_layers, play_some_layers, play_step
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step

Case = tuple[Step, tuple[Plan, ...], Cost]
LENGTHS = (9000, 4100, 1500, 900, 700, 300, 300, 77)
WHOLE = ("parameters", "gradients", "experts", "stages", "host")  # of which a gap is all, whoever was late


@cache
def planned(system: str, recompute: str = "none", tensor_parallel: int = 1) -> Case:
    found = zbench.plan(LENGTHS, cluster="a800_2x8", model="llama_3b", system=system)
    model = replace(found.model, sharding="zero3", recompute=recompute, tensor_parallel=tensor_parallel)
    step = whole_step(model, found.plans, 1, "3", 1, recompute)
    return step, found.plans, make_cost(found.cluster, model)


@cache
def small(name: str) -> Case:
    """Steps of 26 layers on slow links: stages, experts, groups of two GPUs; 12 of a stage are fewer than there are."""
    model, ranks, stages, degree, zero, experts = {
        "stages": (MODEL, 2, 2, 1, "1", 1),
        "experts": (EXPERTS, 2, 1, 1, "3", 2),
        "groups": (MODEL, 2, 1, 2, "1", 1),
    }[name]
    of = replace(model, num_layers=26 * stages, hidden=64)
    plans = tuple(plan_of([96 + 8 * n, 48, 40 - 8 * n], ranks, 4 // degree, first=3 * n) for n in range(2))
    step = whole_step(of, plans, degree, zero, 1, "none", ExpertParallel(experts, 1, 1.0), stages)
    return step, plans, Cost(slow_cluster(stages, ranks * degree, 1e9), of)


def slowed(case: Case) -> Case:
    """A case on devices that compute half as fast beside messages."""
    step, plans, cost = case
    device = replace(cost.cluster.device, compute_slowdown=2.0)
    return step, plans, replace(cost, cluster=replace(cost.cluster, device=device))


CASES = {
    "zeppelin, slowed by messages": lambda: slowed(planned("zeppelin")),
    "zeppelin": lambda: planned("zeppelin"),
    "ring, all made again": lambda: planned("ring", "full"),
    "ulysses": lambda: planned("ulysses"),
    **{name: lambda name=name: small(name) for name in ("stages", "experts", "groups")},
}


@cache
def with_layers(name: str, kept: int) -> PlayedStep:
    """A case with at most so many layers of each stage; 0: all."""
    step, plans, cost = CASES[name]()
    return play_some_layers(step, plans, cost, kept or step.num_layers)


def closes(found: PlayedStep) -> None:
    """Every GPU's parts sum to the step, none is below 0, and computing is what its queue is busy with."""
    assert set(found.spent) == set(SECONDS_FOR)
    every = np.array(list(found.spent.values()))
    assert every.min() >= 0
    assert np.abs(every.sum(axis=0) - found.seconds).max() < 1e-12 * found.seconds
    computed = sum(found.spent[name] for name in ("attention", "linear", "optimizer", "recomputation"))
    busy = sum(found.busy[name] for name in ("attend", "compute", "optimizer"))
    assert computed == pytest.approx(busy, rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_parts_sum_to_the_step(name: str) -> None:
    """To rounding, with all layers and where some are left out."""
    for kept in (6, 12, 0):
        closes(with_layers(name, kept))


@pytest.mark.parametrize("name", CASES)
def test_layers_that_are_left_out_are_in_the_account(name: str) -> None:
    """Twelve layers of a stage, or 24 where they have not settled, against all: each part of each GPU within half a per
    cent of the step."""
    some, every = with_layers(name, 12), with_layers(name, 0)
    some = some if some.settled else with_layers(name, 24)
    for part in SECONDS_FOR:
        off = np.abs(some.spent[part] - every.spent[part]).max()
        assert off < 0.005 * every.seconds, part


def test_what_is_made_again_is_apart() -> None:
    """With a full recomputation, a forward of each layer and its attention; without one, nothing."""
    full, none = (play_step(*planned("ring", level)) for level in ("full", "none"))
    assert not none.spent["recomputation"].any()
    assert full.spent["attention"] == pytest.approx(none.spent["attention"], rel=1e-9)
    assert full.spent["linear"] == pytest.approx(none.spent["linear"], rel=1e-9)
    more = sum(full.busy[name] - none.busy[name] for name in ("attend", "compute"))
    assert full.spent["recomputation"] == pytest.approx(more, rel=1e-9)


def test_what_messages_make_computes_take_longer_is_apart() -> None:
    """On each GPU's timeline, compute by compute; without a slowdown there is none."""
    step, plans, cost = CASES["zeppelin, slowed by messages"]()
    program, timeline = play_layers(step, plans, cost)
    producers = np.repeat(np.arange(len(timeline.start)), np.diff(program.graph.offsets))
    assert (timeline.done[producers] <= timeline.start[program.graph.followers]).all()  # an end is told once
    computes = program.kinds == COMPUTE
    more = (timeline.release - timeline.start - program.graph.busy)[computes]
    wanted = np.bincount(program.table[RANK, computes], more, step.num_gpus)
    found = with_layers("zeppelin, slowed by messages", 0).spent["slowed"]
    assert found == pytest.approx(wanted, rel=1e-9)
    assert found.min() > 0
    assert not with_layers("zeppelin", 0).spent["slowed"].any()


@pytest.mark.parametrize("name", CASES)
def test_gaps_are_those_of_a_plain_account(name: str) -> None:
    """Of all layers, gap by gap: who brought the last operand, and since when it could have come."""
    step, plans, cost = CASES[name]()
    program, timeline = play_layers(step, plans, cost)
    found = with_layers(name, 0).spent
    wanted = {part: np.zeros(step.num_gpus) for part in SECONDS_FOR}
    for gpu, part, seconds in gaps(program, timeline):
        wanted[part][gpu] += seconds
    for part in SECONDS_FOR:
        if part.startswith("waiting"):
            assert found[part] == pytest.approx(wanted[part], rel=1e-9, abs=1e-12), part


def gaps(program: HopByHop, timeline: Timeline) -> Iterator[tuple[int, str, float]]:
    """Yields (GPU, part, seconds) of every gap before a compute, told of sets of predecessors."""
    of = np.repeat(np.arange(len(program.instances)), np.diff(program.begin)).tolist()
    needs: list[list[int]] = [[] for _ in of]
    graph = program.graph
    for hop in range(len(of)):
        for follower in graph.followers[graph.offsets[hop] : graph.offsets[hop + 1]].tolist():
            needs[follower].append(hop)
    members: dict[tuple[int, int], list[int]] = {}
    for hop, instance in enumerate(of):
        members.setdefault((instance, int(program.table[OP, hop])), []).append(hop)
    last = np.zeros(1 + int(program.table[RANK].max()))
    for hop in np.flatnonzero(program.kinds == COMPUTE).tolist():
        gpu, begin = int(program.table[RANK, hop]), float(timeline.start[hop])
        since, last[gpu] = float(last[gpu]), timeline.release[hop]
        if begin <= since:
            continue
        bringer = max(needs[hop], key=lambda one: timeline.done[one])
        key = of[bringer], int(program.table[OP, bringer])
        variant = program.instances[key[0]].variant
        purpose = QUEUES[variant.ops[key[1], 8]]
        if purpose in WHOLE:
            yield gpu, f"waiting_{purpose}", begin - since
            continue
        outside = {one for member in members[key] for one in needs[member]} - set(members[key])
        could = max([since, *(min(float(timeline.done[one]), begin) for one in outside)])
        yield gpu, "waiting_rank", could - since
        yield gpu, "waiting_link", begin - could


def test_a_collective_that_all_wait_for_is_the_link_s() -> None:
    """Gather, matmuls, reduction one after another, on GPUs that are alike: nobody is late."""
    tp = "  tensor_parallel:"
    middle = "".join(computes("*", gpu) for gpu in range(8))
    text = feed_forward(1, f"{tp} gather m[*] to 0-7\n{middle}{tp} reduce b[*] of 0-7\n")
    found = played(text, cluster(1, 8))
    closes(found)
    assert found.spent["waiting_link"] == pytest.approx(2 * GATHER, rel=1e-6)
    assert found.spent["linear"] == pytest.approx(found.seconds - 2 * GATHER, rel=1e-6)
    assert not found.spent["waiting_rank"].any()


@pytest.mark.parametrize("slow", [False, True])
def test_parameters_that_come_late_are_waited_for_as_such(slow: bool) -> None:
    """Forty layers, one gathered ahead: the first gather is waited for, and all of them where links are slow."""
    rate = 500e9 / (4 if slow else 1)
    of = cluster(2, 4, 1e15, 1e15, domains=(Domain("pair", 2, rate, 1.0, 0.0),))
    matmul, gather = 2 * 1024 * 8192 * 16384 / 650e12, 8192 * 16384 / rate
    found = played(layers(40, "pair", 16384), of)
    closes(found)
    wanted = 40 * gather - 39 * matmul if slow else gather
    assert found.spent["waiting_parameters"] == pytest.approx(wanted, rel=1e-2)
    others = [name for name in SECONDS_FOR if name not in ("linear", "waiting_parameters")]
    assert sum(found.spent[name].max() for name in others) < 1e-3 * found.seconds


def test_what_comes_from_the_host_is_waited_for_as_such() -> None:
    of = cluster(1, 1, host_bandwidth=20e9, host_efficiency=1.0, host_latency=0.0)
    found = played(OFFLOAD, of)
    closes(found)
    assert found.spent["waiting_host"] == pytest.approx(6 * 0.4, rel=1e-6)


HAND_OVER = """step of 0 layers on 2 GPUs and 0 host memories
layout
  index t of batch: 4096 1024
  index f: 8192
  tensor m[t]: copy, none, 16384 bytes, home 0 1
  tensor u[t]: copy, none, 16384 bytes, home 0 1
  tensor x: copy, none, 1 bytes, home 0
  tensor y[t]: copy, none, 1 bytes, home 1 1
  tensor w[f]: state, none, 16384 bytes, home 0
  formula m[t] = draw(x)
  formula u[t] = m[t] w[*]
  formula y[t] = use(u[t])
template all of layout 0
  makes m u y
  needs x at 0-1
  needs w[*] at 0-1
  leaves x at 0-1
  leaves w[*] at 0-1
  compute: compute m[0] at 0
  compute: compute m[1] at 1
  compute: compute u[0] at 0
  compute: compute u[1] at 1
  attention: send u[0] 0 -> 1
  compute: compute y[0] at 1
  compute: compute y[1] at 1
play all for layer 0
begins x at 0-1
begins w[*] at 0-1
ends x at 0-1
ends w[*] at 0-1
"""


def test_a_message_is_late_by_its_sender_and_by_its_link() -> None:
    """GPU 1 has a matmul of 1,024 tokens and waits for what GPU 0 makes of 4,096: for three times as long as its own
    matmul took nothing is sent, then 64 MiB are on the link; meanwhile GPU 0 has nothing left to do."""
    found = played(HAND_OVER, cluster(1, 2))
    closes(found)
    matmul, link = 2 * 1024 * 8192 * 8192 / 650e12, 4096 * 16384 / 360e9
    assert found.seconds == pytest.approx(4 * matmul + link, rel=1e-6)
    for part, wanted in (
        ("linear", (4 * matmul, matmul)),
        ("waiting_rank", (0, 3 * matmul)),
        ("waiting_link", (0, link)),
        ("end", (link, 0)),
    ):
        assert found.spent[part] == pytest.approx(wanted, rel=1e-6, abs=1e-12), part
