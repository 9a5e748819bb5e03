"""Chunks that a run's schedule leaves open: by the closed form, by playing, and what a record has of it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.degrees import NODE, WORLD, ShardDegrees, TransferBits
from zbench.describe.expert_schedule import BETWEEN, DEGREES, Experts
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulated.expert_degrees import ExpertProfile
from zbench.simulated.gradient_order import GradientSeconds
from zbench.systems.ring import Ring

BATCH = Batch(np.array([9000, 7300, 5200, 3100, 900, 77]), seed=0, step=0)


@cache
def given() -> tuple[Cost, tuple[Plan, ...]]:
    """Two nodes of four GPUs, experts over all of them, exchanges about as long as experts' matmuls."""
    one = small(2, 4)
    model = replace(one.model, num_layers=3, sharding="zero1", num_experts=8, experts_per_token=2, ffn_hidden=2048)
    cost = make_cost(one.cluster, model, pipelines=False)
    return cost, Ring(cost).plan(BATCH)


@cache
def played(schedule: str, degree: int | str) -> tuple[float, dict[str, object]]:
    cost, plans = given()
    found = Simulated(cost, expert_parallel=8, experts=Experts(schedule, degree)).step(BATCH, plans)
    return found.seconds, found.expert_chunks


def test_a_given_number_of_chunks_is_the_same_by_either_schedule() -> None:
    assert played("pipemoe", 1)[0] == played("sequential", 1)[0]
    assert played("pipemoe", 4)[0] == played("tutel", 4)[0] < played("sequential", 1)[0]
    assert played("sequential", 1)[1] == {}
    assert played("tutel", 4)[1] == {"forward": 4, "backward": 4, "weights": "chunk", "seconds": {}}


def test_trying_finds_the_fastest() -> None:
    seconds, told = played("tutel", "auto")
    each = {degree: played("tutel", degree)[0] for degree in DEGREES}
    assert seconds == min(each.values()) == each[told["forward"]]  # type: ignore[index]
    assert told["seconds"] == {f"{degree} {degree}": one for degree, one in each.items()}
    assert played("clock", "auto")[0] <= seconds


def test_the_closed_form_s_choice_is_its_own_minimum_and_near_the_clock_s() -> None:
    cost, plans = given()
    executor = Simulated(cost, expert_parallel=8, experts=Experts("fsmoe", "auto"))
    profile = ExpertProfile.of(executor.steps, BATCH, plans, cost.gpus)
    chosen = profile.apart()
    assert profile.seconds(chosen.chunks.forward, chosen.chunks.backward) == min(chosen.seconds.values())
    assert len(chosen.seconds) == len(DEGREES) ** 2
    assert played("fsmoe", "auto")[0] < played("sequential", 1)[0]
    assert played("clock", "auto")[0] <= played("fsmoe", "auto")[0] <= 1.05 * played("clock", "auto")[0]


@pytest.mark.parametrize(
    "experts",
    [
        Experts("pipemoe", "auto"),
        Experts("lina", "auto", gradients=BETWEEN),
        Experts("fsmoe", "auto"),
        Experts("clock", "auto"),
    ],
)
def test_schedules_choose_where_gradients_and_parameters_are_quantised(experts: Experts) -> None:
    """Encodings are of tensors that experts' messages are not of, so the profile is that of the same degrees without
    them."""
    cost, plans = given()
    profiles = []
    for bits in (TransferBits(), TransferBits(weights=8, secondary=8, gradients=4)):
        degrees = ShardDegrees(WORLD, WORLD, WORLD, WORLD, hop=NODE, bits=bits)
        of = replace(cost, model=replace(cost.model, sharding=degrees))
        executor = Simulated(of, expert_parallel=8, experts=experts)
        assert executor.step(BATCH, plans).seconds > 0
        profiles.append(ExpertProfile.of(executor.steps, BATCH, plans, of.gpus).forward)
    assert profiles[0] == profiles[1]


