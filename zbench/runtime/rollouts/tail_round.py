"""A round of tail batching: more prompts are begun than are trained on, and those whose responses have all ended first
are kept; the others are given up at that pass.

All groups of GPUs count passes alike, and tell each other after each one what has ended in it; so the round ends with
the same pass for all, whatever the seconds of any, and a sequence is kept or given up by lengths alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zbench.describe.arrays import Ints
from zbench.rollouts.experience import Rollout


@dataclass
class TailWatch:
    """The count of a round. responses: to each of `prompts` prompts, one behind the other; kept: prompts of it. group:
    all GPUs that generate, None: this one does alone; is_first: whether this GPU is the first of its own slices, which
    alone counts. done: the prompts whose responses have all ended, the first ones first."""

    prompts: int
    responses: int
    kept: int
    group: Any
    is_first: bool
    done: list[int] = field(default_factory=list)
    _ended: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._ended = np.zeros(self.prompts, np.int64)

    @property
    def is_over(self) -> bool:
        """Whether as many prompts have ended as are kept."""
        return len(self.done) >= self.kept

    def after_pass(self, ended: Mapping[int, Rollout], live: Sequence[int]) -> Sequence[int]:
        """Counts what has ended in a pass everywhere; nothing goes on once the round is over. Collective."""
        counts = torch.zeros(self.prompts, dtype=torch.int64)
        for number in ended if self.is_first else ():
            counts[number // self.responses] += 1
        if self.group is not None:
            dist.all_reduce(counts, group=self.group)
        self._ended += counts.numpy()
        whole = np.flatnonzero(self._ended == self.responses).tolist()
        self.done += [one for one in whole if one not in self.done]
        return () if self.is_over else live

    def finish(self) -> list[int]:
        """Counts passes of others until the round is over; returns the prompts that are kept, in their order.
        Collective."""
        while not self.is_over:
            self.after_pass({}, ())
        return sorted(self.done[: self.kept])
