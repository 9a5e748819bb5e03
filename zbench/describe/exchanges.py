"""The overlap of a tensor-parallel group's exchanges with its matmuls, as a run chooses it.

Pure data: conf/overlap sets it, zbench.step.passes.overlap builds it. What of ZeRO's gathers and reductions is beside
the layers is another matter (zbench.describe.overlap).
"""

from dataclasses import dataclass

from zbench.describe.checks import check_whole_number

NONE, SLICED, ASYNC_TP, COMMFUSE = METHODS = ("none", "sliced", "async_tp", "commfuse")
RING, DIRECT = TRANSFERS = ("ring", "direct")
MOST_SLICES = 64  # more are smaller than the tiles of a matmul for every length that was tried: a guess


@dataclass(frozen=True, slots=True)
class ExchangeOverlap:
    """The way in which gathers of hidden states and reductions of partial sums go beside matmuls.

    method: none, one collective each; sliced, a collective for each slice of the tokens; async_tp, gathers and
        reductions as messages, each behind the matmul that reads or makes what it moves; commfuse, as messages, behind
        all matmuls in a row between a gather and a reduction.
    slices: in which each GPU's own tokens are cut. transfers: of messages, ring (from neighbour to neighbour, where
        sums are added to on the way) or direct (from each GPU straight to each other one).

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    method: str = NONE
    slices: int = 1
    transfers: str = RING

    def __post_init__(self) -> None:
        for name, value, choices in (("method", self.method, METHODS), ("transfers", self.transfers, TRANSFERS)):
            if value not in choices:
                raise ValueError(f"overlap.{name} is {value!r}; it takes {', '.join(choices[:-1])} or {choices[-1]}")
        check_whole_number("overlap.slices", self.slices, 1, MOST_SLICES)
        if self.method == NONE and self.slices != 1:
            raise ValueError(f"overlap.slices is {self.slices}; overlap=none cuts no exchange, so it takes 1")
        fixed = {SLICED: RING, NONE: RING, ASYNC_TP: DIRECT}.get(self.method, self.transfers)
        if self.transfers != fixed:
            raise ValueError(f"overlap.transfers is {self.transfers}; overlap={self.method} takes {fixed}")


WHOLE = ExchangeOverlap()  # each exchange is one collective
