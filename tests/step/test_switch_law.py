"""What a change of pipelines moves, counted by hand."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.helpers.elements import held_once
from tests.helpers.oracles import small
from tests.helpers.steps import MODEL, pipeline_plans, plan_of, rejected_mutants
from zbench.correctness.steps.mutate import KINDS
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.simulator.steps.expand import OP
from zbench.simulator.steps.play import play_layers
from zbench.step.byte_law import stated_bytes
from zbench.step.elements import ElementHolders, elements_held
from zbench.step.operations import DROP, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.parameters.switch import switch_step
from zbench.step.proof.prove import prove_step
from zbench.step.reading.read import read_step
from zbench.step.switch_law import host_link_bytes, process_bytes, switch_bytes
from zbench.step.template import Step
from zbench.step.text import step_text

FOUR = replace(MODEL, num_layers=4, num_kv_heads=4)
STATE = 2 + 12  # bytes of a parameter, its master copy and moments
GAINS = FOUR.hidden * (2 * FOUR.num_layers + 1)  # whole on every GPU that has their layer
CUT = FOUR.total_params - GAINS
OUTER = 2 * FOUR.vocab * FOUR.hidden
OF_LAYER = (CUT - OUTER) // FOUR.num_layers


def step_of(shapes: list[tuple[int, int]], zero: str = "none") -> Step:
    ranks = sum(tp * pp for tp, pp in shapes)
    return whole_step(FOUR, pipeline_plans(shapes, [[(3, 0)]], ranks), zero=zero)


@pytest.mark.parametrize("zero", ["none", "1", "3"])
def test_where_pipelines_stay_nothing_moves(zero: str) -> None:
    one = step_of([(2, 2), (1, 1), (1, 3)], zero)
    assert switch_bytes(one, one) == [(0, 0)] * 8
    plain = whole_step(FOUR, [plan_of([5, 3], 2, 4)], zero=zero)
    assert switch_bytes(plain, whole_step(FOUR, [plan_of([9], 2, 4)] * 2, zero=zero)) == [(0, 0)] * 2


def test_a_group_of_two_becomes_two_single_gpus() -> None:
    """Each lacks the half that the other has; the way back needs nothing."""
    wide, narrow = step_of([(2, 1)]), step_of([(1, 1)] * 2)
    assert switch_bytes(wide, narrow) == [(STATE * CUT // 2,) * 2] * 2
    assert switch_bytes(narrow, wide) == [(0, 0)] * 2


def test_who_lacks_an_element_asks_by_its_own_number() -> None:
    """GPU 2 lacks what 0, 1 and 3 have: it asks number 2 of these. GPU 3 lacks what 0, 1 and 2 have: number 0."""
    found = switch_bytes(step_of([(1, 1), (1, 1), (2, 1)]), step_of([(1, 1)] * 4))
    half = STATE * CUT // 2
    assert found == [(half, 0), (0, 0), (0, half), (half, half)]


def test_stages_have_other_layers() -> None:
    """Of four layers the first GPU lacks the last two and the head, the second one the first two and the embedding."""
    stages, narrow = step_of([(1, 2)]), step_of([(1, 1)] * 2)
    size = STATE * (2 * OF_LAYER + OUTER // 2 + 2 * 2 * FOUR.hidden)
    last = STATE * FOUR.hidden
    assert switch_bytes(stages, narrow) == [(size, size + last), (size + last, size)]


def test_shards_of_optimizer_state_and_parameters_move() -> None:
    """From ZeRO's stage 1 on a parameter rests in shards alone: what one GPU gets, another one gives."""
    every = [step_of(shapes, "1") for shapes in ([(1, 1)] * 4, [(2, 2)], [(2, 1), (1, 2)], [(4, 1)])]
    for before in every:
        for after in every:
            found = switch_bytes(before, after)
            sent, received = (sum(column) for column in zip(*found, strict=True))
            assert sent == received
            assert (sent > 0) == (before is not after)
            assert max(one for _, one in found) <= STATE * FOUR.total_params


@pytest.mark.parametrize("zero", ["none", "1", "3"])
def test_a_change_is_a_step_that_is_proven_and_sends_what_the_law_says(
    monkeypatch: pytest.MonkeyPatch, zero: str
) -> None:
    shapes = ([(1, 1)] * 4, [(2, 2)], [(2, 1), (1, 2)], [(4, 1)], [(1, 4)], [(1, 1), (1, 3)])
    every = [step_of(one, zero) for one in shapes]
    held = held_once(every, monkeypatch)
    for before in every:
        for after in every:
            law = switch_bytes(before, after)
            step = switch_step(held(before, before.ends), held(after, after.begins))
            if step is None:
                assert law == [(0, 0)] * 4
                continue
            prove_step(step)
            assert read_step(step_text(step)).num_operations == step.num_operations
            assert [one.get("parameters", (0, 0)) for one in stated_bytes(step)] == law


