"""The longest sequence that has room: what is found is what runs would say, whatever length is tried first."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.simulated.executor import Simulated
from zbench.simulated.longest import ROUND, LongestSequence
from zbench.systems.ring import Ring

HOST = {"host_bandwidth": 5e10, "host_efficiency": 0.9, "host_latency": 1e-5, "host_adam_bandwidth": 1e11}


def job(memory: float, host: float | None = None, **model: object) -> LongestSequence:
    """A job of four GPUs of two nodes."""
    one = small(2, 2, model="gqa", memory=memory)
    cluster = one.cluster if host is None else replace(one.cluster, host_memory=host, **HOST)
    cost = make_cost(cluster, replace(one.model, sharding="zero3", **model))
    return LongestSequence(Simulated(cost), Ring(cost))


@pytest.mark.parametrize("first", [1, 3, 16, 500])
def test_what_is_found_fits_and_a_round_or_a_hundredth_more_does_not(first: int) -> None:
    of = job(24e9)
    found = of.longest(first)
    assert found.tokens % (4 * ROUND) == 0
    assert not found.at_host
    more = found.tokens + max(4 * ROUND, found.tokens // 100)
    for tokens, is_too_much in ((found.tokens, False), (more, True)):
        step = of.executor.step(Batch(np.array([tokens]), 0, 0), of.system.plan(Batch(np.array([tokens]), 0, 0)))
        assert step.out_of_memory is is_too_much
        assert of.filled(tokens)[0] == max(step.peak_bytes) / 24e9


def test_hosts_can_end_it_and_are_told_from_gpus() -> None:
    of = {"offload": "inputs", "recompute": "full"}
    free, short = job(24e9, 1e12, **of), job(24e9, 5e8, **of)
    assert not free.longest().at_host
    found = short.longest()
    assert found.at_host
    assert 0 < found.tokens < free.longest().tokens
    gpu, host = short.filled(found.tokens)
    assert gpu < 1
    assert 0.8 < host <= 1
    batch = Batch(np.array([found.tokens]), 0, 0)
    assert max(short.executor.step(batch, short.system.plan(batch)).host_bytes) == host * 5e8
    batch = Batch(np.array([found.tokens + max(4 * ROUND, found.tokens // 100)]), 0, 0)
    with pytest.raises(ValueError, match="host_memory"):
        short.executor.step(batch, short.system.plan(batch))


def test_where_the_model_has_no_room_no_sequence_has() -> None:
    assert job(1e6).longest().tokens == 0
