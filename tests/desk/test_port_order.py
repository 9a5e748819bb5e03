"""A ring beside a gather on a small desk, where this machine allows it."""

from dataclasses import replace

import pytest

from tests.runtime.network.test_wiring import CLUSTER
from zbench.describe.model import Model
from zbench.desk import port_order as module
from zbench.desk.port_order import PortOrder, port_order

MODEL = Model("small", 2, 16, 2, 2, 8, 24, 64, element_bytes=4)


@pytest.mark.usefixtures("namespaces")
def test_a_ring_does_not_wait_for_all_of_a_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks with a NIC each: both connections have a part of it. The NIC's limit holds however busy the machine is;
    whether the ring waited is read where others left the ranks alone, which three measurements in a row will have."""
    monkeypatch.setattr(module, "SECONDS", 0.8)
    monkeypatch.setattr(module, "TIMES", 3)
    cluster = replace(CLUSTER, gpus_per_node=1, nics_per_node=1, nic_bandwidth=2e6)
    waited = list[float]()
    while not any(0.05 < one < 0.8 for one in waited) and len(waited) < 3:
        found, others = port_order(cluster, MODEL, lambda _: None)
        assert found.ring_alone > 0.1
        assert found.gather_alone > 0.6
        assert found.gather > 0.8  # one NIC has both
        assert 0 <= others <= 1
        waited.append(found.waited)
    assert 0.05 < waited[-1] < 0.8, waited


def test_what_a_ring_waited_for_is_a_share_of_the_gather() -> None:
    assert PortOrder(0.5, 2.0, 2.5, 2.5).waited == 1.0
    assert PortOrder(0.5, 2.0, 0.5, 2.5).waited == 0.0
    halves = PortOrder(0.5, 2.0, 1.0, 2.5)
    assert halves.waited == halves.halves == 0.25


def test_one_node_has_nobody_to_go_first() -> None:
    with pytest.raises(ValueError, match=r"^cluster\.num_nodes is 1; who goes first at a NIC takes two nodes or more"):
        port_order(replace(CLUSTER, num_nodes=1), MODEL, lambda _: None)
