"""What the links of a small desk give, where this machine allows it."""

from dataclasses import replace

import pytest
from test_wiring import CLUSTER

from zbench.desk.links import measure
from zbench.model import Model

MODEL = Model("small", 2, 16, 2, 2, 8, 24, 64, element_bytes=4)


@pytest.mark.usefixtures("namespaces")
def test_payload_gets_most_of_a_link_and_never_more_than_all() -> None:
    cluster = replace(CLUSTER, gpus_per_node=2, nics_per_node=1, nic_bandwidth=2e6, nvlink_bandwidth=8e6)
    found, others = measure(cluster, MODEL, lambda _: None)
    assert set(found) == {"nic", "nvlink"}
    for link in found.values():
        assert 0.5 < link.efficiency < 1.0  # however busy the machine
        assert 0 < link.latency < 0.1
    assert 0 <= others <= 1
