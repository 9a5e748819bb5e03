"""Collectives of a job with experts on GPUs: as many bytes as its steps send, and everybody's where all have them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import small
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.expert_gathers import expert_collectives
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.links import NIC
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring

BATCH = Batch(np.array([900, 731, 520, 77]), seed=0, step=0)


def with_experts(shape: tuple[int, int], gpus: int, sharding: str, cut: int = 1) -> Cost:
    """The job of a model whose 16 experts so many GPUs hold together, each cut over `cut` of them. shape: nodes and
    GPUs of each."""
    one = small(*shape)
    model = replace(one.model, num_layers=3, sharding=sharding, num_experts=16, experts_per_token=2, ffn_hidden=512)
    return make_cost(one.cluster, model, pipelines=False, expert_gpus=gpus, expert_cut=cut)


@pytest.mark.parametrize("sharding", ["zero1", "zero2"])
@pytest.mark.parametrize(
    ("shape", "gpus", "cut"), [((2, 2), 2, 1), ((2, 2), 4, 1), ((4, 4), 2, 1), ((4, 4), 8, 1), ((4, 4), 8, 2)]
)
def test_nics_carry_what_a_step_sends(sharding: str, shape: tuple[int, int], gpus: int, cut: int) -> None:
    cost = with_experts(shape, gpus, sharding, cut)
    played = Simulated(cost, expert_parallel=gpus // cut, expert_tensor_parallel=cut).step(
        BATCH, Ring(cost).plan(BATCH)
    )
    of, rate = expert_collectives(cost), cost.cluster.links[NIC].rate
    assert max(played.nic_tx_for["parameters"]) == pytest.approx(of.gather_ports[NIC] * rate, rel=1e-3)
    assert max(played.nic_tx_for["gradients"]) == pytest.approx(of.reduce_ports[NIC] * rate, rel=1e-3)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_with_all_experts_on_each_gpu_they_are_everybodys(sharding: str) -> None:
    cost = with_experts((2, 4), 1, sharding)
    own, every = expert_collectives(cost), Collectives.of(cost)
    assert own.gather == every.gather
    assert own.reduce == every.reduce
    assert (own.gather_ports == every.gather_ports).all()
    assert (own.reduce_ports == every.reduce_ports).all()


@given(
    st.sampled_from([(1, 4), (2, 2), (2, 4), (4, 2)]), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["zero1", "none"])
)
def test_more_gpus_for_the_same_experts_never_gather_more(shape: tuple[int, int], gpus: int, sharding: str) -> None:
    ranks = shape[0] * shape[1]
    some, more = (expert_collectives(with_experts(shape, min(one, ranks), sharding)) for one in (gpus, 2 * gpus))
    for one, other in ((some.gather_ports, more.gather_ports), (some.reduce_ports, more.reduce_ports)):
        assert (other <= one * (1 + 1e-9)).all()
    assert more.gather <= some.gather * (1 + 1e-9)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_a_part_of_a_step_has_what_it_gathers_and_reduces(sharding: str) -> None:
    """What a step does once is in its first and its last part alone, that of experts as well."""
    cost = with_experts((2, 4), 4, sharding)
    whole, every = expert_collectives(cost), Collectives.of(cost)
    for opens, closes in ((True, False), (False, False), (False, True)):
        part = expert_collectives(cost.of_part(opens, closes))
        gathers, reduces = opens or every.every_micro_batch, closes or every.reduced
        assert (part.gather_ports == whole.gather_ports * gathers).all()
        assert (part.reduce_ports == whole.reduce_ports * reduces).all()
        assert (part.gather, part.reduce) == (whole.gather * gathers, whole.reduce * reduces)
