"""Emulated nodes for real, where this machine allows it: packets, limits, counters, and nothing left behind."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.network.test_wiring import CLUSTER
from zbench.describe.cluster import Cluster
from zbench.runtime.network.namespaces import Network, NoDesk, as_root, enter
from zbench.runtime.network.wiring import Wiring, address

RATE = CLUSTER.nic_bandwidth  # bytes/s
SIZE = 3_000_000


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    yield from opened(CLUSTER)


@pytest.fixture(scope="module")
def halved() -> Iterator[Network]:
    """With two channels a link."""
    yield from opened(replace(CLUSTER, nic_channels=2, nvlink_channels=2, nvlink_bandwidth=RATE))


def opened(cluster: Cluster) -> Iterator[Network]:
    try:
        made = Network(Wiring.of(cluster))
    except NoDesk as error:
        pytest.skip(str(error))
    yield made
    made.close()


class Stream(threading.Thread):
    """Sends SIZE bytes from a rank to another; `rate`: bytes/s that arrived."""

    def __init__(self, network: Network, src: int, dst: int) -> None:
        super().__init__(daemon=True)
        self.network, self.src, self.dst = network, src, dst
        self.rate = 0.0
        self._listening = threading.Event()

    def run(self) -> None:
        receiver = threading.Thread(target=self._receive, daemon=True)
        receiver.start()
        assert self._listening.wait(10)
        enter(self.network.descriptors[self.network.wiring.rank(self.src)])
        with socket.create_connection((address(CLUSTER, self.dst), 5000 + self.src), 10) as connection:
            connection.sendall(bytes(SIZE))
        receiver.join(30)

    def _receive(self) -> None:
        enter(self.network.descriptors[self.network.wiring.rank(self.dst)])
        with socket.create_server((address(CLUSTER, self.dst), 5000 + self.src)) as server:
            self._listening.set()
            connection, _ = server.accept()
            with connection:
                got = len(connection.recv(1 << 16))
                began, early = time.monotonic(), got
                while piece := connection.recv(1 << 16):
                    got += len(piece)
                assert got == SIZE
                self.rate = (got - early) / (time.monotonic() - began)


def streams(network: Network, *pairs: tuple[int, int]) -> list[float]:
    running = [Stream(network, *pair) for pair in pairs]
    for one in running:
        one.start()
    for one in running:
        one.join(60)
    return [one.rate for one in running]


def test_a_nic_limits_and_counts_what_crosses_it(network: Network) -> None:
    before = network.nic_bytes()
    (rate,) = streams(network, (0, 4))
    assert 0 < rate < 1.1 * RATE  # however slow the machine, never faster
    moved = [(tx - old_tx, rx - old_rx) for (tx, rx), (old_tx, old_rx) in zip(network.nic_bytes(), before, strict=True)]
    assert SIZE <= moved[0][0] < 1.03 * SIZE
    assert SIZE <= moved[2][1] < 1.03 * SIZE
    assert max(moved[1][0], moved[3][1]) < 10_000


def test_ranks_of_one_nic_share_it(network: Network) -> None:
    assert sum(streams(network, (0, 4), (1, 5))) < 1.2 * RATE


@pytest.mark.parametrize("peers", [(4, 5), (1, 2)], ids=["NIC", "NVLink"])
def test_one_peer_has_a_channel_and_all_of_them_the_link(halved: Network, peers: tuple[int, int]) -> None:
    (alone,) = streams(halved, (0, peers[0]))
    together = streams(halved, *((0, peer) for peer in peers))
    assert 0 < alone < 0.55 * RATE  # however slow the machine, never faster than a channel
    assert max(together) < 0.55 * RATE
    assert sum(together) > 1.5 * alone


def test_a_node_reaches_its_own_ranks_past_the_nic(network: Network) -> None:
    before = network.nic_bytes()
    streams(network, (0, 1))
    assert all(now[0] - old[0] < 10_000 for now, old in zip(network.nic_bytes(), before, strict=True))


def test_two_at_once_do_not_meet_and_nothing_is_left(network: Network) -> None:
    before = seen()
    second = Network(Wiring.of(CLUSTER))
    assert seen() == before
    second.close()
    assert seen() == before


def seen() -> list[Path]:
    """Interfaces and namespaces with a name on this machine."""
    return [one for folder in ("/sys/class/net", "/run/netns") for one in sorted(Path(folder).glob("*"))]


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoDesk, match=r"emulated nodes need the command ip .*which is not on PATH"):
        Network(Wiring.of(CLUSTER))


def test_who_is_not_root_and_gets_no_user_namespace_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho unshare failed: not permitted >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NoDesk, match="this user is not root and gets none: 'unshare failed: not permitted'"):
        as_root()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert as_root() == []
