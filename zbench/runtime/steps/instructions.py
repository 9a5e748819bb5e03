"""The instructions of one process: what operations of a template are for the places that it holds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from zbench.step.template import Encoding, Step

Parts = tuple[int, ...]  # of an index, ascending
Cell = tuple[int, int]  # parts along both axes, 0 where there is none


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a tensor: all pairs of two lists of parts. layer: offset to the instance's, 0 of tensors of no layer.

    An axis that the tensor has not is the list (0,). some: the pairs that there are, where these are not all: of a
    tensor with amounts, those with a token.
    """

    tensor: int
    layer: int
    first: Parts
    second: Parts
    some: tuple[Cell, ...] | None = None

    def pairs(self) -> list[Cell]:
        """Lists the cells, the second axis running fastest."""
        if self.some is not None:
            return list(self.some)
        return [(a, b) for a in self.first for b in self.second]


@dataclass(frozen=True, slots=True)
class Compute:
    """A formula on a place. slots: the parts of every slot. reads, writes: cells of its operands and its results.
    seconds: that it takes a paced device. op: its number among the template's operations, -1 of none."""

    place: int
    formula: int
    slots: tuple[Parts, ...]
    reads: tuple[Cells, ...]
    writes: tuple[Cells, ...]
    seconds: float = 0.0
    op: int = -1


@dataclass(frozen=True, slots=True)
class Parcel:
    """Cells on their way between two places. peer: the process that holds the other end. shares: of what is spread over
    the NICs of a node, the process that each share goes to next, or comes from; (): it is one message."""

    cells: Cells
    src: int
    dst: int
    peer: int
    shares: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RelayedShare:
    """A share of a parcel that a process passes on for others. part, parts: which of how many; way: the processes that
    it comes from, is passed on by and goes to. is_first: whether it comes from where the parcel does, and was not
    passed on before."""

    cells: Cells
    part: int
    parts: int
    way: tuple[int, int, int]
    is_first: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """The transfers of one operation that this process has a part in.

    sends, receives: messages; copies: between two places of this process. takes: contributions of a sum leave their
    place, and are added where they arrive. purpose: what its bytes and waits are told as
    (zbench.step.operations.PURPOSE_OF). encoding: of what it carries, None: as it lies. op: as of Compute. relays:
    what the process passes on of transfers that are spread over NICs; who does has no other part in the operation.
    """

    purpose: int
    encoding: Encoding | None
    takes: bool
    sends: tuple[Parcel, ...]
    receives: tuple[Parcel, ...]
    copies: tuple[Parcel, ...]
    op: int = -1
    relays: tuple[RelayedShare, ...] = ()

    @property
    def cells(self) -> Cells:
        """The cells of one of its messages or copies."""
        moved: tuple[Parcel | RelayedShare, ...] = (*self.sends, *self.receives, *self.copies, *self.relays)
        return moved[0].cells


@dataclass(frozen=True, slots=True)
class Forget:
    """Cells of a tensor that a place forgets: a drop of the step, or what nothing reads any more."""

    place: int
    tensor: int
    layer: int
    cells: tuple[Cell, ...]


Instruction = Compute | Exchange | Forget


@dataclass(frozen=True, slots=True)
class TemplateProgram:
    """A template for one process, played from one start. layout: the number of its layout."""

    name: str
    layout: int
    instructions: tuple[Instruction, ...]


# Where a template is played from: a place; or ACROSS and, by pipeline, the places from its first stage to another one.
Start = tuple[int, ...]
Programs = Mapping[tuple[int, Start], TemplateProgram]  # by a template's number and its start


def holders(step: Step) -> tuple[int, ...]:
    """Returns the process that holds every place: GPU r process r, a node's host memory the node's first one.

    Raises:
        ValueError: the GPUs are not as many for every node with host memory.
    """
    if step.num_hosts and step.num_gpus % step.num_hosts:
        raise ValueError(
            f"a step has {step.num_hosts} host memories for {step.num_gpus} GPUs; to run it takes as many GPUs a node"
        )
    of_hosts = (node * step.num_gpus // step.num_hosts for node in range(step.num_hosts))
    return (*range(step.num_gpus), *of_hosts)