def test_a_profile_is_of_the_step_s_messages_and_matmuls() -> None:
    """What a forward's exchange and experts take by the profile is what it takes where nothing else is in the way."""
    cost, plans = given()
    steps = Simulated(cost, expert_parallel=8).steps
    (forward,), (backward,) = (
        getattr(ExpertProfile.of(steps, BATCH, plans, cost.gpus), name) for name in ("forward", "backward")
    )
    found, cluster = Simulated(cost, expert_parallel=8).step(BATCH, plans), cost.cluster
    crossing = sum(found.nic_tx_for["experts"]) / cost.model.num_layers / cluster.num_nics
    four = 2 * (forward.exchange.work + backward.exchange.work)  # there and back, forward and backward
    assert four >= cost.nic_transfer_seconds(crossing)
    assert four < 1.3 * cost.nic_transfer_seconds(crossing)
    assert backward.exchange.work == pytest.approx(forward.exchange.work, rel=0.05)
    assert backward.experts.work == pytest.approx(2 * forward.experts.work, rel=0.2)
    flops = 2 * 3 * BATCH.num_tokens * 2 / 8 * cost.model.hidden * cost.model.ffn_hidden
    assert forward.experts.work > flops / cost.cluster.device.matmul_flops
    assert forward.experts.start > 0


def test_what_an_expert_s_gpus_gather_is_apart_from_exchanges() -> None:
    """Experts across two nodes, each cut over the four GPUs of one: what crosses is gathered by every GPU of the node,
    and summed there."""
    cost, plans = given()
    executor = Simulated(cost, expert_parallel=2, expert_tensor_parallel=4)
    profile = ExpertProfile.of(executor.steps, BATCH, plans, cost.gpus)
    found, cluster, layers = executor.step(BATCH, plans), cost.cluster, cost.model.num_layers
    crossing = sum(found.nic_tx_for["experts"]) / layers / cluster.num_nics
    for (one,) in (profile.forward, profile.backward):
        assert one.exchange.work == pytest.approx(cost.nic_transfer_seconds(crossing) / 4, rel=0.3)
        assert one.gather.work == pytest.approx(one.reduce.work, rel=0.3)
        assert one.gather.work > 0 < one.gather.start < one.exchange.start
    whole = ExpertProfile.of(Simulated(cost, expert_parallel=8).steps, BATCH, plans, cost.gpus)
    assert whole.forward[0].gather.work == whole.forward[0].reduce.work == 0
    alone = ExpertProfile.of(Simulated(cost, expert_tensor_parallel=4).steps, BATCH, plans, cost.gpus)
    assert alone.forward[0].exchange.work < 0.01 * alone.forward[0].gather.work  # shares alone


def test_a_forward_with_short_exchanges_is_not_cut() -> None:
    """By FSMoE's rule, below a millisecond; what is gained does not count, and a backward is not held to it."""
    half = LinearSeconds(1e-6, 5e-4)
    none = GradientSeconds(0.0, 0.0, 0.0, 0.0)
    chosen = ExpertProfile(
        [ExpertLayerSeconds(half, half)], [ExpertLayerSeconds(half, half.times(2))], 0.0, none
    ).apart()
    assert (chosen.chunks.forward, chosen.chunks.backward) == (1, 8)
    assert len(chosen.seconds) == len(DEGREES)


def test_a_profile_of_chunks_of_memory_starts_as_often() -> None:
    """Each starts its own messages and matmuls; what there is to send and to multiply is the same."""
    cost, plans = given()
    most = int(plans[0].tokens_per_rank.max())
    cut = replace(cost, model=replace(cost.model, mlp_chunk_tokens=-(-most // 3)))
    (whole,), (three,) = (
        ExpertProfile.of(Simulated(one, expert_parallel=8).steps, BATCH, plans, one.gpus).forward for one in (cost, cut)
    )
    assert three.exchange.start == 3 * whole.exchange.start
    assert three.exchange.work == pytest.approx(whole.exchange.work, rel=1e-3)
    assert three.experts.start > 1.5 * whole.experts.start
    assert three.experts.work == pytest.approx(whole.experts.work, rel=0.15)


def test_schedules_inside_chunks_of_memory() -> None:
    """Messages wait for each other between chunks and not inside; the tries of a schedule are of what it plays."""
    cost, plans = given()
    cut = replace(cost, model=replace(cost.model, mlp_chunk_tokens=1024, recompute="full"))
    found = {
        name: Simulated(cut, expert_parallel=8, experts=Experts(name, degree)).step(BATCH, plans)
        for name, degree in (("sequential", 1), ("tutel", "auto"), ("pipemoe", "auto"))
    }
    assert found["tutel"].seconds <= found["pipemoe"].seconds * (1 + 1e-12)
    assert found["tutel"].seconds <= found["sequential"].seconds
    assert found["tutel"].seconds == min(found["tutel"].expert_chunks["seconds"].values())
