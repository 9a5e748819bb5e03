"""A rank's bytes by the tokens that it has: the most of several lines, one for each moment of a step.

At the loss a rank has logits and, where parameters are cut, the whole head; while it is at work on a layer it has what
the backward of that makes, and the layer's parameters. These are never at once, so neither is added to the other: a
rank needs the most of the lines at its tokens, and has room for as many tokens as the line with least room.
"""

from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple


class MomentLine(NamedTuple):
    """The bytes of a rank at one moment: constant + token x tokens + spread x their square root + chunk x the tokens of
    a chunk, or all if fewer.

    constant: however many tokens. token, chunk: of each token of a micro-batch, all that are under way being alike, and
    of each of the chunk's. chunk_tokens: the most that a chunk has. received: layers whose received q and kv are there.
    copies: whether what one layer's attention has for a moment is, copies and partial sums away from home. spread: of
    rows for experts, which are drawn (zbench.cost.memory.spread).
    """

    constant: float
    token: float
    chunk: float = 0.0
    chunk_tokens: int = 0
    received: float = 0.0
    copies: bool = False
    spread: float = 0.0

    def bytes(self, tokens: float, received: float = 0.0, copies: float = 0.0) -> float:
        """Returns the bytes with so many tokens. received, copies: bytes a token, of a layer."""
        size = self.token + received * self.received + copies * self.copies
        of_chunk = self.chunk * min(tokens, self.chunk_tokens)
        return self.constant + size * tokens + self.spread * sqrt(tokens) + of_chunk

    def tokens(self, memory: float, received: float = 0.0, copies: float = 0.0, filled: float = 1.0) -> float:
        """Returns how many tokens have so many bytes, below 0 where the constant is more. received, copies: as `bytes`.
        filled: the share of what the constant leaves that there is room for."""
        size = self.token + received * self.received + copies * self.copies
        room = filled * (memory - self.constant)
        few = self._tokens(room, size + self.chunk)
        return few if few <= self.chunk_tokens else self._tokens(room - self.chunk * self.chunk_tokens, size)

    def _tokens(self, room: float, size: float) -> float:
        """Returns how many tokens of `size` bytes there is room for, with what is spread beside them."""
        if not self.spread or room <= 0:
            return room / size
        root = (sqrt(self.spread**2 + 4 * size * room) - self.spread) / (2 * size)
        return root * root


@dataclass(frozen=True, slots=True)
class MemoryLines:
    """The lines of a rank, or of those of several stages, of which the fullest counts: what planners ask for room."""

    lines: tuple[MomentLine, ...]

    def bytes(self, tokens: float, received: float = 0.0, copies: float = 0.0) -> int:
        """Returns the bytes at the fullest moment, with so many tokens of a micro-batch on a rank.

        received: bytes a token of the q and kv that a layer receives and keeps. copies: of what its attention has
        besides for a moment.
        """
        return ceil(max(line.bytes(tokens, received, copies) for line in self.lines))

    def tokens(self, memory: float, received: float = 0.0, copies: float = 0.0, filled: float = 1.0) -> float:
        """Returns how many tokens of a micro-batch a rank with so many bytes has room for, at every moment; below 0
        where it has none for the constant. The inverse of `bytes`, with the same arguments.

        filled: the share that tokens may have of what a moment's constant leaves.
        """
        return min(line.tokens(memory, received, copies, filled) for line in self.lines)
