"""nodewise among simpler systems: as fast as the fastest of them on narrow networks; more network never hurts."""

from dataclasses import replace
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.oracles import H100, small
from zbench import CONF
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.target import make_model
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.hydraulis.changes import ChangePrices
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.nodewise.rivals import COVERED, FAR, FAR_OF_MANY, MANY_RANKS, MOST_RANKS, NEAR, Rivals, covered
from zbench.systems.zeppelin.planner import Zeppelin


@pytest.fixture(scope="module")
def wide() -> Cost:
    """Four nodes of 8 H100 with a NIC of 400 Gbit/s each, llama_7b."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["cluster=h100_4x8"])
    return make_cost(instantiate(config.cluster, _convert_="all"), make_model(config))


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
    return StepEstimate(cost).seconds(system.plan(batch))


@pytest.mark.parametrize(("nodes", "nics", "gbit"), [(2, 2, 100), (2, 2, 200), (4, 2, 100), (4, 4, 200)])
def test_no_simpler_system_is_faster_on_a_narrow_network(wide: Cost, nodes: int, nics: int, gbit: int) -> None:
    cost = network(wide, nodes, nics, gbit)
    batch = drawn(cost, seed=nodes)
    alone = seconds(Nodewise(cost, adopt_rivals=False), batch, cost)
    simpler = {type(one).__name__: seconds(one, batch, cost) for one in Rivals(cost).asked(0.0)}
    assert len(simpler) == 4  # two of them meshes
    mine = seconds(Nodewise(cost), batch, cost)
    of_pipelines = covered(batch.num_tokens, cost) < COVERED
    assert of_pipelines == (nics * gbit <= 400)
    assert mine == (seconds(Hydraulis(cost), batch, cost) if of_pipelines else min(alone, *simpler.values()))


@pytest.mark.parametrize("seed", [1, 2])
def test_uneven_nodes_are_sooner_done_where_parameters_fill_the_nics(wide: Cost, seed: int) -> None:
    """Its own plans, without those of other systems: near what it takes from these, and far ahead of even nodes."""
    cost = network(wide, 4, 2, 100)
    batch = drawn(cost, seed)
    own, even = (
        seconds(Nodewise(cost, adopt_rivals=False, allow_uneven_nodes=kind), batch, cost) for kind in (True, False)
    )
    best = min(seconds(one, batch, cost) for one in (FlexSP(cost), Zeppelin(cost)))
    assert own < 0.8 * even
    assert own < 1.02 * best


def test_pipelines_are_taken_where_gathers_cost_most(wide: Cost) -> None:
    cost = network(wide, 2, 2, 100)
    batch = Batch(np.full(128, 512), 0, 0)
    plans = Nodewise(cost).plan(batch)
    assert plans[0].pipelines is not None
    assert StepEstimate(cost).seconds(plans) < 0.9 * seconds(Nodewise(cost, adopt_rivals=False), batch, cost)
    assert Nodewise(replace(cost, pipelines=False)).plan(batch)[0].pipelines is None


def test_other_plans_have_to_gain_the_way_there_and_back(wide: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network of pipelines these stay where other plans are faster by less than parameters and state take."""
    cost = network(wide, 2, 2, 200)
    batch = Batch(np.array([65_536]), 0, 0)
    rivals = Rivals(cost)
    own, pipelines = Nodewise(cost, adopt_rivals=False).plan(batch), rivals.pipelines().plan(batch)
    mine, other = StepEstimate(cost).seconds(own), StepEstimate(cost).seconds(pipelines)
    system = rivals.pipelines()
    way = system.prices.seconds(system.usual, ()) + system.prices.seconds((), system.usual)
    assert mine < other < mine + way
    assert covered(batch.num_tokens, cost) < COVERED
    assert rivals.fastest(own, batch, None)[0].pipelines is not None
    for seconds_of_way, taken in ((other - mine + 0.01, True), (other - mine - 0.01, False)):
        monkeypatch.setattr(ChangePrices, "seconds", lambda self, one, two, way=seconds_of_way: way / 2 * (one != two))
        assert (rivals.fastest(own, batch, None)[0].pipelines is not None) == taken


