"""A world: the described machine with a cause changed, all else as its yaml has it.

What is told of machines is partly measured and partly guessed (docs/cost.md). A ratio of two systems that holds in
every world in which the machine may be has not got it from a guess. `conf/world` has the worlds, each with where its
bound comes from; docs/worlds.md says how they are read.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from zbench.describe.checks import check_slowdown, check_whole_number
from zbench.describe.cluster import LONGEST_WAITING, PLAN, SHARED, Cluster, check_port_order
from zbench.describe.curve import Curve
from zbench.describe.device import CURVES, Device
from zbench.describe.links import MOST_CHANNELS, Domain
from zbench.describe.model import Model
from zbench.describe.units import parse, with_noun

NOMINAL = "nominal"  # the world in which nothing is changed
MOST_TIMES = 1e6  # of a factor: beyond it a quantity leaves what a record's numbers may be
_FACTORS = {
    "nic_bandwidth": "NIC bandwidth",
    "nvlink_bandwidth": "NVLink bandwidth",
    "latency": "latencies",
    "attention_rate": "attention rate",
    "matmul_rate": "matmul rate",
}
_ORDERS = {PLAN: "serve in plan order", LONGEST_WAITING: "serve who has waited longest", SHARED: "are shared"}
_CHANNELS = {"nic_channels": "NIC", "nvlink_channels": "NVLink"}


class Machine(NamedTuple):
    """A cluster and the model that is trained on it, whose setting says whether its layers hide collectives."""

    cluster: Cluster
    model: Model


@dataclass(frozen=True, slots=True)
class World:
    """A world: the changes made to the described machine; without any, the nominal world.

    nic_channels, nvlink_channels: in place of the cluster's, so that one peer reaches bandwidth / channels.
    nic_bandwidth, nvlink_bandwidth: times the cluster's. latency: times the cluster's, of every class of links.
    What is said of NVLink is so of all domains inside a node.
    attention_rate, matmul_rate: times the device's; curves as a whole.
    port_order: in place of the cluster's. compute_slowdown: in place of the device's. matmul_shapes: in place of the
    device's, where its multiprocessors are known.
    nics_above: NICs of at most so many bytes/s have no such world.
    """

    nic_channels: int | None = None
    nvlink_channels: int | None = None
    nic_bandwidth: float = 1.0
    nvlink_bandwidth: float = 1.0
    latency: float = 1.0
    attention_rate: float = 1.0
    matmul_rate: float = 1.0
    port_order: str | None = None
    compute_slowdown: float | None = None
    matmul_shapes: bool | None = None
    nics_above: float = 0.0

    def __post_init__(self) -> None:
        for name in _CHANNELS:
            check_whole_number(f"world.{name}", getattr(self, name), 1, MOST_CHANNELS, or_null=True)
        for name in _FACTORS:
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and 1 / MOST_TIMES <= value <= MOST_TIMES):
                raise ValueError(
                    f"world.{name} is {value!r}; it takes how many times the nominal one it is, a number from "
                    f"{1 / MOST_TIMES:g} to {MOST_TIMES:g}, as in 1.2"
                )
        if self.port_order is not None:
            check_port_order("world.port_order", self.port_order)
        if self.compute_slowdown is not None:
            check_slowdown("world.compute_slowdown", self.compute_slowdown)
        if not isinstance(self.matmul_shapes, bool | None):
            raise ValueError(f"world.matmul_shapes is {self.matmul_shapes!r}; it takes true, false or null")
        above = parse("world.nics_above", self.nics_above, "bytes/s")
        if not 0 <= above < float("inf"):
            raise ValueError(f"world.nics_above is {self.nics_above!r}; it has to be at least 0 and finite")
        object.__setattr__(self, "nics_above", above)

    def of(self, machine: Machine) -> Machine:
        """Returns the machine in this world; in the nominal one itself."""
        if self == World():
            return machine
        return Machine(self.of_cluster(machine.cluster), machine.model)

    def of_cluster(self, cluster: Cluster) -> Cluster:
        """Returns the cluster in this world; NICs that are too narrow for it as they are."""
        if cluster.nic_bandwidth <= self.nics_above:
            return cluster
        device = _faster(cluster.device, self.attention_rate, self.matmul_rate)
        if self.compute_slowdown is not None:
            device = replace(device, compute_slowdown=self.compute_slowdown)
        if self.matmul_shapes is not None and device.multiprocessors:
            device = replace(device, matmul_shapes=self.matmul_shapes)
        return replace(
            cluster,
            nic_bandwidth=cluster.nic_bandwidth * self.nic_bandwidth,
            nvlink_bandwidth=cluster.nvlink_bandwidth * self.nvlink_bandwidth,
            nic_latency=cluster.nic_latency * self.latency,
            nvlink_latency=cluster.nvlink_latency * self.latency,
            host_latency=None if cluster.host_latency is None else cluster.host_latency * self.latency,
            nic_channels=self.nic_channels or cluster.nic_channels,
            nvlink_channels=self.nvlink_channels or cluster.nvlink_channels,
            domains=tuple(map(self._domain, cluster.domains)),
            port_order=self.port_order or cluster.port_order,
            device=device,
        )

    def _domain(self, domain: Domain) -> Domain:
        return replace(
            domain,
            bandwidth=domain.bandwidth * self.nvlink_bandwidth,
            latency=domain.latency * self.latency,
            channels=self.nvlink_channels or domain.channels,
        )

    def missing(self, machine: Machine) -> str | None:
        """Returns why the machine has no such world, as a sentence goes on; None where it has, and in the nominal
        one."""
        if self == World():
            return None
        cluster = machine.cluster
        if cluster.nic_bandwidth <= self.nics_above:
            return (
                f"it is of NICs of more than {_gbit(self.nics_above)} (world.nics_above), and those of {cluster.name} "
                f"have {_gbit(cluster.nic_bandwidth)}"
            )
        changed = self.of(machine)
        if changed == machine:
            return f"it changes nothing on {cluster.name}, where {self.words} is nominal"
        if _used(changed, cluster) == machine:
            unused = "links inside a node" if cluster.gpus_per_node == 1 else "NICs"
            shape = f"{with_noun(cluster.num_nodes, 'node')} of {with_noun(cluster.gpus_per_node, 'GPU')}"
            return f"it changes {unused} alone, and {cluster.name} of {shape} sends nothing over them"
        return None

    def told(self, machine: Machine) -> str:
        """Tells what is changed of this machine: `words`, but of channels those of the links that had others."""
        cluster, count = machine.cluster, self.nvlink_channels
        if count is None or count != cluster.nvlink_channels:
            return self.words
        others = [one.name for one in cluster.domains if one.channels != count]
        if not others:
            return self.words
        return self.words.replace(f"NVLink channels {count}", f"channels of {' and '.join(others)} {count}")

    @property
    def words(self) -> str:
        """The changes as tables tell them: 'latencies x 3'."""
        told = [_times(words, getattr(self, name)) for name, words in _FACTORS.items() if getattr(self, name) != 1]
        given = {words: getattr(self, name) for name, words in _CHANNELS.items()}
        told += [f"{words} channels {count}" for words, count in given.items() if count is not None]
        if self.port_order is not None:
            told.append(f"ports {_ORDERS[self.port_order]}")
        if self.compute_slowdown is not None:
            told.append(f"computes beside messages x {self.compute_slowdown:.5g}")
        if self.matmul_shapes is not None:
            told.append(f"matmuls {'' if self.matmul_shapes else 'not '}by shape")
        return ", ".join(told) or NOMINAL


def _used(machine: Machine, nominal: Cluster) -> Machine:
    """Returns the machine with links that nothing is sent over as they are in `nominal`: one node's NICs, one GPU's
    ports."""
    cluster = machine.cluster
    same: dict[str, Any] = {}
    if cluster.num_nodes == 1:
        same |= {name: getattr(nominal, name) for name in ("nic_bandwidth", "nic_latency", "nic_channels")}
    if cluster.gpus_per_node == 1:
        same |= {name: getattr(nominal, name) for name in ("nvlink_bandwidth", "nvlink_latency", "nvlink_channels")}
        same["domains"] = nominal.domains
    return Machine(replace(cluster, **same), machine.model)


def _faster(device: Device, attention: float, matmul: float) -> Device:
    """Returns the device with its rates of attention and of matmuls times these."""
    curves: dict[str, Any] = {
        name: _times_rates(curve, attention) for name in CURVES if (curve := getattr(device, name)) is not None
    }
    return replace(
        device,
        matmul_flops=device.matmul_flops * matmul,
        attention_forward_flops=device.attention_forward_flops * attention,
        attention_backward_flops=device.attention_backward_flops * attention,
        matmul_by_tokens={name: _times_rates(curve, matmul) for name, curve in device.matmul_by_tokens.items()},
        **curves,
    )


def _times_rates(curve: Curve, factor: float) -> Curve:
    return replace(curve, rates=tuple(rate * factor for rate in curve.rates))


def _times(words: str, factor: float) -> str:
    """Writes a factor as 'NIC bandwidth +20 %' up to twice as much, 'latencies x 3' beyond."""
    return f"{words} {100 * (factor - 1):+.4g} %" if 0.5 < factor < 2 else f"{words} x {factor:.4g}"


def _gbit(bandwidth: float) -> str:
    return f"{8 * bandwidth / 1e9:g} Gbit/s"
