"""The parts that a program is made of: one rank's part of a list of operations, as data. No torch: numpy only.

zbench.runtime.program.compiler makes programs of plans, zbench.runtime.training.attention runs them. **Rows** of a
rank's own tokens are numbered block after block (`home`); what comes from other ranks, or is on its way to them, lives
in **slots**: memory for some blocks of one tensor and a range of query heads, rows in list order. A part says
which rows and heads go from a slot (or from home) to which rows of another.
"""

from dataclasses import dataclass
from typing import Any

HOME = -1  # in place of a slot's number: the rank's own tokens, all heads
Rows = slice | Any  # a run of rows, or whatever index the runtime made of an array of them


def is_run(rows: Rows, run: slice) -> bool:
    """Returns whether rows are this run; an index made of an array is none, and would compare element by element."""
    return isinstance(rows, slice) and rows == run


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of memory for `tensor`; query heads [lo, hi); rows. inside: the slot of which this one is a part, and its
    first row there."""

    tensor: int
    lo: int
    hi: int
    rows: int
    inside: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a slot: rows of `slot` and query heads [lo, hi), which go to the rows `to` of something else."""

    slot: int
    rows: Rows
    lo: int
    hi: int
    to: Rows
    fresh: bool = False  # nothing was written there before: copy instead of adding


@dataclass(frozen=True, slots=True)
class Fill:
    """An instruction to put a slot together from parts, before its first use."""

    slot: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of `slot` (of `tensor`, where it is HOME) for query heads [lo, hi), as a kernel takes them."""

    tensor: int
    slot: int
    rows: Rows
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Add:
    """The place where an attend's result goes: rows of `slot`. fresh: nothing is there yet.
    whole: these are all that the slot has (all of the rank's own rows and heads, where it is HOME), in order."""

    tensor: int
    slot: int
    rows: Rows
    lo: int
    hi: int
    fresh: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class KernelCall:
    """An instruction for one kernel call, of query heads [lo, hi). do: None in the forward. cuts: the segments as the
    kernel wants them. adds: of o in the forward; of dq and of dkv in the backward. seconds: modelled, of the cluster's
    device; 0 where nobody asked. repacking: of these, an all-to-all's."""

    op: int
    lo: int
    hi: int
    q: Read
    kv: Read
    do: Read | None
    cuts: Any
    fills: tuple[Fill, ...]
    adds: tuple[Add, ...]
    seconds: float
    repacking: float


@dataclass(frozen=True, slots=True)
class Receive:
    """A message, or a share of one: bytes [begin, end) of `slot`; slot HOME: bytes that only pass through."""

    hop: int
    peer: int
    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Send:
    """An instruction to send transfer `op`'s message and its hops (hop, peer, begin, end), in bytes of the message.

    whole: the slot that is the message as it stands (with `parts` added to it), HOME if it has to be put together.
    after: attends of the program that have to be done before. start: parts leave rows or heads of it out, or add.
    """

    op: int
    tensor: int
    lo: int
    hi: int
    rows: int
    whole: int
    parts: tuple[Part, ...]
    hops: tuple[tuple[int, int, int, int], ...]
    after: int
    start: bool


@dataclass(frozen=True, slots=True)
class Relay:
    """A share of a routed message that this rank passes on: what receive number `received` brings leaves by `hop`."""

    received: int
    hop: int
    peer: int


@dataclass(frozen=True, slots=True)
class Collect:
    """Partial sums that came home: parts of slots, added to the rank's own rows (Part.to) of `tensor`, in order."""

    tensor: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages that a rank posts together: receives and sends (indices), once `at` attends are started."""

    at: int
    receives: tuple[int, ...]
    sends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program: one rank's part of a plan's forward or backward.

    uses: how often each slot is read. imported: the forward program's slots that are this one's first slots
    (received copies that were kept).
    receives: in the order in which they are posted; arrives: per slot its receives (indices), empty if none.
    sends: in the order in which they leave. batches: the same in batches, for a transport that needs them.
    covered: the sums at home of which every row and head is first written afresh, so that they need no zeros.
    linear: modelled seconds of the linear modules before it (after it, in the backward), 0 where nobody asked.
    deltas: whether row sums of do * o leave home, in a message or a filled slot.
    """

    slots: tuple[Slot, ...]
    uses: tuple[int, ...]
    imported: tuple[int, ...]
    attends: tuple[KernelCall, ...]
    receives: tuple[Receive, ...]
    arrives: tuple[tuple[int, ...], ...]
    sends: tuple[Send | Relay, ...]
    collects: tuple[Collect, ...]
    covered: tuple[int, ...]
    deltas: bool
    linear: float = 0.0
    batches: tuple[MessageBatch, ...] = ()
