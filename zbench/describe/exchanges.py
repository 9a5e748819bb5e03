"""The overlap of a tensor-parallel group's exchanges with its matmuls, as a run chooses it.

Pure data: conf/overlap sets it, zbench.step.passes.overlap builds it. What of ZeRO's gathers and reductions is beside
the layers is another matter (zbench.describe.overlap).
"""

from dataclasses import dataclass
from typing import NamedTuple

from zbench.describe.checks import check_choice, is_whole

NONE, SLICED, ASYNC_TP, COMMFUSE, QUERY_SPLIT = METHODS = ("none", "sliced", "async_tp", "commfuse", "query_split")
RING, DIRECT = TRANSFERS = ("ring", "direct")
TOKENS, AREA = BALANCES = ("tokens", "area")
BEST = "best"  # of slices
TRIED = (1, 2, 4, 8, 16)  # slices, where the best are looked for
MOST_SLICES = 64  # more are smaller than the tiles of a matmul for every length that was tried: a guess


class TokenSlices(NamedTuple):
    """The cuts of a tensor-parallel group's tokens. number: of slices of about as many tokens, of each GPU's own.
    by_area: whether a GPU's own see about as many keys as another one's, in place of following one another."""

    number: int = 1
    by_area: bool = False


UNCUT = TokenSlices()


@dataclass(frozen=True, slots=True)
class ExchangeOverlap:
    """The way in which gathers of hidden states and reductions of partial sums go beside matmuls.

    method: none, one collective each; sliced, a collective for each slice of the tokens; async_tp, gathers and
        reductions as messages, each behind the matmul that reads or makes what it moves; commfuse, as messages, behind
        all matmuls in a row between a gather and a reduction; query_split, as commfuse, and attention of the same
        tokens beside its output projection.
    slices: in which each GPU's own tokens are cut, or BEST: as many as make the batch's step fastest. transfers: of
        messages, ring (from neighbour to neighbour, where sums are added to on the way) or direct (from each GPU
        straight to each other one). balance: what of each block the GPUs of a group have about as much of: tokens,
        which follow one another, or area, the keys that they see.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    method: str = NONE
    slices: int | str = 1
    transfers: str = RING
    balance: str = TOKENS

    def __post_init__(self) -> None:
        for name, choices in (("method", METHODS), ("transfers", TRANSFERS), ("balance", BALANCES)):
            check_choice(f"overlap.{name}", getattr(self, name), choices)
        if self.slices != BEST and not (is_whole(self.slices) and 1 <= self.slices <= MOST_SLICES):
            raise ValueError(
                f"overlap.slices is {self.slices!r}; it takes a whole number from 1 to {MOST_SLICES}, or {BEST}"
            )
        if self.method == NONE and self.slices != 1:
            raise ValueError(f"overlap.slices is {self.slices}; overlap=none cuts no exchange, so it takes 1")
        fixed = {SLICED: RING, NONE: RING, ASYNC_TP: DIRECT}.get(self.method, self.transfers)
        if self.transfers != fixed:
            raise ValueError(f"overlap.transfers is {self.transfers}; overlap={self.method} takes {fixed}")
        if self.method != QUERY_SPLIT and self.balance != TOKENS:
            raise ValueError(f"overlap.balance is {self.balance}; overlap={self.method} takes {TOKENS}")

    @property
    def is_open(self) -> bool:
        """Whether the number of slices is to be chosen for every batch."""
        return self.slices == BEST

    @property
    def count(self) -> int:
        """The number of slices; one where it is open."""
        return 1 if isinstance(self.slices, str) else self.slices

    @property
    def token_slices(self) -> TokenSlices:
        """The cuts that the method needs."""
        return TokenSlices(self.count, self.balance == AREA)


WHOLE = ExchangeOverlap()  # each exchange is one collective
