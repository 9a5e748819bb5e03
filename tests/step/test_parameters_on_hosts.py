"""Parameters that rest in host memory where layers are in stages, of two kinds, or cut by nested degrees: proven,
exact, brought as often as they are gathered, and waited for."""

from dataclasses import replace

import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import execute, fault, plan_of, rejected_mutants
from tests.step.test_leading_layers import CASES, DEEP
from tests.step.test_optimizer_of_stages import FIVE, judged
from tests.step.test_optimizer_on_hosts import HOST
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AFTER_BACKWARD, AS_GRADIENTS_COME
from zbench.describe.overlap import ALL, END, StepOverlap
from zbench.simulator.steps.play import play_step
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.passes.memory.last_update import last_update
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts

# Layers whose state is on hosts, the last ones; whose parameters rest there, the first ones; of which gradients are
# carried; and when CPUs update.
WAYS = [(0, 5, 0, AS_GRADIENTS_COME), (0, 3, 0, AS_GRADIENTS_COME), (5, 5, 0, AFTER_BACKWARD)]
WAYS += [(2, 4, 0, AS_GRADIENTS_COME), (5, 4, 2, ACROSS_STEPS), (4, 1, 3, ACROSS_STEPS)]
SIZE = FIVE.layer_params * FIVE.element_bytes


@pytest.mark.parametrize(("optimizer", "parameters", "carried", "when"), WAYS)
@pytest.mark.parametrize(
    ("stages", "degree", "bucket", "window", "tied"),
    [(2, 2, "layer", 0, True), (4, 1, END, 1, False), (2, 1, 900, 3, False)],
)
def test_stages_are_exact(
    stages: int,
    degree: int,
    bucket: int | str,
    window: int,
    tied: bool,
    optimizer: int,
    parameters: int,
    carried: int,
    when: str,
) -> None:
    """Three micro-batches: each forward and each backward brings a share once, and where GPUs update it comes once more
    and goes back."""
    model, plans = replace(FIVE, tied_embeddings=tied), [plan_of([9, 2], 2, 4 // degree, first=at) for at in (0, 2, 4)]
    plain = whole_step(model, plans, degree, "3", StepOverlap(window, bucket), "selective", stages=stages)
    for begun in (True, False) if carried else (True,):
        step = with_optimizer_on_hosts(plain, 2, HostLayers(5, optimizer, parameters, carried, begun), when)
        sent = judged(step, plans, model, degree)
        if not optimizer:
            assert sent == parameters * (2 * len(plans) + 2) * SIZE
    if carried:
        left = last_update(with_optimizer_on_hosts(plain, 2, HostLayers(5, optimizer, parameters, carried), when))
        assert (fault(left), unrolled_fault(left)) == ("", "")


@pytest.mark.parametrize(("level", "offload"), [("full", "inputs"), ("selective", "activations")])
def test_beside_what_layers_keep(level: str, offload: str) -> None:
    model = replace(FIVE, offload=f"{offload}_and_optimizer", parameter_layers=4, sharding="zero3")
    plans = [plan_of([9, 2], 2, 4, first=at * 2) for at in range(3)]
    step = with_host_memory(whole_step(model, plans, 1, "3", 1, level, stages=2), model, 2, [4, 2, 3])
    assert judged(step, plans, model) > 4 * 2 * len(plans) * SIZE


@pytest.mark.parametrize(("optimizer", "parameters", "carried", "when"), [
    (0, 4, 0, AS_GRADIENTS_COME), (0, 2, 0, AS_GRADIENTS_COME), (2, 1, 0, AFTER_BACKWARD), (4, 3, 2, ACROSS_STEPS),
])  # fmt: skip
@pytest.mark.parametrize("number", range(len(CASES)))
def test_dense_first_layers_are_exact(number: int, optimizer: int, parameters: int, carried: int, when: str) -> None:
    """All of the dense ones, some of them, and with layers with experts behind them; one stage or two."""
    dense, ranks, degree, stages, _, recompute, overlap, how = CASES[number]
    overlap = replace(overlap, window=2) if overlap.window == ALL else overlap  # ZeRO-3 gathers for each layer anew
    model = replace(DEEP, dense_layers=dense)
    plans = [plan_of(lengths, ranks, 4 // degree, first=2 * at) for at, lengths in enumerate(([4, 3], [1]))]
    step = whole_step(model, plans, degree, "3", overlap, recompute, how, stages)
    step = with_optimizer_on_hosts(step, 2, HostLayers(4, optimizer, parameters, carried), when)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, how, overlap.token_slices) < 1e-12


@pytest.mark.parametrize(("degrees", "passes"), [((WORLD, 2, WORLD, WORLD), 1), ((WORLD, WORLD, WORLD, WORLD), 2)])
@pytest.mark.parametrize("stages", [1, 2])
def test_nested_degrees_are_exact(degrees: tuple[int, int, int, int], passes: int, stages: int) -> None:
    """What stays of parameters in smaller runs for a backward is on GPUs, so that a backward brings nothing; in stages
    it stays for all micro-batches, and a step brings a share once."""
    plans = [plan_of([9, 2], 4, 4, first=at * 2) for at in range(2)]
    plain = whole_step(FIVE, plans, 1, ShardDegrees(*degrees), 1, "selective", stages=stages)
    for optimizer, parameters in ((0, 5), (0, 3), (5, 3), (2, 4)):
        step = with_optimizer_on_hosts(plain, 2, HostLayers(5, optimizer, parameters))
        sent = judged(step, plans, FIVE)
        if not optimizer:
            every = len(plans) if stages == 1 or passes == 2 else 1
            assert sent == parameters * (passes * every + 2) * SIZE


@pytest.mark.parametrize("kind", [(2, 4), (0, 3)])
def test_mutants_are_found(kind: tuple[int, int]) -> None:
    step = with_optimizer_on_hosts(whole_step(FIVE, [plan_of([3, 2], 1, 4)], 1, "3", stages=2), 2, HostLayers(5, *kind))
    assert rejected_mutants(step, 3, 40) > 8


def test_a_stage_waits_for_its_own_links() -> None:
    """Parameters of the first stage's layers come over its GPUs' links, which the last stage's do not wait for twice:
    with a slow link a step takes longer by its forward's and its backward's share, and no GPU is fuller."""
    plans = [plan_of([400], 2, 4), plan_of([400], 2, 4, first=1)]
    plain = whole_step(FIVE, plans, 1, "3", stages=2)
    step, cluster = with_optimizer_on_hosts(plain, 2, HostLayers(5, 0, 5)), small(2, 2).cluster
    costs = [Cost(replace(cluster, **{**HOST, "host_bandwidth": rate}), FIVE) for rate in (1e12, 1e5)]
    quick, slow = (play_step(step, plans, one) for one in costs)
    share = SIZE * 3 / 2  # of the longest stage, on each of its two GPUs
    assert slow.seconds > quick.seconds + (2 * len(plans) + 1) * 0.9 * share / 1e5
    assert (slow.memory.peak == quick.memory.peak).all()
