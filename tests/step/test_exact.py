"""Steps come to the loss and the gradients of one process, within 1e-12, wherever operations put them.

Steps are executed by zbench.correctness.steps.interpreter, which shares no code with the proof.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, execute, plan_of
from tests.helpers.strategies import SHARP
from tests.helpers.variants import SYSTEMS, Variant
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.mask import FULL, Mask
from zbench.passes import reverse, route
from zbench.passes.reverse import Mode
from zbench.passes.route import routed
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Plan
from zbench.run.choices import NEEDS
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.zero import STAGES
from zbench.step.passes.recompute import LEVELS
from zbench.step.proof.prove import StepError, prove_step

TOLERANCE = 1e-12
CLUSTER = Cluster(
    name="small", num_nodes=2, gpus_per_node=2, nics_per_node=2, nic_bandwidth=1e9, nic_efficiency=0.8, nic_latency=0.0,
    nvlink_bandwidth=2e11, nvlink_efficiency=0.6, nvlink_latency=0.0, device=SHARP,
)  # fmt: skip
MODES = ("keep", "carry", "regather")
OWN = [variant for variant in SYSTEMS if variant.path.stem not in NEEDS]  # whose planners are of this project


def check(plans: list[Plan], degree: int, zero: str, window: int, recompute: str) -> None:
    step = whole_step(MODEL, plans, degree, zero, window, recompute)
    assert prove_step(step).touches > 0
    assert execute(step, plans, degree) < TOLERANCE


@pytest.mark.parametrize("case", range(20))
def test_combinations(case: int) -> None:
    """A seeded sample of degrees of tensor, context and data parallelism, stages, windows, recomputation, backward
    modes and micro-batches, over uneven lengths; a sequence of a token leaves ranks without any."""
    rng = np.random.default_rng(case)
    degree = int(rng.choice((1, 2)))
    ranks, inner = ((1, 1), (2, 1), (3, 1), (2, 2), (4, 2))[int(rng.integers(5))]
    mode = MODES[case % 3]
    plans = []
    for _ in range(int(rng.integers(1, 4))):
        lengths = rng.integers(1, 9, int(rng.integers(1, 4))).tolist() if rng.random() < 0.7 else [1]
        first = sum(len(plan.lengths) for plan in plans)
        plans.append(plan_of(lengths, ranks, 4 // degree, mode, min(inner, 4 // degree), first))
    check(plans, degree, STAGES[case % 4], int(rng.integers(0, 3)), tuple(LEVELS)[case // 4])


@pytest.mark.parametrize("zero", STAGES)
@pytest.mark.parametrize(("degree", "recompute"), [(1, "none"), (2, "full")])
def test_tied_embeddings(degree: int, zero: str, recompute: str) -> None:
    """The table's gradient has contributions of two templates of each micro-batch, and is reduced after the second; in
    the second micro-batch one rank has no token."""
    model = replace(MODEL, tied_embeddings=True)
    plans = [plan_of(lengths, 2, 4 // degree, first=first) for lengths, first in (([5, 3], 0), ([1], 2), ([4], 3))]
    step = whole_step(model, plans, degree, zero, 1, recompute)
    prove_step(step)
    assert execute(step, plans, degree, model) < TOLERANCE
    assert "wh" not in step.layouts[0].number


@pytest.mark.parametrize("variant", OWN, ids=str)
def test_every_system(variant: Variant) -> None:
    """The plans of every system, as they are, with a stage and a level that its place in the list says."""
    system = variant.make(Cost(CLUSTER, MODEL))
    if not hasattr(system, "plan"):
        pytest.skip(f"{variant} chooses before a run")
    plans = list(system.plan(Batch(np.array([31, 7, 1, 1, 13]), seed=0, step=0)))
    number = OWN.index(variant)
    zero, recompute = STAGES[number % 4], tuple(LEVELS)[number // 4 % len(LEVELS)]
    if plans[0].pipelines is not None:
        with pytest.raises(ValueError, match=r"cut in 4; that has to divide model.num_kv_heads, 2"):
            whole_step(MODEL, plans, 1, zero, 1, recompute)
        model = replace(MODEL, num_kv_heads=4)
        step = whole_step(model, plans, 1, zero, 1, recompute)
        prove_step(step)
        assert execute(step, plans, 1, model) < TOLERANCE
        return
    check(plans, 1, zero, 1, recompute)


@pytest.mark.parametrize("mode", MODES)
def test_routed_keys_that_are_made_again_are_dropped(mode: Mode) -> None:
    """What came over lanes of a route and does not stay is forgotten, which sends nothing over lanes."""
    plan = route(plan_of([31, 7], 4, 4, mode), Cost(replace(CLUSTER, nic_bandwidth=1e6), MODEL))
    assert routed(plan)
    check([plan], 1, "2", 1, "full")


@pytest.mark.parametrize("mask", [FULL, Mask(window=1), Mask(window=3), Mask(window=20)], ids=str)
@pytest.mark.parametrize("inner", [1, 2])
def test_masks(mask: Mask, inner: int) -> None:
    """Under a window, attends that see nothing are not there; where one is left out that sees something, sums lack."""
    builder = Builder(np.array([23, 2, 9]), 4, 4, mask)
    every = np.arange(3)
    ulysses_ring(builder, every, 0 * every, np.arange(4).reshape(1, -1, inner))
    plan, model = reverse(builder.build(), "carry"), replace(MODEL, mask=mask)
    step = whole_step(model, [plan], 1, "3")
    prove_step(step)
    assert execute(step, [plan], 1, model) < TOLERANCE
    forward = step.templates[1]
    attend = step.layouts[0].labels.index("o")
    mine = np.flatnonzero((forward.operations.kind == COMPUTE) & (forward.operations.what == attend))
    kept = np.delete(np.arange(len(forward.operations)), mine[-1])
    broken = replace(forward, operations=forward.operations.take(kept))
    with pytest.raises(StepError, match="of o is computed by no operation"):
        prove_step(replace(step, templates=(step.templates[0], broken, *step.templates[2:])))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((3, "3", 1, "none"), "parallel.tensor_parallel is 3; it has to divide model.num_heads=4"),
        ((2, "3", 1, "none"), "plan 0 is of 2 ranks with 4 heads; groups of 2 GPUs take plans of 2 ranks with 2 heads"),
        ((1, "4", 1, "none"), "zero is '4'; it takes none, 1, 2, 3"),
        ((1, "3", 3, "none"), r"^sharding\.window is 3; it takes 0 to 2 layers"),
        ((1, "3", 1, "half"), "recompute is 'half'; it takes none, elementwise, selective, chunked, full"),
    ],
)
def test_what_cannot_be_built(arguments: tuple[int, str, int, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        whole_step(MODEL, [plan_of([5, 3], 2, 4)], *arguments)


@pytest.mark.parametrize(
    ("zero", "degree", "stages", "recompute"),
    [("3", 1, 1, "full"), ("none", 2, 2, "none"), ("1", 2, 1, "selective"), ("1", 1, 2, "chunked")],
)
def test_a_head_of_one_value(zero: str, degree: int, stages: int, recompute: str) -> None:
    """Its head is whole on all GPUs of a tensor-parallel group, which have values of tokens of their own."""
    model, ranks = replace(MODEL, head="value"), 2
    plans = [plan_of([9, 2], ranks, 4 // degree), plan_of([1], ranks, 4 // degree, first=2)]
    step = whole_step(model, plans, degree, zero, 1, recompute, stages=stages)
    assert prove_step(step).touches > 0
    assert execute(step, plans, degree, model) < TOLERANCE
