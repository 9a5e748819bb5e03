"""Very long documents held back until several can share a batch: WLB-LLM's outlier queues. Pure.

This changes which samples a batch has, and in which order a training sees them, so it is a workload and no system:
two systems are compared on the same delayed batches, and a record's settings say that they were delayed.
Source: WLB-LLM (arXiv 2503.17924, section 4.2), whose queues go on for all of training. Here they are emptied at the
end of every window of steps, so that a batch is a function of (seed, step) without all the steps before it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.interfaces.abilities import DrawsLengths
from zbench.interfaces.protocols import Workload
from zbench.workloads.check import whole
from zbench.workloads.fill import Lengths, check_batch


class Inner(Workload, Lengths, Protocol):
    """A workload that draws lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class Delayed:
    """A workload of another one's documents, the long ones in other batches of the same window.

    lengths: any workload that draws lengths, with `_partial_: true`; its seed, tokens and limit are this one's.
    outlier_lengths: rising; documents of at least the first are held back, each of these begins a queue of its own.
    released_together: documents that a queue waits for; they then come together, as far as a batch has room for them
    whole.
    window_steps: steps after which all queues are empty again.

    Every window has the tokens of the other workload's steps. Shorter documents keep their order; those at the end of
    a batch go on in the next one as a sequence of their own.
    """

    seed: int
    tokens: int
    lengths: Callable[..., Inner]
    outlier_lengths: Sequence[int]
    released_together: int
    window_steps: int
    context_limit: int = 131072
    over_limit: str = "cut"
    _inner: Inner = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        whole("workload.released_together", self.released_together, 1)
        whole("workload.window_steps", self.window_steps, 1)
        if (
            not isinstance(self.outlier_lengths, Sequence)
            or isinstance(self.outlier_lengths, str)
            or not self.outlier_lengths
        ):
            raise ValueError(
                f"workload.outlier_lengths is {self.outlier_lengths!r}; it must be at least one length, as in [32768]"
            )
        least = 2
        for index, length in enumerate(self.outlier_lengths):
            whole(f"workload.outlier_lengths[{index}]", length, least)
            least = length + 1
        if not callable(self.lengths):
            raise ValueError(f"workload.lengths is {self.lengths!r}; it must be a workload with _partial_: true")
        limits = {"context_limit": self.context_limit, "over_limit": self.over_limit}
        inner = self.lengths(seed=self.seed, tokens=self.tokens, **limits)
        if not isinstance(inner, DrawsLengths):
            raise ValueError(f"workload.lengths is a {type(inner).__name__}; it must be a workload that draws lengths")
        object.__setattr__(self, "_inner", inner)

    def batch(self, step: int) -> Batch:
        whole("step", step, 0)
        window, index = divmod(step, self.window_steps)
        first = window * self.window_steps
        arrivals = [self._inner.batch(first + at).lengths for at in range(self.window_steps)]
        return Batch(self._batches(arrivals)[index], seed=self.seed, step=step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        return self._inner.draw(rng, num)

    def cdf(self, length: Ints) -> Floats:
        """Returns the share of documents; what a batch's end splits makes a few more shorter sequences."""
        return self._inner.cdf(length)

    def _batches(self, arrivals: list[Ints]) -> list[Ints]:
        """Returns a window: what arrives at every step, in batches of the same number of tokens."""
        shorter = deque(np.concatenate([some[some < self.outlier_lengths[0]] for some in arrivals]).tolist())
        queues = [deque[int]() for _ in self.outlier_lengths]
        out = []
        for at, some in enumerate(arrivals):
            for length in some[some >= self.outlier_lengths[0]].tolist():
                queues[int(np.searchsorted(self.outlier_lengths, length, side="right")) - 1].append(length)
            batch = self._released(queues, everything=at == len(arrivals) - 1)
            room = self.tokens - sum(batch)
            while room:
                # Without shorter ones left, long ones are cut: the batches' size is what systems are compared at.
                source = shorter or next(queue for queue in reversed(queues) if queue)
                length = source.popleft()
                batch.append(min(length, room))
                if length > room:
                    shorter.appendleft(length - room)
                room -= batch[-1]
            out.append(np.array(batch, np.int64))
        assert not shorter
        assert not any(queues)
        return out

    def _released(self, queues: list[deque[int]], everything: bool) -> list[int]:
        """Returns what leaves the queues for one batch, the longest documents' queue first."""
        out: list[int] = []
        room = self.tokens
        for queue in reversed(queues):
            ready = len(queue) if everything else len(queue) // self.released_together * self.released_together
            for _ in range(ready):
                if queue[0] > room:
                    break
                out.append(queue.popleft())
                room -= out[-1]
        return out
