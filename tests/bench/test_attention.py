"""The torch executor's attention, forward and backward, on 4 gloo ranks: seconds of the slowest rank.

Not collected by default: `make bench`. Beside each time, what every rank sent is asserted to be what the simulator
charges. tests/bench/attention.py compares with other implementations.
"""

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
from attention import COST, RANKS, Bench

from zbench.describe.batch import Batch
from zbench.plans.plan import TRANSFER
from zbench.runtime.processes.launch import LocalFleet
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses

TOKENS, ROUNDS = 2048, 5


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with LocalFleet(RANKS, f"{Bench.__module__}:{Bench.__name__}", TOKENS, timeout=120) as fleet:
        yield fleet


@pytest.mark.parametrize(("name", "system"), [("ring", Ring(COST)), ("ulysses", Ulysses(COST))])
def test_attention(benchmark: Callable, fleet: LocalFleet, name: str, system: Ring | Ulysses) -> None:
    before = np.array(fleet.call("sent"))
    runs = count()
    benchmark.pedantic(lambda: (next(runs), fleet.call("run", name)), rounds=ROUNDS, warmup_rounds=1)
    sent = np.array(fleet.call("sent")) - before
    (plan,) = system.plan(Batch(np.array([TOKENS]), 0, 0))
    node, charged = COST.cluster.node_of, np.zeros((RANKS, 2), np.int64)
    for ops in (plan.forward, plan.backward):
        moved = ops.kind == TRANSFER
        across = (node[ops.src] != node[ops.dst]).astype(np.int64)
        np.add.at(charged, (ops.src[moved], across[moved]), COST.message_bytes(plan, ops)[moved])
    assert (sent == next(runs) * charged).all()
    benchmark.extra_info |= {"transfers": plan.num_transfers, "nic_bytes": int(charged[:, 1].sum())}
