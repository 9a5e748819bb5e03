"""What the links of a small desk give, where this machine allows it."""

from dataclasses import replace

import pytest

from tests.runtime.network.test_wiring import CLUSTER
from zbench.describe.model import Model
from zbench.desk import links
from zbench.desk.links import ROUNDS, measure
from zbench.runtime.network import wiring

MODEL = Model("small", 2, 16, 2, 2, 8, 24, 64, element_bytes=4)


@pytest.mark.usefixtures("namespaces")
def test_payload_gets_most_of_a_link_and_never_more_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SECONDS", 0.2)
    monkeypatch.setattr(links, "TIMES", 2)
    cluster = replace(CLUSTER, gpus_per_node=2, nics_per_node=1, nic_bandwidth=2e6, nvlink_bandwidth=8e6)
    found, others = measure(cluster, MODEL, lambda _: None)
    assert set(found) == {"nic", "nvlink"}
    for name, link in found.items():
        # However busy the machine: what one rank sends before the other looks at its clock is at most what the
        # receiver's window and the two limits on the way let through.
        ranks = 2 if name == "nic" else 1
        ahead = ranks * (wiring.window(link.bandwidth) + 2 * wiring.burst(link.bandwidth))
        most = 1.0 + ahead / (ROUNDS * links.SECONDS * link.bandwidth)
        assert 0.5 < link.efficiency < most
        assert 0.4 < link.one < most
        assert 0 < link.latency < 0.1
    assert 0 <= others <= 1


@pytest.mark.usefixtures("namespaces")
def test_one_peer_gets_a_channel_and_all_of_them_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two peers on the other node; one on the own node, which has one channel of two whatever is sent to it."""
    monkeypatch.setattr(links, "SECONDS", 0.15)
    monkeypatch.setattr(links, "TIMES", 3)
    shape = replace(CLUSTER, gpus_per_node=2, nics_per_node=2, nic_bandwidth=2e6, nvlink_bandwidth=2e6)
    found, _ = measure(replace(shape, nic_channels=2, nvlink_channels=2), MODEL, lambda _: None)
    assert 0.3 < found["nic"].one < 0.6
    assert found["nic"].efficiency > 1.4 * found["nic"].one
    assert 0.3 < found["nvlink"].one < 0.6
    assert 0.3 < found["nvlink"].efficiency < 0.6


@pytest.mark.parametrize("name", ["nic", "nvlink"])
def test_a_real_cluster_is_refused_before_anything_starts(name: str) -> None:
    cluster = replace(CLUSTER, **{f"{name}_bandwidth": 1e13})
    with pytest.raises(ValueError, match=f"cluster.{name}_bandwidth is 1e\\+13 bytes/s; .* this machine has"):
        measure(cluster, MODEL, lambda _: None)
