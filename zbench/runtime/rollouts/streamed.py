"""Scoring what has ended while other sequences are still generated, by groups of GPUs that have generated theirs.

A group tells a store that all ranks reach what has ended of its sequences. One that has generated all of its own takes
the next of what was told, whosever it is, until every sequence is taken: which ones a group scores is a matter of time,
and what it makes of them is not, as a sequence is a pass of its own and all groups have the same slices.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from zbench.describe.arrays import Floats
from zbench.rollouts.experience import Rollout
from zbench.runtime.rollouts.policy import PolicySlice


@dataclass
class StreamWatch:
    """The way of a group's sequences to whoever scores them. store: that all ranks reach; name: of this generation in
    it; total: of all groups' sequences; groups: how many there are; is_first: whether this GPU is its group's first,
    which alone speaks with the store. scores: of what the group has scored, by number; meanwhile: how many of them were
    taken while a group still generated; of_others: how many this group had not generated."""

    store: Any
    name: str
    total: int
    groups: int
    is_first: bool
    scores: dict[int, Floats] = field(default_factory=dict)
    meanwhile: int = 0
    of_others: int = 0
    _own: set[int] = field(default_factory=set)

    def after_pass(self, ended: Mapping[int, Rollout], live: Sequence[int]) -> Sequence[int]:
        """Tells the store what has ended; all that is live goes on."""
        self._own |= set(ended)
        for pair in ended.items() if self.is_first else ():
            at = self.store.add(self._key("ended"), 1)
            self.store.set(self._key(f"rollout {at}"), pickle.dumps(pair))
        return live

    def score(self, model: PolicySlice) -> None:
        """Scores sequences with a model's slice until all are taken. Collective in a group."""
        if self.is_first:
            self.store.add(self._key("free"), 1)
        while (taken := self._taken(model.group)) is not None:
            number, rollout, is_meanwhile = taken
            self.scores[number] = model.likelihoods(rollout)
            self.meanwhile += is_meanwhile
            self.of_others += number not in self._own

    def _taken(self, group: Any) -> tuple[int, Rollout, bool] | None:
        """Returns the next sequence, and whether some were still generated when it was taken; None: all are taken."""
        found: list[tuple[int, Rollout, bool] | None] = [None]
        if self.is_first and (at := self.store.add(self._key("taken"), 1)) <= self.total:
            key = self._key(f"rollout {at}")
            self.store.wait([key])
            still = self.store.add(self._key("free"), 0) < self.groups
            found = [(*pickle.loads(self.store.get(key)), still)]
        if group is not None:
            dist.broadcast_object_list(found, group=group, group_src=0, device=torch.device("cpu"))
        return found[0]

    def _key(self, of: str) -> str:
        return f"{self.name}, {of}"
