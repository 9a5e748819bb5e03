"""Which namespaces, cables and limits a cluster becomes."""

from dataclasses import replace

import pytest

from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.runtime.network.namespaces import interface_bytes
from zbench.runtime.network.wiring import Wiring, address

DEVICE = Device("cpu", 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e-5, 1e-5)
CLUSTER = Cluster("test", 2, 4, 2, 5e6, 1.0, 1e-4, 4e7, 1.0, 1e-4, DEVICE)


def limited(lines: tuple[str, ...]) -> dict[str, str]:
    return {line.split()[3]: line.split()[7] for line in lines}


def test_every_link_is_limited_where_packets_leave_it() -> None:
    wiring = Wiring.of(CLUSTER)
    switch, *rest = wiring.namespaces
    assert limited(switch.tc) == {f"n{node}c{nic}": "40000000bit" for node in range(2) for nic in range(2)}
    nvlink = {f"v{local}": "320000000bit" for local in range(4)}
    for node in rest[:2]:
        assert limited(node.tc) == {"up0": "40000000bit", "up1": "40000000bit", **nvlink}
    assert [limited(rank.tc) for rank in rest[2:]] == [{"nvl": "320000000bit"}] * 8


def test_a_rank_limits_what_each_peer_gets_where_links_have_channels() -> None:
    """In shares that add up to no more than the link, and up to a channel where others leave it."""
    cluster = replace(CLUSTER, nic_channels=2)
    one, several = (Wiring.of(of).namespaces for of in (CLUSTER, cluster))
    assert one[:3] == several[:3]  # the switch and nodes
    lines = several[3 + 5].tc  # rank 5, on node 1
    assert lines[-1] == one[3 + 5].tc[0]  # NVLink has one channel
    whole, *classes = [line.split() for line in lines if line.startswith("class")]
    assert whole[whole.index("rate") + 1] == whole[whole.index("ceil") + 1] == "40000000bit"
    assert {line[line.index("ceil") + 1] for line in classes} == {"20000000bit"}
    assert [line[line.index("rate") + 1] for line in classes] == ["10000000bit"] * 4
    peers = {line.split()[line.split().index("dst") + 1]: line.split()[-1] for line in lines if "filter" in line}
    assert set(peers) == {f"{address(cluster, rank)}/32" for rank in range(4)}
    assert sorted(peers.values()) == [line[line.index("classid") + 1] for line in classes]
    assert len([line for line in lines if line.startswith("qdisc add dev nic ")]) == 1


def test_ranks_are_tied_to_nics_as_the_cluster_says() -> None:
    wiring = Wiring.of(CLUSTER)
    for node in range(2):
        lines = wiring.namespaces[wiring.node(node)].ip
        tied = [line.split()[4] for local in range(4) for line in lines if line.startswith(f"link set r{local} ")]
        nics = [f"c{nic - node * 2}" for nic in CLUSTER.nic_of[node * 4 : node * 4 + 4].tolist()]
        assert tied == nics


def test_addresses_are_apart_and_those_of_a_node_have_a_route_of_their_own() -> None:
    wiring = Wiring.of(CLUSTER)
    assert len({address(CLUSTER, rank) for rank in range(8)}) == 8
    lines = wiring.namespaces[wiring.rank(6)].ip
    assert f"address add {address(CLUSTER, 6)}/32 dev nic" in lines
    assert f"route add 10.77.0.0/16 dev nic src {address(CLUSTER, 6)} window 65536" in lines  # the least
    assert f"route add 10.77.1.0/24 dev nvl src {address(CLUSTER, 6)} window 400000" in lines  # 10 ms


def test_the_uplink_of_a_nic() -> None:
    wiring = Wiring.of(CLUSTER)
    assert [wiring.uplink(nic) for nic in range(4)] == [(1, "up0"), (1, "up1"), (2, "up0"), (2, "up1")]


def test_there_are_addresses_for_so_many_only() -> None:
    with pytest.raises(ValueError, match=r"cluster.num_nodes is 251; a desk cluster takes at most 250"):
        Wiring.of(replace(CLUSTER, num_nodes=251))


def test_counters_are_read_by_interface() -> None:
    text = (
        "Inter-| Receive\n face |bytes\n  up0: 7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    )
    assert interface_bytes(text) == {"up0": (9, 7), "lo": (0, 0)}
