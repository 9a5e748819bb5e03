"""Degrees by which parameters, gradients and optimizer state are cut: each over a run of ranks that follow one another.

Ranks are numbered by bandwidth, nearest first, so a degree of 2 is a pair and one of a node's ranks the node. Each
degree divides the next: what a rank has of a coarser cut is made of whole parts of the finer one, so that to change
from one to the other is to gather or to reduce, never to move parts about. ZeRO's stages are such degrees.

Transfers between them may have fewer bits: blocks of values are whole numbers with a scale each, the largest absolute
value of the block over the largest such number (127 of 8 bits, 7 of 4), as block quantisation is in ZeRO++ (Wang et al.
2023, arXiv 2306.10209).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from zbench.describe.checks import check_whole_number, is_whole
from zbench.describe.units import with_noun

WORLD, NODE = 0, -1  # in place of a number of ranks: all there are, those of a node
NESTED = "nested"  # in place of a strategy's name
FLAT, BY_NODE = "flat", "node"
NAMES = ("weights", "secondary", "gradients", "optimizer")
HOPS = ("updates", "reductions")  # what may go node by node
_ORDER = ("secondary", "weights", "gradients", "optimizer")  # in which each divides the next
_WORDS = {"node": NODE, "world": WORLD}
_WORD_OF = {number: word for word, number in _WORDS.items()}


SCALE_BYTES = 4  # of a block: a float32, as deepspeed's quantizer has them
BLOCK = 4096  # the best number of values a scale, as deepspeed 0.19.8 says beside its own (partition_parameters.py)
MOST_BLOCK = 2**30
KINDS = ("weights", "secondary", "gradients", "updates")
PARAMETER_KINDS = ("weights", "secondary", "updates")
FEW = (4, 8)


@dataclass(frozen=True)
class TransferBits:
    """Bits of a value in each kind of transfer, None: as it is computed with.

    weights: parameters, gathered for a forward. secondary: what stays of them, gathered for a backward. gradients:
    reduced, in every micro-batch and over the rest. updates: updated parameters, on their way from where they rest to
    where they are held in a step. block: values that share a scale.
    """

    weights: int | None = None
    secondary: int | None = None
    gradients: int | None = None
    updates: int | None = None
    block: int = BLOCK

    @staticmethod
    def of(given: Any) -> "TransferBits":
        """Reads bits by name, as a yaml has them; None: no transfer has fewer.

        Raises:
            ValueError: they are something else, or no transfer can have them.
        """
        if given is None:
            return PLAIN
        if not isinstance(given, Mapping) or set(given) - {*KINDS, "block"}:
            raise ValueError(f"sharding.bits is {given!r}; it takes null, or some of {', '.join(KINDS)} and block")
        for name in KINDS:
            bits = given.get(name)
            if bits is not None and (isinstance(bits, bool) or bits not in FEW):
                raise ValueError(
                    f"sharding.bits.{name} is {bits!r}; it takes 4, 8, or null for as many as values are computed with"
                )
        check_whole_number("sharding.bits.block", given.get("block", BLOCK), 1, MOST_BLOCK)
        return TransferBits(**given)

    def __str__(self) -> str:
        told = [f"{name}{bits}" for name, bits in asdict(self).items() if name in KINDS and bits is not None]
        return "+".join([*told, f"block{self.block}"]) if told else ""

    def of_kind(self, kind: str) -> int | None:
        """Returns the bits of a kind of transfer."""
        bits: int | None = getattr(self, kind)
        return bits

    def value_bytes(self, kind: str, plain: float) -> float:
        """Returns the bytes of a value in a kind of transfer, its share of a scale included. plain: without bits."""
        bits = self.of_kind(kind)
        return plain if bits is None else bits / 8 + SCALE_BYTES / self.block


PLAIN = TransferBits()


def largest_code(bits: int) -> int:
    """Returns the largest whole number that a value of so many bits is; the smallest is its negative."""
    return (1 << bits - 1) - 1


@dataclass(frozen=True, slots=True)
class ShardDegrees:
    """Ranks over which each is cut, WORLD for all of them; every run of so many ranks has all of it.

    weights: parameters, while a step runs. secondary: what stays of them from a forward for its backward, which is
    gathered among so many. gradients: reduced among so many in every micro-batch, and over the rest once a step.
    optimizer: state, and what of parameters is updated and kept between steps. node: ranks of which the updated
    parameters reach each run once, and are passed on inside it; WORLD: they come from where they were updated. hop:
    ranks that reduce gradients of a micro-batch among themselves first, and then with others; WORLD: all that have
    them together at once. bits: of a value in transfers.
    """

    weights: int
    secondary: int
    gradients: int
    optimizer: int
    node: int = WORLD
    hop: int = WORLD
    bits: TransferBits = PLAIN

    @staticmethod
    def of(given: Any, bits: Any = None) -> "ShardDegrees":
        """Reads degrees by name, and bits, as a yaml has them.

        Raises:
            ValueError: they are something else, or bits are of a transfer that there is not.
        """
        if not isinstance(given, Mapping) or set(given) - {*NAMES, *HOPS} or set(NAMES) - set(given):
            wanted = f"{', '.join(NAMES)}, and maybe {' and '.join(HOPS)}"
            word = "null" if given is None else repr(given)
            raise ValueError(f"sharding.degrees is {word}; with sharding.strategy={NESTED} it takes {wanted}")
        for name in NAMES:
            if given[name] not in tuple(_WORDS) and not (is_whole(given[name]) and given[name] >= 1):
                raise ValueError(
                    f"sharding.degrees.{name} is {given[name]!r}; it takes a whole number of ranks of at least 1, node "
                    "or world"
                )
        hops = [given.get(name, FLAT) for name in HOPS]
        for name, way in zip(HOPS, hops, strict=True):
            if way not in (FLAT, BY_NODE):
                raise ValueError(f"sharding.degrees.{name} is {way!r}; it takes {FLAT} or {BY_NODE}")
        numbers = [int(given[name]) if is_whole(given[name]) else _WORDS[given[name]] for name in NAMES]
        weights, secondary, gradients, optimizer = numbers
        node, hop = (NODE if way == BY_NODE else WORLD for way in hops)
        found = ShardDegrees(weights, secondary, gradients, optimizer, node, hop, TransferBits.of(bits))
        found._check_bits()
        return found

    def _check_bits(self) -> None:
        """Raises ValueError where transfers that there are not have bits."""
        for name, there, why in (
            ("weights", self.weights != 1, "all ranks have all of them"),
            ("secondary", self.secondary != 1, "all ranks keep all parameters for a backward"),
            ("gradients", self.gradients != 1, "no rank has a part of them alone"),
            ("updates", self.optimizer != self.weights, "parameters are updated where a step has them"),
        ):
            if self.bits.of_kind(name) is not None and not there:
                degree = "optimizer and weights alike" if name == "updates" else f"{name} 1"
                raise ValueError(
                    f"sharding.bits.{name} is {self.bits.of_kind(name)}; with sharding.degrees {degree} {why}, so it "
                    "takes null"
                )
        if self.bits.gradients is not None and self.gradients == self.hop == WORLD:
            raise ValueError(
                f"sharding.bits.gradients is {self.bits.gradients}; gradients that are reduced over the world take "
                f"sharding.degrees.reductions={BY_NODE} with it, or what a node's ranks contribute would leave it "
                "rank by rank"
            )

    def __str__(self) -> str:
        cut = ",".join(_WORD_OF.get(one, str(one)) for one in self.cut)
        return f"{NESTED}:{cut}" + (f" {self.bits}" if self.bits != PLAIN else "")

    @property
    def told(self) -> str:
        """The degrees by name, as a yaml has them, for sentences."""
        named = (f"{name}: {_WORD_OF.get(size, size)}" for name, size in zip(NAMES, self.cut, strict=True))
        return f"{{{', '.join(named)}}}"

    @property
    def cut(self) -> tuple[int, int, int, int]:
        """The degrees of weights, secondary weights, gradients and optimizer state."""
        return self.weights, self.secondary, self.gradients, self.optimizer

    def _told_order(self, cut: Sequence[int], ranks: int, called: str, where: str) -> str:
        """Returns the sentence on degrees that do not lie in one another: of the one that alone has to be another, or
        where there are several such, of the first that does not divide the next. cut: in the order of _ORDER."""
        given = {name: getattr(self, name) for name in _ORDER}
        shown = {
            name: f"{size}" if given[name] > 0 else f"{size} ({_WORD_OF[given[name]]})"
            for name, size in zip(_ORDER, cut, strict=True)
        }
        takes = {
            name: [size for size in range(1, ranks + 1) if _nested([*cut[:at], size, *cut[at + 1 :]], ranks)]
            for at, name in enumerate(_ORDER)
        }
        all_of_them = f"the {with_noun(ranks, called)}{where}"
        ways = [name for name, sizes in takes.items() if sizes]
        if len(ways) == 1:
            (name,) = ways
            at, sizes = _ORDER.index(name), takes[ways[0]]
            below = f"a multiple of {_ORDER[at - 1]}, {shown[_ORDER[at - 1]]}, and " if at else ""
            above = f"{_ORDER[at + 1]}, {shown[_ORDER[at + 1]]}" if at + 1 < len(_ORDER) else all_of_them
            return f"sharding.degrees.{name} is {shown[name]}; it takes {below}a divisor of {above}: {_either(sizes)}"
        at = next(at for at, (size, above) in enumerate(pairwise([*cut, ranks])) if above % size)
        other = f"sharding.degrees.{_ORDER[at + 1]}={cut[at + 1]}" if at + 1 < len(_ORDER) else all_of_them
        return f"sharding.degrees.{_ORDER[at]} is {shown[_ORDER[at]]}; it has to divide {other}"

    def of_ranks(self, ranks: int, ranks_per_node: int = 0, called: str = "rank", where: str = "") -> "ShardDegrees":
        """Returns the degrees on so many ranks, NODE as a number and WORLD for what is all ranks. called, where: what
        sentences call one of them, and say behind all of them.

        Raises:
            ValueError: they do not lie in one another.
        """
        every = (*self.cut, self.node, self.hop)
        own = [min(ranks_per_node, ranks) if degree == NODE else degree for degree in every]
        weights, secondary, gradients, optimizer, node, hop = own
        cut = [secondary or ranks, weights or ranks, gradients or ranks, optimizer or ranks]
        if not _nested(cut, ranks):
            raise ValueError(self._told_order(cut, ranks, called, where))
        if node and (node % (weights or ranks) or node in (weights, optimizer) or (optimizer or ranks) % node):
            raise ValueError(
                f"sharding.degrees.updates is {BY_NODE}, of {with_noun(node, called)}; parameters cut over "
                f"{with_noun(weights or ranks, called)} that come from {optimizer or ranks} are not passed on inside "
                f"it, so it takes {FLAT}"
            )
        if hop and (gradients or ranks) % hop and hop % (gradients or ranks):
            raise ValueError(
                f"sharding.degrees.reductions is {BY_NODE}, of {with_noun(hop, called)}; gradients cut over "
                f"{with_noun(gradients or ranks, called)} are not reduced inside it first, so it takes {FLAT}"
            )
        hop = WORLD if hop >= (gradients or ranks) else hop  # one hop reaches all of them
        weights, secondary, gradients, optimizer, node = (WORLD if one == ranks > 1 else one for one in own[:-1])
        return ShardDegrees(weights, secondary, gradients, optimizer, node, hop, self.bits)


def _either(sizes: Sequence[int]) -> str:
    *some, last = map(str, sizes)
    return f"{', '.join(some)} or {last}" if some else last


def _nested(cut: Sequence[int], ranks: int) -> bool:
    """Returns whether each degree divides the next, and the last one the ranks."""
    return not any(above % size for size, above in pairwise([*cut, ranks]))


BY_STRATEGY: Mapping[str, ShardDegrees] = MappingProxyType({
    "none": ShardDegrees(1, 1, 1, 1),
    "zero1": ShardDegrees(1, 1, 1, WORLD),
    "zero2": ShardDegrees(1, 1, WORLD, WORLD),
    "zero3": ShardDegrees(WORLD, WORLD, WORLD, WORLD),
})  # fmt: skip


def degrees_of(sharding: str | ShardDegrees) -> ShardDegrees:
    """Returns the degrees of a model's sharding, which is a strategy's name or has its own."""
    return BY_STRATEGY[sharding] if isinstance(sharding, str) else sharding
