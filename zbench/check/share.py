"""The share of a case that one process has, and what a kind of functions offers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from zbench.check.verdict import Tensors


@dataclass(frozen=True, slots=True)
class Share:
    """The place of one process in a check. group: the process group; None where there is one process only."""

    rank: int
    ranks: int
    dtype: torch.dtype
    device: str
    group: Any = None

    def rows(self, tokens: int) -> slice:
        """Returns this process's tokens of so many: in a row, those of the first processes one more if need be."""
        return self.rows_of(tokens, self.rank, self.ranks)

    @staticmethod
    def rows_of(tokens: int, rank: int, ranks: int) -> slice:
        """Returns the tokens that process `rank` of `ranks` has of so many."""
        each, rest = divmod(tokens, ranks)
        start = rank * each + min(rank, rest)
        return slice(start, start + each + (rank < rest))


class FunctionKind(Protocol):
    """A kind of piece that can be checked: its cases, how a function is asked, and the dense reference."""

    def cases(self, ranks: int) -> dict[str, str]:
        """Returns the cases that so many processes can have, in words, by name."""
        ...

    def arguments(self, ranks: int) -> tuple[int, tuple[str, ...]]:
        """Returns how many arguments the function gets by place, and the names of those by name."""
        ...

    def ask(self, function: Callable[..., Any], name: str, share: Share) -> Tensors:
        """Asks the function for a process's share of a case; raises WrongAnswer where nothing can be compared."""
        ...

    def joined(self, answers: Sequence[Tensors], name: str) -> Tensors:
        """Joins what the processes answered."""
        ...

    def reference(self, name: str, ranks: int, dtype: torch.dtype) -> Tensors:
        """Returns the dense answer in float64, of the data as `dtype` has it."""
        ...
