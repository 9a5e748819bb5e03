"""Inputs or activations in host memory where layers are in stages, of two kinds, or some of them recomputed: proven,
exact, in order across micro-batches, and refused where there is no room."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import MODEL, execute, fault, pipeline_plans, plan_of, rejected_mutants
from tests.step.test_kept_on_hosts import HOST, HOST_QUEUE, hops_of
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_layers, play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import check_host_room, sent_to_hosts, with_host_memory
from zbench.step.passes.memory.kept_on_hosts import with_kept_on_hosts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.template import Step

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4)
SIX = replace(FIVE, num_layers=6)
EXPERTS = replace(FIVE, ffn_hidden=4, num_experts=4, experts_per_token=2, dense_layers=2, dense_ffn_hidden=10)
WAYS = [("full", False), ("none", True), ("selective", True), ("full", True), ("none", False)]


def judged(
    step: Step, plans: list, model: Model, gpus_per_node: int, degree: int = 1, how: ExpertParallel = TOGETHER
) -> int:
    """The bytes that a step's copies send, all together, of a step that is right."""
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, how) < 1e-12
    assert is_read_as_written(step)
    moved = [one.get("host", (0, 0)) for one in stated_bytes(step)]
    sent, received = (sum(column) for column in zip(*moved, strict=True))
    assert sent == received >= 2 * sent_to_hosts(step, gpus_per_node)[0].sum()
    return sent


@pytest.mark.parametrize(("level", "activations"), WAYS)
@pytest.mark.parametrize(
    ("stages", "degree", "gpus_per_node", "layers", "of_stages"),
    [
        (2, 1, 2, (5, 5, 5), [2, 3]),  # a stage is a node
        (3, 1, 4, (5, 1), [1, 2, 2]),  # of each micro-batch others; a node has two stages
        (2, 2, 3, (1, 0, 2, 5), [2, 3]),  # nodes that no stage begins with
    ],
)
def test_stages_are_exact(
    level: str,
    activations: bool,
    stages: int,
    degree: int,
    gpus_per_node: int,
    layers: tuple[int, ...],
    of_stages: list,
) -> None:
    plans = [plan_of([9, 2], 2, 4 // degree, first=2 * at) for at in range(len(layers))]
    plain = whole_step(FIVE, plans, degree, "1", 1, level, stages=stages)
    step = with_kept_on_hosts(plain, gpus_per_node, layers, activations)
    sent = judged(step, plans, FIVE, gpus_per_node, degree)
    waiting = [sum(min(one, count - activations) for count in of_stages) for one in layers]
    per_layer = 11 * FIVE.hidden * FIVE.element_bytes
    if not activations:
        assert sent == 2 * sum(waiting) * per_layer
    assert (sent > 2 * sum(waiting) * per_layer) == (activations and level != "full")
    assert sent_to_hosts(step, 99)[1].tolist() == [[one] for one in waiting]


def test_each_gpu_of_stages_has_host_memory_of_its_own() -> None:
    plans = [plan_of([9, 2], 2, 4, first=2 * at) for at in range(2)]
    step = with_kept_on_hosts(whole_step(FIVE, plans, 1, "1", 1, "full", stages=2), 2, [5, 5])
    assert (step.num_hosts, step.num_places) == (4, 8)
    moved = {one.name: set(zip(one.operations.src, one.operations.dst, strict=True)) for one in step.templates}
    assert {(0, 4), (1, 5)} <= moved["forward.0"]
    assert moved["send_dx.0"] >= {(4, 0), (5, 1)}
    assert step.where(2, 3)[[0, 4]].tolist() == [2, 6]


def test_templates_of_micro_batches_that_are_alike_have_the_same_operations() -> None:
    plans = [plan_of([9, 2], 2, 4, first=2 * at) for at in range(3)]
    step = with_kept_on_hosts(whole_step(FIVE, plans, 1, "none", 1, "none", stages=2), 2, [5, 5, 1], True)
    assert step.same_layouts == (0, 0, 0)
    forwards = [one.operations for one in step.templates if one.name.split(".")[0].endswith("forward")]
    with_copies = {id(one) for one in forwards if (one.queue == HOST_QUEUE).any()}
    assert len(with_copies) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("level", "activations"), WAYS)
@pytest.mark.parametrize("layers", [6, 1])
def test_pipelines_of_plans_are_exact(level: str, activations: bool, layers: int) -> None:
    """Side by side: of two GPUs in two stages, one in three, and one."""
    plans = pipeline_plans([(2, 2), (1, 3), (1, 1)], [[(9, 0), (2, 1), (3, 2)], [(4, 0), (5, 1)]], 8)
    step = with_kept_on_hosts(whole_step(SIX, plans, 1, "1", 1, level), 4, [layers] * 5, activations)
    judged(step, plans, SIX, 4)
    stages = [(3, 3), (3, 3), (2, 2, 2), (2, 2, 2), (6,)]
    waiting = [sum(min(layers, count - activations) for count in one) for one in stages]
    assert sent_to_hosts(step, 99)[1].tolist() == [[one] for one in [*waiting, 0]]  # nothing across pipelines


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("level", "activations"), WAYS)
@pytest.mark.parametrize(("stages", "layers"), [(1, 5), (1, 3), (1, 2), (2, 5), (3, 1)])
def test_dense_layers_before_others_are_exact(level: str, activations: bool, stages: int, layers: int) -> None:
    """A layer of experts sends, and brings, what a dense one before it keeps."""
    plans, how = [plan_of([9, 2], 2, 4, first=2 * at) for at in range(2)], ExpertParallel(2, 1)
    step = with_kept_on_hosts(whole_step(EXPERTS, plans, 1, "1", 1, level, how, stages), 2, [layers] * 2, activations)
    judged(step, plans, EXPERTS, 2, how=how)
    if (level, activations, stages, layers) == ("none", True, 1, 5):
        layout, names = step.layouts[0], defaultdict(set)
        for one in step.templates:
            moved = one.operations.what[one.operations.queue == HOST_QUEUE]
            names[one.name] = {layout.tensors[what].name for what in moved.tolist()}
        assert "uf" in names["dense_forward.0"] & names["offloaded_first_forward.0"] & names["dense_backward.0"]
        assert "u" in names["forward.0"] - names["offloaded_first_forward.0"]
        assert "uf" not in names["forward.0"] | names["backward.0"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["selective", "full"])
