"""What layers keep of some tokens in host memory: of each sequence a share, the rest stays; proven and exact."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import (
    EXPERTS,
    MODEL,
    execute,
    fault,
    pipeline_plans,
    plan_of,
    plan_of_blocks,
    rejected_mutants,
)
from tests.step.test_kept_on_hosts import FIVE, HOST, KEEPING
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.batch import Batch
from zbench.describe.exchanges import UNCUT, ExchangeOverlap
from zbench.describe.expert_schedule import TOKEN_CHOICE
from zbench.describe.model import Model
from zbench.describe.overlap import USUAL, StepOverlap
from zbench.passes.reverse import Mode
from zbench.plans.plan import Plan
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import sent_to_hosts, with_host_memory
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.template import Step

Shares = Sequence[tuple[float, ...]]


def shared_step(
    model: Model,
    plans: list[Plan],
    shares: Shares,
    layers: Sequence[int],
    shape: tuple[int, int, int] = (1, 2, 1),
    zero: str = "1",
    level: str | SomeLayers = "none",
    overlap: StepOverlap = USUAL,
    experts: ExpertParallel = TOGETHER,
) -> Step:
    """A step of whose sequences such shares of tokens are on hosts. shape: tensor parallelism, GPUs of a node and
    stages."""
    degree, gpus_per_node, stages = shape
    parts = parts_of_layouts(plans, model, degree, experts, overlap.token_slices, shares)
    overlap = replace(overlap, shares=tuple(shares))
    built = whole_step(model, plans, degree, zero, overlap, level, experts, stages)
    return with_host_memory(built, model, gpus_per_node, layers, [one.sent for one in parts])


@pytest.mark.parametrize(
    ("model", "lengths", "ranks", "shape", "layers", "shares", "zero", "level", "mode"),
    [
        (KEEPING, [9, 2], 4, (1, 2, 1), (5, 0), [(0.5, 0.5)] * 2, "3", "none", "keep"),  # GPUs of a node have the same
        (KEEPING, [9, 2], 2, (2, 2, 1), (5, 3), [(1.0, 0.0), (0.3, 0.7)], "1", "none", "carry"),
        (KEEPING, [9, 2], 4, (1, 2, 1), (2, 5), [(1.0, 0.0), (0.0, 0.0)], "3", "selective", "keep"),  # then nothing
        (KEEPING, [1], 4, (1, 4, 1), (5,), [(0.4,)], "2", "selective", "carry"),  # rounded up: the only token
        (KEEPING, [9, 2], 2, (2, 2, 1), (2, 5), [(0.4, 0.7)] * 2, "3", "chunked", "keep"),
        (KEEPING, [9, 2], 2, (2, 2, 1), (4, 2), [(0.4, 0.7)] * 2, "1", SomeLayers("full", (2,)), "carry"),
        (KEEPING, [9, 2], 2, (1, 4, 2), (5, 1), [(0.6, 0.7)] * 2, "1", "none", "carry"),  # in stages
        (FIVE, [9, 2], 2, (2, 2, 1), (2, 5), [(0.4, 0.7)] * 2, "3", "full", "carry"),  # inputs alone
    ],
)
def test_exact(
    model: Model,
    lengths: list[int],
    ranks: int,
    shape: tuple[int, int, int],
    layers: tuple[int, ...],
    shares: Shares,
    zero: str,
    level: str | SomeLayers,
    mode: Mode,
) -> None:
    model = replace(model, mlp_chunk_tokens=3 if level in ("chunked", "full") else "whole")
    plans = [plan_of(lengths, ranks, 4 // shape[0], mode, first=at * len(lengths)) for at in range(len(layers))]
    step = shared_step(model, plans, shares, layers, shape, zero, level)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, shape[0], model, shares=shares) < 1e-12
    assert is_read_as_written(step)
    there = [one.get("host", (0, 0)) for one in stated_bytes(step)]
    sizes, counts = sent_to_hosts(step, shape[1])
    on_hosts = [any(one) * count for one, count in zip(shares, layers, strict=True)]
    if shape[2] == 1:
        assert counts.max(axis=1).tolist() == [min(one, 5 - model.activations_on_hosts) for one in on_hosts]
    assert sum(sent for sent, _ in there) == sum(received for _, received in there) >= 2 * sizes.sum() > 0


@pytest.mark.parametrize("how", [ExpertParallel(4, 1, skew=1.0), ExpertParallel(2, 1)])
@pytest.mark.parametrize("level", ["none", "selective"])
def test_rows_that_are_drawn_for_experts_go_with_their_tokens(how: ExpertParallel, level: str) -> None:
    model, shares = replace(EXPERTS, offload="activations"), [(0.3, 1.0, 0.8)]
    plans = [plan_of([50, 1, 13], 4, 4)]
    step = shared_step(model, plans, shares, [model.num_layers], level=level, experts=how)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, model, how, shares=shares) < 1e-12


def test_beside_exchanges_of_a_group() -> None:
    overlap, shares = StepOverlap(exchanges=ExchangeOverlap("sliced", 2)), [(0.3, 0.8)]
    plans = [plan_of([19, 6], 2, 2)]
    step = shared_step(KEEPING, plans, shares, [5], (2, 2, 1), overlap=overlap)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 2, KEEPING, slices=overlap.token_slices, shares=shares) < 1e-12


def test_wrong_steps_are_rejected() -> None:
    plans, shares = [plan_of([8], 2, 4)], [(0.5,)]
    step = shared_step(KEEPING, plans, shares, [5])
    assert rejected_mutants(step, 3, error=lambda one: execute(one, plans, 1, KEEPING, shares=shares)) >= 8


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("chunk", ["whole", 7])
def test_a_gpu_sends_the_sum_of_its_sequences_shares_of_the_largest_first(degree: int, chunk: int | str) -> None:
    """And parts end where what is sent does."""
    plan, shares = plan_of_blocks([90, 20, 33, 8, 5], 4 // degree, 4), (0.25, 0.9, 0.0, 0.7, 0.6)
    parts = PlanParts(plan, replace(MODEL, mlp_chunk_tokens=chunk), degree, shares=shares)
    plain = PlanParts(plan, MODEL, degree)
    blocks, of_block = plan.blocks, np.zeros(len(plan.blocks))
    np.add.at(of_block, blocks.block, (blocks.stop - blocks.start) * np.array(shares)[blocks.seq])
    of_block /= blocks.tokens  # a block may have tokens of several sequences
    for gpu in range(4):
        mine, whole = parts.home == gpu, plain.home == gpu
        exact = of_block[plain.block[whole]] @ plain.sizes[whole]
        assert parts.sizes[mine & parts.sent].sum() == np.ceil(exact - 1e-9)
        if (mine & parts.sent).any() and (mine & ~parts.sent).any():
            assert of_block[parts.block[mine & parts.sent]].min() >= of_block[parts.block[mine & ~parts.sent]].max()
    assert 0 < parts.sent.sum() < len(parts.sent)
    assert np.bincount(parts.block, weights=parts.sizes).tolist() == plan.blocks.tokens.tolist()


@pytest.mark.parametrize(("layers", "share"), list(product((1, 3, 5), (0.25, 0.5, 1.0))))
def test_a_gpu_has_the_other_tokens_of_all_layers_and_these_of_two(layers: int, share: float) -> None:
    plans = [plan_of([400], 4, 4)]
    cost = replace(small(2, 2), cluster=replace(small(2, 2).cluster, **HOST), model=KEEPING)
    step = shared_step(KEEPING, plans, [(share,)], [layers], zero="3")
    found, away = step_memory(StepParts(step, plans, cost)), min(layers, 4)
    each = 100 * KEEPING.head_dim * KEEPING.num_heads * KEEPING.element_bytes  # of queries on a GPU
    wanted = (1 - share) * 5 + share * max(5 - away, 2)
    assert found.held["q"][:4].tolist() == [wanted * each] * 4
    assert found.peak[4:].tolist() == sent_to_hosts(step, 2)[0][0].tolist()


def test_a_link_that_is_too_slow_for_all_tokens_is_not_waited_for_with_a_share() -> None:
    """All tokens take four times as long to a host as a layer computes; with a fourth of each layer's there is no
    wait, with the first fourth of the layers there is."""
    plans = [plan_of([400], 2, 4)]
    model = replace(KEEPING, num_layers=12)
    usual = replace(small(1, 2), cluster=replace(small(1, 2).cluster, **HOST), model=model)
    plain = play_step(whole_step(model, plans, 1, "1"), plans, usual).seconds
    sizes = sent_to_hosts(shared_step(model, plans, [(1.0,)], [12]), 2)[0].sum() / 2 / 11  # a GPU's of a layer
    layer = plain / 12 / 3  # seconds of a forward
    link = {**HOST, "host_latency": 0.0, "host_bandwidth": float(sizes / (4 * layer))}
    cost = replace(usual, cluster=replace(usual.cluster, **link))
    every = play_step(shared_step(model, plans, [(1.0,)], [12]), plans, cost).seconds
    first = play_step(shared_step(model, plans, [(1.0,)], [3]), plans, cost).seconds
    share = play_step(shared_step(model, plans, [(0.22,)], [12]), plans, cost).seconds
    assert share < 1.05 * plain < first < every


def test_rows_that_routers_choose_take_all_tokens() -> None:
    model, how = replace(EXPERTS, offload="activations", offload_tokens=0.5), ExpertParallel(4, 1)
    ProvenSteps("simulated", model, 4, experts=how)
    with pytest.raises(ValueError, match=r"^memory.offload_tokens is 0.5; .* has experts, and .* it takes all$"):
        ProvenSteps("simulated", model, 4, experts=replace(how, routing=TOKEN_CHOICE))


def test_plans_with_pipelines_take_all_tokens() -> None:
    plans = pipeline_plans([(1, 2), (2, 1)], [[(9, 0), (6, 1)]], 4)
    steps = ProvenSteps("simulated", replace(MODEL, num_layers=6, offload="activations", offload_tokens=0.5), 4)
    with pytest.raises(ValueError, match=r"^plans have pipelines, .* memory.offload_tokens is 0.5, which takes all"):
        steps.built(Batch(0, 0, np.array([9, 6])), plans)


def test_parts_are_as_before_without_shares() -> None:
    parts = PlanParts(plan_of([9, 2], 2, 4), MODEL, 1, token_slices=UNCUT)
    assert parts.sent.all()
    assert len(parts.sent) == len(parts.sizes) == len(parts.plan.blocks)