def test_what_no_gpu_has_cannot_move() -> None:
    step = step_of([(2, 1)])
    there = elements_held(step, step.ends)
    lost = ElementHolders(2, there.units, {**there.holders, ("wo", 1): {1: there.holders["wo", 1][1]}})
    with pytest.raises(ValueError, match=r"^no GPU has all of wo that GPU 0 lacks$"):
        switch_step(lost, there)


def with_hosts(step: Step, gpus_per_node: int, optimizer: int = FOUR.num_layers, updates: str = "") -> Step:
    layers = HostLayers(FOUR.num_layers, optimizer, carried=optimizer if updates else 0)
    return with_optimizer_on_hosts(step, gpus_per_node, layers, updates or "as_gradients_come")


SHAPES = ([(1, 1)] * 4, [(2, 2)], [(2, 1), (1, 2)], [(4, 1)], [(1, 4)], [(1, 1), (1, 3)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("node", "optimizer", "updates"),
    [(1, 4, ""), (2, 4, ""), (4, 4, ""), (2, 1, ""), (2, 3, ""), (1, 4, "across_steps"), (2, 2, "across_steps")],
)
def test_what_rests_in_host_memory_goes_over_gpus_to_other_nodes(
    monkeypatch: pytest.MonkeyPatch, node: int, optimizer: int, updates: str
) -> None:
    """Proven, played with the bytes of the law on NICs and links to hosts; a GPU has of two tensors of a layer at most
    on their way, and a host in the end what the next step begins with. In the text form: of every step the change to
    the one behind it, as text has no more words for one change than for another."""
    ordinary = whole_step(FOUR, [plan_of([9], 4, 4)], zero="1")
    every = [with_hosts(one, node, optimizer, updates) for one in (ordinary, *(step_of(one, "1") for one in SHAPES))]
    held = held_once(every, monkeypatch)
    for (first, before), (second, after) in product(enumerate(every), repeat=2):
        law, links = switch_bytes(before, after, node), host_link_bytes(before, after, node)
        step = switch_step(held(before, before.ends), held(after, after.begins), node)
        if step is None:
            assert law == links == [(0, 0)] * 4
            continue
        prove_step(step)
        if second == (first + 1) % len(every):
            text = step_text(step)
            assert step_text(read_step(text)) == text
        assert step.num_hosts in (0, 4 // node)  # of a change without hosts nothing is there
        stated = stated_bytes(step)
        assert [one.get("parameters", (0, 0)) for one in stated] == law
        assert over_links(step) == links
        assert node < 4 or links == [(0, 0)] * 4
        assert_processes(before, after, node, links)


def held_by(before: Step, after: Step) -> tuple[ElementHolders, ElementHolders]:
    return elements_held(before, before.ends), elements_held(after, after.begins)


def over_links(step: Step) -> list[tuple[int, int]]:
    """Bytes of every GPU to its host and from it, operation by operation."""
    layout, found = step.layouts[0], [[0, 0] for _ in range(step.num_gpus)]
    for kind, what, src, dst, cells, *_ in step.templates[0].operations.table.tolist():
        if kind == SEND and max(src, dst) >= step.num_gpus:
            (index,) = layout.tensors[what].axes
            size = int(layout.index[index].sizes[layout.lists[cells]].sum())
            found[min(src, dst)][src > dst] += size
            host = max(src, dst) - step.num_gpus
            assert min(src, dst) * step.num_hosts // step.num_gpus == host  # its own node's
    return [(sent, received) for sent, received in found]


def assert_processes(before: Step, after: Step, node: int, links: list[tuple[int, int]]) -> None:
    """Processes send host memories what GPUs' links carry, and hand over inside a node, to each other alone."""
    told = process_bytes(before, after, node)
    carried = sum(up + down for up, down in links)
    assert [sum(one.get("host", (0, 0))[way] for one in told) for way in (0, 1)] == [carried] * 2
    for begin in range(0, 4, node):
        handed = [one.get("handed_over", (0, 0)) for one in told[begin : begin + node]]
        assert sum(sent for sent, _ in handed) == sum(received for _, received in handed)
        assert node > 1 or handed == [(0, 0)]


def test_of_two_nodes_each_has_the_state_that_the_others_layers_had() -> None:
    """From two stages, a node each, to a group of two GPUs on each: counted by hand. The second node's GPUs update
    their half of a layer's slices, and have it whole; of the first node's layers its host lacks their state, 12 bytes,
    which comes through GPUs, and parameters of 2 bytes, which come from its own."""
    stages, groups = (with_hosts(step_of(one, "1"), 2) for one in ([(2, 2)], [(2, 1), (2, 1)]))
    links = host_link_bytes(stages, groups, 2)
    away = [sum(down for _, down in links[at : at + 2]) for at in (0, 2)]
    arrives = [sum(up for up, _ in links[at : at + 2]) for at in (0, 2)]
    half = (2 * OF_LAYER + OUTER // 2) // 2
    gains = {0: 2 * 2 * FOUR.hidden, 1: 2 * 2 * FOUR.hidden + FOUR.hidden}  # of the stages' layers, and the last one
    moved = [away[0] // 12, away[1] // 12]
    assert [one // 12 * 12 for one in away] == away
    assert half <= moved[0] <= half + gains[0]
    assert half <= moved[1] <= half + gains[1]
    assert arrives == [14 * moved[1], 14 * moved[0]]


@pytest.mark.parametrize("rate", [1e6, 1e9, 1e12])
@pytest.mark.parametrize("shapes", [([(2, 2)], [(1, 1)] * 4), ([(1, 4)], [(4, 1)]), ([(1, 1), (1, 3)], [(2, 2)])])
def test_a_gpu_has_no_more_on_its_way_than_in_plan_order(rate: float, shapes: tuple[Any, Any]) -> None:
    """With a link to hosts that is slower than NICs, and quicker, a GPU on each of four nodes: what is on its way from
    when it begins to come until it has left, by the clock, beside what is until it is forgotten, in plan order."""
    before, after = (with_hosts(step_of(one, "1"), 1) for one in shapes)
    step = switch_step(*held_by(before, after), 1)
    assert step is not None
    prove_step(step)
    hops, times = play_layers(step, (), cost_of_hosts(rate))
    ops, (begin, end) = step.templates[0].operations.table, hops.begin.tolist()
    starts, ends = np.full(len(ops), np.inf), np.zeros(len(ops))
    for hop in range(begin, end):
        op = int(hops.table[OP, hop])
        starts[op], ends[op] = min(starts[op], times.start[hop]), max(ends[op], times.done[hop])
    by_clock, planned = most_on_the_way(step, starts, ends), most_on_the_way(step, np.arange(len(ops)), None)
    assert (by_clock <= planned).all()
    assert planned.max() > 0


def most_on_the_way(step: Step, starts: Any, ends: Any) -> Any:
    """The most bytes of what each GPU forgets that it has at a time, of when operations start and end; None: until they
    are forgotten."""
    layout, ops, found = step.layouts[0], step.templates[0].operations.table, np.zeros(step.num_gpus)
    for gpu in range(step.num_gpus):
        events = []
        for at in np.flatnonzero((ops[:, 0] == DROP) & (ops[:, 2] == gpu)).tolist():
            what, cells = int(ops[at, 1]), layout.lists[ops[at, 4]]
            sizes = layout.index[layout.tensors[what].axes[0]].sizes
            mine = (ops[:, 0] == SEND) & (ops[:, 1] == what) & (ops[:, 4] == ops[at, 4])
            brought, left = np.flatnonzero(mine & (ops[:, 3] == gpu)), np.flatnonzero(mine & (ops[:, 2] == gpu))
            size = int(sizes[cells].sum())
            events += [(starts[brought].min(), 1, size), (at if ends is None else ends[left].max(), 0, -size)]
        there = 0
        for _, _, size in sorted(events):
            there += size
            found[gpu] = max(found[gpu], there)
    return found


def cost_of_hosts(rate: float) -> Cost:
    """Four nodes of a GPU with a link to its host of so many bytes a second."""
    one = small(4, 1)
    hosts = {"host_bandwidth": rate, "host_efficiency": 1.0, "host_latency": 1e-6, "host_memory": 1e9}
    return replace(one, cluster=replace(one.cluster, **hosts), model=FOUR)


def test_what_no_host_has_cannot_move() -> None:
    stages, groups = (with_hosts(step_of(one, "1"), 2) for one in ([(2, 2)], [(2, 1), (2, 1)]))
    there, wanted = held_by(stages, groups)
    lost = {place: runs for place, runs in there.holders["swo", 1].items() if place != 4}
    with pytest.raises(ValueError, match=r"^no host memory has all of swo that node 0 lacks$"):
        switch_step(ElementHolders(4, there.units, {**there.holders, ("swo", 1): lost}), wanted, 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_broken_change_is_rejected_where_the_unrolled_walk_says_so(seed: int) -> None:
    before, after = (with_hosts(step_of(one, "1"), 2) for one in (SHAPES[seed], SHAPES[seed + 1]))
    step = switch_step(*held_by(before, after), 2)
    assert step is not None
    assert not unrolled_fault(step)
    assert rejected_mutants(step, seed, 4 * len(KINDS)) > len(KINDS)