def test_what_is_usual_is_settled_before_a_run_or_by_the_network(wide: Cost) -> None:
    """By batches like the run's where a network is narrow; a batch by itself is planned as its network usually is."""
    cost, batch = network(wide, 2, 2, 100), Batch(np.full(128, 512), 0, 0)
    taken = {
        usual: Nodewise(cost, rival_pipelines=usual).plan(batch)[0].pipelines for usual in ("usual", "never", None)
    }
    assert [one is not None for one in taken.values()] == [True, False, True]
    assert Nodewise(cost).limits(batch.num_tokens) == [{"rival_pipelines": "never"}, {"rival_pipelines": "usual"}]
    without = Nodewise(cost, adopt_rivals=False), Nodewise(cost, rival_pipelines="usual"), Nodewise(wide)
    many = network(wide, MOST_RANKS // 8 + 1, 2, 100)
    for system in (*without, Nodewise(replace(cost, pipelines=False)), Nodewise(many)):
        assert not system.limits(4096 * system.cost.cluster.num_ranks)
    with pytest.raises(ValueError, match=r"^system.rival_pipelines is 'yes'; it takes null, usual or never"):
        Nodewise(cost, rival_pipelines="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^system.rival_pipelines is usual; a rival plans pipelines, so it takes"):
        Nodewise(cost, rival_pipelines="usual", adopt_rivals=False)


def test_lengths_have_no_part_in_what_a_network_is_one_of(wide: Cost) -> None:
    cost = network(wide, 4, 2, 200)
    tokens = 4096 * cost.cluster.num_ranks
    assert covered(tokens, cost) < COVERED < covered(tokens, network(wide, 4, 8, 400))
    assert covered(8, small(1, 1, H100)) == np.inf


@pytest.mark.parametrize("seed", [1, 2])
def test_more_network_is_never_slower(wide: Cost, seed: int) -> None:
    """By more than 1 %: every plan of the narrower network could be had on the wider one."""
    networks = [network(wide, 4, nics, gbit) for nics, gbit in ((2, 100), (2, 200), (4, 200), (8, 200), (8, 400))]
    taken = [seconds(Nodewise(cost), drawn(cost, seed), cost) for cost in networks]
    assert all(later <= 1.01 * earlier for earlier, later in pairwise(taken)), taken


@examples(6)
@given(st.integers(0, 10**6), st.sampled_from(("zero1", "zero3")), st.sampled_from((1.0, 1.5, 2.0)))
def test_more_nics_or_bandwidth_never_make_it_slower(seed: int, sharding: str, tail: float) -> None:
    """By more than 1 %, whatever the lengths, on four nodes of four GPUs."""
    base = small(4, 4, H100)
    base = replace(base, model=replace(base.model, num_layers=8, sharding=sharding))
    tokens = np.random.default_rng(seed).lognormal(7.5, tail, 40).astype(np.int64) + 1
    batch, found = Batch(np.minimum(tokens, 65_536), 0, 0), {}
    for nics, gbit in product((1, 2, 4), (100, 400)):
        cost = replace(base, cluster=replace(base.cluster, nics_per_node=nics, nic_bandwidth=gbit / 8 * 1e9))
        found[nics, gbit] = seconds(Nodewise(cost), batch, cost)
    for less, more in permutations(found, 2):
        if less[0] <= more[0] and less[1] <= more[1]:
            assert found[more] <= 1.01 * found[less], (less, more)


def test_who_is_asked_by_nearness_to_the_ceiling_and_ranks(wide: Cost) -> None:
    """Beyond MOST_RANKS flexsp alone, from MANY_RANKS on nearer to the ceiling than on fewer."""

    def asked(ranks: int, near: float) -> int:
        return len(list(Rivals(network(wide, ranks // 8, 8, 400)).asked(near)))

    nearness = (1.0, NEAR, NEAR - 0.01, FAR_OF_MANY - 0.01, FAR, FAR - 0.01)
    found = {ranks: [asked(ranks, near) for near in nearness] for ranks in (32, MANY_RANKS - 8, MANY_RANKS, 512)}
    assert MANY_RANKS == MOST_RANKS
    few = [0, 0, 1, 1, 1, 5]
    assert found == {32: few, MANY_RANKS - 8: few, MANY_RANKS: [0, 0, 1, 2, 2, 5], 512: [0, 0, 0, 1, 1, 1]}


def test_on_many_ranks_a_plan_of_flexsp_is_taken_where_it_is_sooner_done() -> None:
    """A batch of github on 256 A800, half a second of planning."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["cluster=a800_4x8", "cluster.num_nodes=32", "workload=github", "tracker=none"])
    parts = Parts.of(config, Settings.of(config))
    batch, rivals = parts.batch(0), Rivals(parts.cost)
    plans = [
        system.plan(batch)
        for system in (Nodewise(parts.cost, adopt_rivals=False), FlexSP(parts.cost), Nodewise(parts.cost))
    ]
    own, theirs, taken = (rivals._judged(one) for one in plans)
    assert theirs < own
    assert taken == theirs


def test_rivals_are_made_once(wide: Cost) -> None:
    rivals = Rivals(wide)
    assert [one is other for one, other in zip(rivals.asked(0), rivals.asked(0), strict=True)] == [True] * 5
    assert rivals.pipelines() is rivals.pipelines()
