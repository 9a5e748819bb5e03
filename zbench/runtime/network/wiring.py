"""The wiring of a desk cluster: its namespaces, and what is in each, names, addresses, links, rates. Pure.

    rank 0   rank 1  ...              a namespace each: `nic` (to other nodes), `nvl` (to its own node)
      |  \\     |  \\
     nvs  c0   nvs c0, c1, ...         node's namespace: a bridge a NIC, and one that stands for the NVLink switch
           |        |
          switch (one bridge)          the fabric's namespace: a port a NIC

Every link is limited where packets leave it, in both directions: a NIC sends through its uplink `up<nic>` in the
node, and receives through the switch's port `n<node>c<nic>`; NVLink likewise through `nvl` in the rank and
`v<local>` in the node. Limiting only senders would let many of them overrun one receiver.

Where links have several channels (Cluster.nic_channels, nvlink_channels) a rank's `nic` and `nvl` let no more through
to any one peer than a channel has; all peers together have what the link has.
"""

from dataclasses import dataclass

from zbench.describe.cluster import Cluster

SWITCH = 0  # the fabric's place among the namespaces; nodes and ranks follow
MTU = 9000
LIMIT = 4_000_000  # bytes that wait at a limited port before any is dropped
_BURST_SECONDS = 2e-3
_WINDOW_SECONDS = 10e-3
_LEAST_WINDOW = 64 * 1024


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace of the wiring. name: for messages. ip, tc: lines for `ip -batch` and `tc -batch`, run in this
    order, all ip's first.
    sysctl: (path below /proc/sys, value)."""

    name: str
    ip: tuple[str, ...]
    tc: tuple[str, ...]
    sysctl: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wiring:
    """The wiring of a cluster's namespaces: the switch, then nodes, then ranks.

    In `ip` lines '{3}' stands for the namespace at place 3, however it is named where they run.
    """

    namespaces: tuple[Namespace, ...]
    num_nodes: int
    num_ranks: int
    nics_per_node: int

    def node(self, node: int) -> int:
        """Returns the place of a node's namespace."""
        return 1 + node

    def rank(self, rank: int) -> int:
        """Returns the place of a rank's namespace."""
        return 1 + self.num_nodes + rank

    def uplink(self, nic: int) -> tuple[int, str]:
        """Returns the uplink of a NIC, counted over the whole cluster: (place of the namespace, interface) whose
        counters are the NIC's."""
        return self.node(nic // self.nics_per_node), f"up{nic % self.nics_per_node}"

    @staticmethod
    def of(cluster: Cluster) -> "Wiring":
        """Wires a cluster.

        Raises:
            ValueError: more nodes or GPUs than there are addresses for, or links of a domain.
        """
        if cluster.domains:
            name = cluster.domains[0].name
            raise ValueError(f"cluster.domains has {name}; a desk cluster has links of nodes and NICs, and no others")
        for name in ("num_nodes", "gpus_per_node"):
            if getattr(cluster, name) > 250:
                raise ValueError(f"cluster.{name} is {getattr(cluster, name)}; a desk cluster takes at most 250")
        nodes = range(cluster.num_nodes)
        spaces = [_switch(cluster), *(_node(cluster, node) for node in nodes)]
        spaces += [_rank(cluster, rank) for rank in range(cluster.num_ranks)]
        return Wiring(tuple(spaces), cluster.num_nodes, cluster.num_ranks, cluster.nics_per_node)


def degraded(cluster: Cluster, nic: int, share: float) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Returns the command that leaves a NIC `share` of its rate both ways, (place of a namespace, command to run
    there); 0 takes it down.

    1 brings back one that was slow or down. Channels are ranks' own and stay as they are: what one peer gets is the
    lesser of a channel and what is left of the NIC.
    """
    node, local = divmod(nic, cluster.nics_per_node)
    uplink, port = (1 + node, f"up{local}"), (SWITCH, f"n{node}c{local}")
    if share == 0:
        return ((uplink[0], ("ip", "link", "set", uplink[1], "down")),)
    slow = [
        (place, ("tc", *_limited(name, share * cluster.nic_bandwidth, "change").split()))
        for place, name in (uplink, port)
    ]
    return ((uplink[0], ("ip", "link", "set", uplink[1], "up")), *slow)


def address(cluster: Cluster, rank: int) -> str:
    """Returns the address of a rank between nodes."""
    node, local = divmod(rank, cluster.gpus_per_node)
    return f"10.77.{node}.{local + 1}"


def _switch(cluster: Cluster) -> Namespace:
    ip, tc = _bridge("switch"), []
    for node in range(cluster.num_nodes):
        for nic in range(cluster.nics_per_node):
            port = f"n{node}c{nic}"
            ip += _pair(port, f"up{nic}", 1 + node)
            ip += _into("switch", port)
            tc.append(_limited(port, cluster.nic_bandwidth))
    return Namespace("the switch", tuple(ip), tuple(tc))


def _node(cluster: Cluster, node: int) -> Namespace:
    """Wires a node; it comes after the switch, which made the uplinks."""
    ip, tc = _bridge("nvs"), []
    for nic in range(cluster.nics_per_node):
        ip += _bridge(f"c{nic}") + _into(f"c{nic}", f"up{nic}")
        tc.append(_limited(f"up{nic}", cluster.nic_bandwidth))
    for local in range(cluster.gpus_per_node):
        place = 1 + cluster.num_nodes + node * cluster.gpus_per_node + local
        nic = local * cluster.nics_per_node // cluster.gpus_per_node
        ip += _pair(f"r{local}", "nic", place) + _into(f"c{nic}", f"r{local}")
        ip += _pair(f"v{local}", "nvl", place) + _into("nvs", f"v{local}")
        tc.append(_limited(f"v{local}", cluster.nvlink_bandwidth))
    return Namespace(f"node {node}", tuple(ip), tuple(tc))


def _rank(cluster: Cluster, rank: int) -> Namespace:
    """Wires a rank; it comes after its node. One address, on `nic`; ranks of the same node are reached by `nvl`."""
    own = address(cluster, rank)
    node = rank // cluster.gpus_per_node
    across, inside = (window(one / count) for one, count in _links(cluster))  # of a connection: it has one channel
    ip = (
        "link set lo up",
        f"address add {own}/32 dev nic",
        "link set nic up",
        "link set nvl up",
        f"route add 10.77.0.0/16 dev nic src {own} window {across}",
        f"route add 10.77.{node}.0/24 dev nvl src {own} window {inside}",
    )
    most = max(across, inside)
    sysctl = (
        ("net/ipv4/tcp_congestion_control", "reno"),
        ("net/ipv4/tcp_rmem", f"4096 {_LEAST_WINDOW} {most}"),
        ("net/ipv4/tcp_wmem", f"4096 {_LEAST_WINDOW} {most}"),
        ("net/ipv4/tcp_slow_start_after_idle", "0"),
        ("net/ipv4/tcp_early_retrans", "0"),  # nothing is lost: probes would send again what waits for its link
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/nvl/rp_filter", "0"),
    )
    mates = [other for other in range(cluster.num_ranks) if other != rank and other // cluster.gpus_per_node == node]
    others = [other for other in range(cluster.num_ranks) if other // cluster.gpus_per_node != node]
    tc: list[str] = []
    for port, (rate, channels), peers in zip(("nic", "nvl"), _links(cluster), (others, mates), strict=True):
        if channels > 1:
            tc += _channelled(port, rate, channels, [address(cluster, peer) for peer in peers])
        elif port == "nvl":  # a NIC is limited in its node
            tc.append(_limited(port, rate))
    return Namespace(f"rank {rank}", ip, tuple(tc), sysctl)


def _links(cluster: Cluster) -> tuple[tuple[float, int], tuple[float, int]]:
    """Returns (bytes/s, channels) of a NIC, and of a rank's NVLink."""
    return (cluster.nic_bandwidth, cluster.nic_channels), (cluster.nvlink_bandwidth, cluster.nvlink_channels)


def _bridge(name: str) -> list[str]:
    return [f"link add {name} mtu {MTU} type bridge", f"link set {name} up"]


def _pair(port: str, other: str, place: int) -> list[str]:
    """Writes the line that makes two ends of a cable: `port` here, `other` in another namespace."""
    return [f"link add {port} mtu {MTU} type veth peer name {other} mtu {MTU} netns {{{place}}}"]


def _into(bridge: str, port: str) -> list[str]:
    return [f"link set {port} master {bridge} up"]


def window(rate: float) -> int:
    """Returns how many bytes of a connection may be under way on a link of `rate` bytes/s, most of them waiting for it.
    A wider one keeps others waiting behind them: messages that a step needs, and the small ones that gloo sends ahead
    of each."""
    return max(_LEAST_WINDOW, int(rate * _WINDOW_SECONDS))


def burst(rate: float) -> int:
    """Returns how many bytes a link of `rate` bytes/s lets through at once after a rest."""
    return max(int(rate * _BURST_SECONDS), 2 * MTU)


def _channelled(port: str, rate: float, channels: int, peers: list[str]) -> list[str]:
    """Returns a hierarchical token bucket: `rate` for all peers, a channel's share of it for each; what goes to nobody
    of them (the kernel's own packets) passes by."""
    each = rate / channels
    lines = [f"qdisc add dev {port} root handle 1: htb", _class(port, "1:", 1, rate, rate)]
    for number, peer in enumerate(peers, start=2):
        lines.append(_class(port, "1:1", number, min(each, rate / len(peers)), each))
        lines.append(f"filter add dev {port} parent 1: protocol ip u32 match ip dst {peer}/32 flowid 1:{number:x}")
    return lines


def _class(port: str, parent: str, number: int, rate: float, most: float) -> str:
    """Writes the line of a class of traffic. rate: that it has whatever others send; most: with what they leave.
    Classes take turns packet by packet."""
    bits = f"rate {round(rate * 8)}bit ceil {round(most * 8)}bit burst {burst(rate)} cburst {burst(most)}"
    return f"class add dev {port} parent {parent} classid 1:{number:x} htb {bits} quantum {MTU}"


def _limited(port: str, rate: float, verb: str = "add") -> str:
    """Writes the line of a token bucket; a packet may be as large as its burst, which large ones are cut to."""
    return f"qdisc {verb} dev {port} root tbf rate {round(rate * 8)}bit burst {burst(rate)} limit {LIMIT}"
