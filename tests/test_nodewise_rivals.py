"""nodewise among simpler systems: as fast as the fastest of them on narrow networks; more network never hurts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from zbench import CONF
from zbench.batch import Batch
from zbench.cost import Cost
from zbench.parts import make_cost
from zbench.protocols import System
from zbench.simulate import Simulated
from zbench.systems import nodewise_rivals
from zbench.systems.nodewise import Nodewise
from zbench.systems.nodewise_rivals import FAR, MOST_RANKS, NEAR, rivals


@pytest.fixture(scope="module")
def wide() -> Cost:
    """Four nodes of 8 H100 with a NIC of 400 Gbit/s each, llama_7b."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["cluster=h100_4x8"])
    cluster, model = (instantiate(config[name], _convert_="all") for name in ("cluster", "model"))
    return make_cost(cluster, model)


def network(cost: Cost, nodes: int, nics: int, gbit: int) -> Cost:
    changed = {"num_nodes": nodes, "nics_per_node": nics, "nic_bandwidth": gbit / 8 * 1e9}
    cluster = replace(cost.cluster, **changed, nic_channels=2 if gbit > 200 else 1)
    return replace(cost, cluster=cluster)


def drawn(cost: Cost, seed: int) -> Batch:
    """Half of it sequences of 64K tokens, the rest short ones, 4,096 tokens a GPU."""
    rng = np.random.default_rng(seed)
    left = 4096 * cost.cluster.num_ranks
    lengths = [65_536] * (left // 2 // 65_536)
    left -= sum(lengths)
    while left:
        lengths.append(min(left, int(rng.lognormal(7, 1.2)) + 1))
        left -= lengths[-1]
    return Batch(np.array(lengths, np.int64), seed, 0)


def seconds(system: System, batch: Batch, cost: Cost) -> float:
    return Simulated(cost).step(batch, system.plan(batch)).seconds


@pytest.mark.parametrize(("nodes", "nics", "gbit"), [(2, 2, 100), (2, 2, 200), (4, 2, 100), (4, 4, 200)])
def test_no_simpler_system_is_faster_on_a_narrow_network(wide: Cost, nodes: int, nics: int, gbit: int) -> None:
    cost = network(wide, nodes, nics, gbit)
    batch = drawn(cost, seed=nodes)
    alone = seconds(Nodewise(cost, rivals=False), batch, cost)
    mine, others = seconds(Nodewise(cost), batch, cost), [seconds(one, batch, cost) for one in rivals(cost, 0.0)]
    assert mine == min(alone, *others)
    assert len(others) == 4


def test_a_rival_is_taken_where_it_is_much_faster(wide: Cost) -> None:
    cost = network(wide, 4, 2, 100)
    batch = drawn(cost, seed=4)
    assert seconds(Nodewise(cost), batch, cost) < 0.9 * seconds(Nodewise(cost, rivals=False), batch, cost)


@pytest.mark.parametrize("seed", [1, 2])
def test_more_network_is_never_slower(wide: Cost, seed: int) -> None:
    """By more than 1 %: every plan of the narrower network could be had on the wider one."""
    networks = [network(wide, 4, nics, gbit) for nics, gbit in ((2, 100), (2, 200), (4, 200), (8, 200), (8, 400))]
    taken = [seconds(Nodewise(cost), drawn(cost, seed), cost) for cost in networks]
    assert all(later <= 1.01 * earlier for earlier, later in pairwise(taken)), taken


def test_near_the_bound_and_on_many_ranks_nobody_else_plans(wide: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(list(rivals(wide, ratio))) for ratio in (1.0, NEAR, NEAR - 0.01, FAR, FAR - 0.01)] == [0, 0, 1, 1, 4]
    many = network(wide, MOST_RANKS // 8 + 1, 8, 400)
    monkeypatch.setattr(nodewise_rivals, "rivals", lambda *_: pytest.fail("rivals were asked"))
    batch = Batch(np.full(many.cluster.num_ranks, 512, np.int64), 0, 0)
    assert Nodewise(many).plan(batch)
