"""Rounds as a run chooses them: what cannot be is one sentence, and what each method is."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.sync import CO2, DILOCO, EVERY, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.step.passes.rounds.order import under_way


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"method": "gossip"}, "sync.method is 'gossip'; it takes every_step, local_sgd, slowmo, co2, diloco or "),
        ({"method": SLOWMO, "steps": 0}, "sync.steps is 0; it takes a whole number from 1 to 10000"),
        ({"method": SLOWMO, "steps": 1.5}, "sync.steps is 1.5; it takes a whole number"),
        ({"method": SLOWMO, "worker": "gpu"}, "sync.worker is 'gpu'; it takes rank or node"),
        ({"method": SLOWMO, "momentum": 1.0}, "sync.momentum is 1.0; it takes a number of at least 0 and below 1"),
        ({"method": SLOWMO, "lr": 0}, "sync.lr is 0; it takes a number above 0 and below 10"),
        ({"method": SLOWMO, "penalty": "constant"}, "sync.penalty is constant; sync=slowmo takes none"),
        ({"method": LOCAL_SGD, "momentum": 0.5}, r"sync.momentum is 0.5; sync=local_sgd takes 0.0"),
        ({"method": DILOCO, "clip": 1.0}, "sync.clip is 1.0; sync=diloco takes null"),
        ({"method": CO2}, "sync.penalty is none; sync=co2 takes constant or gap_aware"),
        ({"method": CO2, "penalty": "constant", "clip": 0}, "sync.clip is 0; it takes a number above 0, or null"),
        ({"method": CO2, "penalty": "gap_aware", "penalty_constant": 2.0}, "sync.penalty_constant is 2.0; with"),
        ({"steps": 4}, "sync.steps is 4; sync=every_step takes 1"),
        ({"method": CO2, "penalty": "constant", "delay": 1}, "sync.delay is 1; sync=co2 takes 0"),
        ({"method": DILOCO, "steps": 4, "fragments": 2}, "sync.fragments is 2; sync=diloco takes 1"),
        ({"method": SLOWMO, "mixing": 0.5}, "sync.mixing is 0.5; sync=slowmo takes 0.0"),
        (
            {"method": STREAMING_DILOCO, "steps": 4, "fragments": 5},
            "sync.fragments is 5; with sync.steps=4 it takes a whole number from 1 to 4",
        ),
        (
            {"method": STREAMING_DILOCO, "steps": 4, "delay": 4},
            "sync.delay is 4; with sync.steps=4 it takes a whole number from 0 to 3",
        ),
        (
            {"method": STREAMING_DILOCO, "mixing": 1.0},
            "sync.mixing is 1.0; it takes a number of at least 0 and below 1",
        ),
        ({"method": STREAMING_DILOCO, "clip": 1.0}, "sync.clip is 1.0; sync=streaming_diloco takes null"),
    ],
)
def test_what_cannot_be_is_one_sentence(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        RoundSync(**keys)


def test_runs_end_with_a_round() -> None:
    sync = RoundSync(SLOWMO, 4)
    sync.check_run(8)
    EVERY.check_run(7)
    with pytest.raises(ValueError, match=r"^sync.steps is 4, a round that is longer than the run; with steps=3"):
        sync.check_run(3)
    with pytest.raises(ValueError, match=r"^sync.steps is 4, a round that does not divide it; with steps=6"):
        sync.check_run(6)
    assert [step for step in range(9) if sync.is_last(step)] == [3, 7]


def test_workers_are_ranks_or_nodes() -> None:
    rank, node = (RoundSync(SLOWMO, worker=name) for name in ("rank", "node"))
    assert [one.worker_gpus(8) for one in (rank, node)] == [1, 8]
    assert [one.worker_gpus(8, 2) for one in (rank, node)] == [2, 8]
    assert node.worker_gpus(8, 2, 3) == 24


def test_a_worker_s_cluster_has_its_groups_and_stages() -> None:
    """A group has its share of the node's NICs and host memory; every stage has a node."""
    device = Device("cpu", 1e11, 4e9, 1e10, 1e9, 5e10, 5e10, 5e10, 1e-5, 1e-5)
    of_node = {"host_memory": 2.0**36, "host_adam_bandwidth": 1e11}
    cluster = Cluster("test", 6, 8, 4, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, device, **of_node)
    rank, node = (RoundSync(SLOWMO, worker=name) for name in ("rank", "node"))
    for group, nics in ((1, 1), (2, 1), (4, 2), (8, 4)):
        own = rank.worker_cluster(cluster, group)
        assert (own.num_nodes, own.gpus_per_node, own.nics_per_node) == (1, group, nics)
        assert own.host_memory == 2.0**36 * group / 8
        assert own.host_adam_bandwidth == 1e11 * group / 8
        assert own.num_ranks == rank.worker_gpus(8, group)
    for stages in (1, 2, 3):
        own = node.worker_cluster(cluster, 2, stages)
        assert own == replace(cluster, num_nodes=stages)
        assert own.num_ranks == node.worker_gpus(8, 2, stages)
    told = r"^sync.worker is rank; with parallel.pipeline_parallel=2 every stage .* so it takes node$"
    for asked in (lambda: rank.worker_gpus(8, 1, 2), lambda: rank.worker_cluster(cluster, 1, 2)):
        with pytest.raises(ValueError, match=told):
            asked()


@pytest.mark.parametrize(("steps", "fragments", "delay"), [(4, 1, 0), (4, 2, 1), (3, 2, 2), (6, 3, 5), (6, 3, 2)])
def test_what_of_the_fragments_is_under_way_at_once(steps: int, fragments: int, delay: int) -> None:
    sync = RoundSync("streaming_diloco", steps, fragments=fragments, delay=delay)
    every = [len(under_way(sync, steps + step)) for step in range(steps)]
    assert sync.under_way == max(every) / fragments
