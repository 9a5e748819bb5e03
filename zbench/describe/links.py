"""Classes of links that a cluster has: who is in one domain, and what a link of it carries.

A message goes over the innermost domain that holds both of its ends. Each domain's links are ports of their own, one a
GPU: those of a pair of GPUs on one card, say, beside those to the rest of the node. Groups of nodes are no domains: a
message that leaves one would take a NIC and the way out of the group at once, and a message takes one link at each end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from zbench.describe.checks import check_name, check_whole_number, is_whole
from zbench.describe.units import parse

# Numbers of classes: a node's links, NICs, then those of domains inside a node, nearest first, then links to the host.
NVLINK, NIC, FIRST_DOMAIN = range(3)
Level = TypeVar("Level")
MOST_CHANNELS = 32  # NCCL's own limit
DOMAIN_KINDS = {"bandwidth": "bytes/s", "latency": "seconds"}


@dataclass(frozen=True, slots=True)
class Link:
    """A link of one class, a direction. rate: bytes/s that large messages reach. latency: seconds of no bytes."""

    name: str
    rate: float
    latency: float
    channels: int


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain of `gpus` ranks that follow one another in a node and have links among themselves beside the node's.

    Where a node has fewer, as in a part of a cluster, the domain is the node.
    bandwidth: bytes/s of one GPU's port to the domain, each direction. efficiency: share of it that large messages
    reach. latency: seconds of a message of no bytes. channels: as a cluster's nvlink_channels.
    """

    name: str
    gpus: int
    bandwidth: float
    efficiency: float
    latency: float
    channels: int = 1

    def __post_init__(self) -> None:
        check_name("cluster.domains", self.name)
        key = f"cluster.domains.{self.name}"
        check_whole_number(f"{key}.gpus", self.gpus, 2)
        for name, kind in DOMAIN_KINDS.items():
            object.__setattr__(self, name, checked_quantity(f"{key}.{name}", getattr(self, name), kind))
        check_share(f"{key}.efficiency", self.efficiency)
        check_channels(f"{key}.channels", self.channels)

    @property
    def link(self) -> Link:
        """The link of the domain, at the rate that large messages reach."""
        return Link(self.name, self.bandwidth * self.efficiency, self.latency, self.channels)


def domains_of(given: Any, gpus_per_node: int) -> tuple[Domain, ...]:
    """Returns the domains of nodes of so many GPUs, nearest first; given: domains, or by name what a yaml says of each.

    Raises:
        ValueError: something that is no domain, or domains that do not lie in one another and in the node.
    """
    if isinstance(given, Mapping):
        given = tuple(_domain(name, of) for name, of in given.items())
    if not isinstance(given, (tuple, list)) or not all(isinstance(one, Domain) for one in given):
        raise ValueError(f"cluster.domains is {given!r}; it takes domains by name, as in {{pair: {{gpus: 2, ...}}}}")
    domains = tuple(sorted(given, key=lambda one: one.gpus))
    for one, other in pairwise(domains):
        if other.gpus % one.gpus or other.gpus == one.gpus:
            outer = f"the {other.gpus} of {other.name}, and be less"
            raise ValueError(f"cluster.domains.{one.name}.gpus is {one.gpus}; it has to divide {outer}")
    for one in domains:
        if one.gpus < gpus_per_node and gpus_per_node % one.gpus:
            wanted = f"gpus_per_node={gpus_per_node}"
            raise ValueError(f"cluster.domains.{one.name}.gpus is {one.gpus}; it has to divide {wanted}")
    return domains


def gathering(levels: Iterable[tuple[Level, int]], num_ranks: int) -> Iterator[tuple[Level, int, int]]:
    """Yields the levels by which `num_ranks` ranks in a row gather what each has: (level, n, hops) of every level of
    links that they need.

    levels: with the ranks that each connects, nearest first. What the n ranks of the level before lack comes in by
    their ports to this one, an even share each, and is passed on inside; hops: messages that follow one another.
    """
    within = 1
    for level, ranks in levels:
        reached = min(ranks, num_ranks)
        if reached > within:
            yield level, within, reached // within - 1
            within = reached


def _domain(name: Any, given: Any) -> Domain:
    keys = Domain.__dataclass_fields__.keys() - {"name"}
    if not isinstance(given, Mapping):
        raise ValueError(f"cluster.domains.{name} is {given!r}; it takes gpus, bandwidth, efficiency and latency")
    for key in sorted(map(str, given.keys() - keys)):
        raise ValueError(f"cluster.domains.{name}.{key} is not known; it has {', '.join(sorted(keys))}")
    for key in sorted(keys - given.keys() - {"channels"}):
        raise ValueError(
            f"cluster.domains.{name}.{key} is not given; a domain has gpus, bandwidth, efficiency, latency"
        )
    return Domain(name, **given)


def checked_quantity(key: str, given: Any, kind: str) -> float:
    """Reads an SI number of `kind`, above 0 unless it is of seconds.

    Raises:
        ValueError: it is none.
    """
    value = parse(key, given, kind)
    if not 0 <= value < float("inf") or (kind != "seconds" and value == 0):
        least = "at least 0 and finite" if kind == "seconds" else "above 0 and finite"
        raise ValueError(f"{key} is {given!r}; it has to be {least}")
    return value


def check_share(key: str, value: Any) -> None:
    """Raises ValueError unless `value` of the field `key` is a share above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"{key} is {value!r}; it takes a share above 0 and at most 1")


def check_channels(key: str, value: Any, words: str = "") -> None:
    """Raises ValueError unless `value` of the field `key` is a number of channels that a link may have."""
    if not is_whole(value) or not 1 <= value <= MOST_CHANNELS:
        given = "null" if value is None else repr(value)
        raise ValueError(f"{key} is {given}; it takes a whole number from 1 to {MOST_CHANNELS}{words}")


@dataclass(frozen=True, slots=True)
class Lanes:
    """The NICs of a node as lanes that a transfer between nodes may be spread over. gpus, nics: of each node, GPU
    l tied to NIC l * nics // gpus, as zbench.describe.cluster.Cluster.nic_of has it."""

    gpus: int
    nics: int

    def ways(self, src: int, dst: int, lanes: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the GPUs that each share of a transfer passes, from src to dst, a lane each; one way without GPUs
        between them where both are on one node."""
        if src // self.gpus == dst // self.gpus:
            return [(src, dst)]
        ways = ((src, self.carrier(src, lane), self.carrier(dst, lane), dst) for lane in lanes)
        return [tuple(dict.fromkeys(way)) for way in ways]

    def carrier(self, gpu: int, lane: int) -> int:
        """Returns the GPU that carries a lane for another one of its node: itself if it is tied to that NIC, else the
        one tied to it that has the other's place among its own NIC's GPUs, so that they share the work."""
        begin, local = gpu - gpu % self.gpus, gpu % self.gpus
        if local * self.nics // self.gpus == lane:
            return gpu
        first = begin + -(-lane * self.gpus // self.nics)
        return first + local % (self.gpus // self.nics)


def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """Returns where a share of so many bytes begins and ends, of `parts` that are as even as they can be."""
    return size * part // parts, size * (part + 1) // parts