@pytest.mark.parametrize(("stages", "again"), [(1, (2,)), (1, (4,)), (2, (1, 2)), (2, (2, 0))])
@pytest.mark.parametrize("layers", [5, 2, 1])
def test_layers_of_which_some_are_recomputed_are_exact(
    level: str, stages: int, again: tuple[int, ...], layers: int
) -> None:
    plans = [plan_of([9, 2], 2, 4, first=2 * at) for at in range(2)]
    plain = whole_step(FIVE, plans, 1, "1", 1, SomeLayers(level, again), stages=stages)
    judged(with_kept_on_hosts(plain, 2, [layers] * 2, True), plans, FIVE, 2)


@pytest.mark.parametrize("layers", [5, 3, 1])
@pytest.mark.parametrize("again", [1, 2, 4])
def test_optimizer_state_beside_layers_of_which_some_are_recomputed(again: int, layers: int) -> None:
    """CPUs update a layer behind its backward, whatever kind of layer is before it."""
    model = replace(FIVE, offload="activations_and_optimizer")
    plans = [plan_of([9, 2], 2, 4, first=2 * at) for at in range(2)]
    plain = whole_step(model, plans, 1, "1", 1, SomeLayers("selective", (again,)))
    step = with_host_memory(plain, model, 2, [layers, 2])
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, model) < 1e-12


def test_what_is_wrong_is_found() -> None:
    plans = [plan_of([8], 2, 4, first=at) for at in range(2)]
    step = with_kept_on_hosts(whole_step(FIVE, plans, 1, "1", 1, "none", stages=2), 2, [5, 5], True)
    assert rejected_mutants(step, 3) > 8
    order = list(step.order)
    late = next(at for at, one in enumerate(order) if step.templates[one.template].name == "backward.0")
    order[late], order[late + 1] = order[late + 1], order[late]
    with pytest.raises(StepError, match=r"^instance \d+ \(template "):
        prove_step(replace(step, order=tuple(order)))


