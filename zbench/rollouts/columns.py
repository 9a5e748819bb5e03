"""Numbers of the tokens of rollouts on their way between GPUs, as a step: the tokens themselves, likelihoods, values,
advantages.

A column has one number for each token of each sequence. GPUs have runs of it: tokens that follow one another in a
sequence. What a GPU wants and has not comes from one that has it, as state does between two strategies
(zbench.step.passes.parameters.switch), so it is proven as any step, and its bytes are told before a message is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.elements import ElementMoves
from zbench.step.passes.parameters.switch import moving_step
from zbench.step.template import Step

NUMBER_BYTES = 8  # of a number of a token, whatever a model computes with


@dataclass(frozen=True)
class ColumnRuns:
    """The runs of a column. runs: int64 [runs, 3], a sequence, the first of its tokens, the one after the last. has,
    wants: bool [GPUs, runs], who has them, and who is to have them."""

    name: str
    runs: Ints
    has: Flags
    wants: Flags

    @staticmethod
    def of_sets(name: str, held: Sequence[set[tuple[int, int, int]]], wants: Flags) -> "ColumnRuns":
        """Returns the runs that GPUs say they have. held: by GPU. wants: bool [GPUs, sequences], who is to have all
        runs of a sequence."""
        every = sorted(set().union(*held))
        runs = np.array(every, np.int64).reshape(-1, 3)
        has = np.array([[run in some for run in every] for some in held], bool).reshape(len(held), -1)
        return ColumnRuns(name, runs, has, wants[:, runs[:, 0]])


@dataclass(frozen=True)
class ColumnMoves:
    """The way of columns. step: of their messages; runs: of each of its tensors, in the order of its parts, as
    ColumnRuns has them."""

    step: Step
    runs: Mapping[str, Ints]

    @staticmethod
    def of(columns: Sequence[ColumnRuns]) -> "ColumnMoves | None":
        """Returns the way of columns to where they are wanted; None where all is there.

        Raises:
            ValueError: no GPU has what one wants.
        """
        every, runs = list[ElementMoves](), dict[str, Ints]()
        for one in columns:
            lacks = one.wants & ~one.has
            some = np.flatnonzero(lacks.any(axis=0))
            if len(some):
                sizes = one.runs[some, 2] - one.runs[some, 1]
                every.append(ElementMoves(one.name, (0,), sizes, one.has[:, some], lacks[:, some]))
                runs[f"{one.name}_0"] = one.runs[some]
        if not every:
            return None
        return ColumnMoves(moving_step("columns", every, len(columns[0].has), NUMBER_BYTES, "z"), runs)

    def bytes_between(self, sets: Sequence[int]) -> int:
        """Returns the bytes that go from a GPU of one set to a GPU of another. sets: the number of each GPU's set."""
        layout, found = self.step.layouts[0], 0
        for row in self.step.templates[0].operations.table.tolist():
            what, src, dst, pieces = row[1:5]
            if sets[src] != sets[dst]:
                (index,) = layout.tensors[what].axes
                found += NUMBER_BYTES * int(layout.index[index].sizes[layout.lists[pieces]].sum())
        return found
