"""Counters of machines' NICs beside whole steps, on processes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.test_step_executor import WORKLOAD, cost_of, trained
from zbench.runtime.measured import COUNTERS
from zbench.runtime.network.nic import PhysicalCounters
from zbench.runtime.step_executor import COUNTED, Torch
from zbench.systems.ring import Ring

NICS = len(PhysicalCounters.of().counters)  # of this machine


@pytest.mark.skipif(NICS == 0, reason="this machine has no NIC whose counters could be read")
def test_a_step_tells_what_the_counters_of_its_machine_say() -> None:
    """One node's processes send each other nothing through a NIC, so that there is no telling how much it carries."""
    cost = cost_of(1, 2)
    cost = replace(cost, cluster=replace(cost.cluster, nics_per_node=NICS))
    executor = Torch(cost, WORKLOAD, warmup=0, check=("bytes",), nic_counters=True, nic_interval=0.001)
    for found in trained(executor, Ring(cost), 2):
        assert [len(found.nic_tx_bytes), len(found.nic_rx_bytes)] == [NICS, NICS]
        assert min(found.nic_tx_bytes + found.nic_rx_bytes) >= 0
        assert found.nic_series["interval"] == 0.001
        for way, whole in (("tx", found.nic_tx_bytes), ("rx", found.nic_rx_bytes)):
            looks = found.nic_series[way]
            assert len(looks) == NICS
            assert all(one and sum(one) <= in_all for one, in_all in zip(looks, whole, strict=True))


def test_other_nics_than_the_cluster_has_are_a_sentence() -> None:
    cost = cost_of(1, 2)
    cost = replace(cost, cluster=replace(cost.cluster, nics_per_node=NICS + 1))
    with pytest.raises(ValueError, match=rf"^cluster.nics_per_node is {NICS + 1}; node 0 has {NICS}: "):
        trained(Torch(cost, WORKLOAD, warmup=0, nic_counters=True), Ring(cost), 1)


def test_the_record_says_where_nics_bytes_are_from() -> None:
    for counters, source in ((False, COUNTED), (True, COUNTERS)):
        executor = Torch(cost_of(1, 2), WORKLOAD, nic_counters=counters)
        try:
            assert executor.start().about["nic_bytes"] == source
        finally:
            executor.stop()


def test_nodes_that_one_machine_plays_are_a_sentence() -> None:
    told = "^executor.nic_counters is true; one machine plays 2 nodes, whose traffic its counters mix"
    with pytest.raises(ValueError, match=told):
        Torch(cost_of(2, 1), WORKLOAD, nic_counters=True).start()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nic_counters": 5}, "executor.nic_counters is 5"),
        ({"nic_interval": 0.1}, "executor.nic_interval is 0.1; it needs the NICs' counters"),
        ({"nic_counters": True, "nic_interval": 1e-6}, "executor.nic_interval is 1e-06; it takes a number of at least"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        Torch(cost_of(), WORKLOAD, **settings)