@pytest.mark.parametrize("layers", [4, 2, 1])
@pytest.mark.parametrize("level", ["none", "selective"])
def test_a_gpu_has_a_layer_of_each_micro_batch_and_one_more(level: str, layers: int) -> None:
    """Of stages of four layers, of which three, two or one wait on hosts; four micro-batches."""
    model = replace(FIVE, num_layers=8, offload="activations")
    plans = [plan_of([400], 2, 4, first=at) for at in range(4)]
    cost = replace(small(2, 2), cluster=replace(small(2, 2).cluster, **HOST), model=model)
    step = with_kept_on_hosts(whole_step(model, plans, 1, "1", 1, level, stages=2), 2, [layers] * 4, True)
    found = step_memory(StepParts(step, plans, cost))
    each, away = 200 * model.head_dim * model.num_heads * model.element_bytes, min(layers, 3)
    under_way = [2, 2, 1, 1]
    assert found.held["q"][:4].tolist() == [(one * (4 - away) + (away == 3)) * each for one in under_way]
    of_host = sent_to_hosts(step, 2)[0][0] // 2  # of each GPU's part
    assert found.peak[4:].tolist() == [one * of_host[gpu // 2] for gpu, one in enumerate(under_way)]


@pytest.mark.parametrize("rate", [1e6, 1e9, 1e12])
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 5)])
def test_no_gpu_has_more_than_the_account_however_slow_its_link_is(rate: float, stages: int, batches: int) -> None:
    """Layers' activations on a GPU, from when their forward begins or they are brought to when they are sent or had
    their backward: as many as micro-batches are under way, and one more. And a step of which layers are left out takes
    as long as all of it."""
    model = replace(FIVE, num_layers=4 * stages, offload="activations")
    plans, link = [plan_of([400], 1, 4, first=at) for at in range(batches)], {**HOST, "host_bandwidth": rate}
    cost = replace(small(1, stages), cluster=replace(small(1, stages).cluster, **link), model=model)
    step = with_kept_on_hosts(whole_step(model, plans, 1, "1", 1, "none", stages=stages), stages, [4] * batches, True)
    hops, times = play_layers(step, plans, cost)
    begun, over = defaultdict(dict), defaultdict(dict)  # by GPU, of (whether forward, micro-batch, layer)
    for hop, name, layer, gpu, kind in hops_of(step, hops):
        what, _, batch = name.partition(".")
        if kind == "compute" and what in ("forward", "backward"):
            key, start, done = (what == "forward", batch, layer), float(times.start[hop]), float(times.done[hop])
            if what == "forward":
                begun[gpu][key] = min(begun[gpu].get(key, np.inf), start)
            over[gpu][key] = max(over[gpu].get(key, 0.0), done)
    for hop, name, layer, gpu, kind in hops_of(step, hops):
        batch = name.partition(".")[2]
        if kind == "send":
            over[gpu][True, batch, layer - 1] = max(over[gpu][True, batch, layer - 1], float(times.done[hop]))
        elif kind == "bring":
            key = False, batch, layer - 1
            begun[gpu][key] = min(begun[gpu].get(key, np.inf), float(times.start[hop]))
    for gpu in range(stages):
        for (forward, batch, layer), start in list(begun[gpu].items()):
            if forward and layer % 4 == 3:  # a stage's last layer stays
                over[gpu][forward, batch, layer] = over[gpu].pop((False, batch, layer))
            assert over[gpu][forward, batch, layer] > start
        assert begun[gpu].keys() == over[gpu].keys()
        moments = [(at, 1) for at in begun[gpu].values()] + [(at, -1) for at in over[gpu].values()]
        most = np.cumsum([change for _, change in sorted(moments)]).max()
        assert most == min(stages - gpu, batches) + 1
    assert play_step(step, plans, cost).seconds == pytest.approx(float(times.done.max()), rel=1e-9)


def test_what_cannot_be_is_one_sentence() -> None:
    """Parameters on hosts in pipelines; layers that no stage has, and stages that keep all."""
    plans = pipeline_plans([(2, 1), (1, 2)], [[(9, 0), (2, 1)]], 4)
    cluster, batch = replace(small(1, 4).cluster, **HOST, host_adam_bandwidth=1e11), Batch(np.array([9, 2]), 0, 0)
    for offload in ("inputs", "activations"):
        steps = ProvenSteps(
            "simulated", replace(FIVE, num_layers=4, recompute="full", offload=offload), 4, cluster=cluster
        )
        assert steps.of(batch, plans).num_hosts == 4
    both = replace(steps, model=replace(steps.model, sharding="zero3", parameter_layers=2))
    with pytest.raises(
        ValueError, match=r"^plans have pipelines, .* memory.parameter_layers is 2, which takes none with them"
    ):
        both.built(batch, plans)
    for layers, stages, told in (
        (3, 2, "memory.offload_layers is 3; a stage of tiny has at most 2 layers, so it takes"),
        ("all", 4, "memory.offload is activations; a stage of tiny has at most 1 layer, and"),
    ):
        model = replace(steps.model, offload_layers=layers)
        with pytest.raises(ValueError, match=f"^{told}"):
            ProvenSteps("simulated", model, 4, stages=stages, cluster=cluster)


def test_what_has_no_room_is_one_sentence() -> None:
    """Of the node with most of a micro-batch: two stages of three and three layers."""
    model = replace(SIX, offload="inputs")
    plans, cluster = [plan_of([400], 2, 4, first=at) for at in range(2)], replace(small(1, 4).cluster, **HOST)
    step = with_host_memory(whole_step(model, plans, 1, "1", 1, "full", stages=2), model, 4, [6, 6])
    need = 6 * 400 * model.hidden * model.element_bytes
    assert [one.tolist() for one in sent_to_hosts(step, 4)] == [[[need]] * 2, [[6]] * 2]
    assert [one.tolist() for one in sent_to_hosts(step, 2)] == [[[need // 2] * 2] * 2, [[3, 3]] * 2]
    check_host_room(step, model, replace(cluster, host_memory=float(need)))
    with pytest.raises(
        ValueError, match=r"^cluster.host_memory is .* the inputs of 6 layers of a micro-batch on a node"
    ):
        check_host_room(step, model, replace(cluster, host_memory=need - 1.0))
