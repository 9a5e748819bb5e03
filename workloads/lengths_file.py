"""The user's own lengths, from a file. Pure."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import choice, whole
from zbench.workloads.fill import check_batch, drawn_batch, fill
from zbench.workloads.read_lengths import read_lengths


@dataclass(frozen=True, slots=True, eq=False)
class LengthsFile:
    """A workload of lengths drawn at random from a file (order="random"), or taken as they stand (order="file").

    path: .txt (one length a line), .npy, .npz, .jsonl or .parquet; the last three with a `field`.
    order: "file" takes the lengths in order, round and round; step 1 goes on where step 0 stopped,
        and the rest of the document that was cut at the end of a batch is not used.
    """

    seed: int
    tokens: int
    path: str | None = None
    field: str = "length"
    order: str = "random"
    context_limit: int = 131072
    over_limit: str = "cut"
    _lengths: Ints = dataclasses.field(init=False, repr=False)
    _usable: Ints = dataclasses.field(init=False, repr=False)  # as order="file" takes them: cut or dropped
    _begins: Ints = dataclasses.field(init=False, repr=False)  # tokens before each usable document
    _starts: list[int] = dataclasses.field(init=False, repr=False)  # each step's first document, once known

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        choice("workload.order", self.order, ("random", "file"))
        lengths = read_lengths(self.path, self.field)
        usable = lengths[lengths <= self.context_limit] if self.over_limit == "drop" else lengths
        if usable.size == 0:
            raise ValueError(
                f"workload.context_limit is {self.context_limit}; with workload.over_limit=drop it must be at least "
                f"the shortest length in '{self.path}', {lengths.min()}"
            )
        usable = np.minimum(usable, self.context_limit)
        object.__setattr__(self, "_lengths", lengths)
        object.__setattr__(self, "_usable", usable)
        object.__setattr__(self, "_begins", np.cumsum(usable) - usable)
        object.__setattr__(self, "_starts", [0])

    def batch(self, step: int) -> Batch:
        return drawn_batch(self, step) if self.order == "random" else self._in_order(step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        return self._lengths[rng.integers(self._lengths.size, size=num)]

    def cdf(self, length: Ints) -> Floats:
        return np.asarray(np.searchsorted(np.sort(self._lengths), length, side="right") / self._lengths.size)

    def _in_order(self, step: int) -> Batch:
        whole("step", step, 0)
        position = self._start(step)

        def following(num: int) -> Ints:
            nonlocal position
            numbers = (position + np.arange(num, dtype=np.int64)) % self._usable.size
            position += num
            return numbers

        lengths, _ = fill(following, self.tokens, self.context_limit, self.over_limit, sizes=self._usable)
        return Batch(lengths=lengths, seed=self.seed, step=step)

    def _start(self, step: int) -> int:
        """Returns the document that `step` begins with: one search a step, remembered only to be quick."""
        total = int(self._begins[-1] + self._usable[-1])
        while len(self._starts) <= step:
            target = (int(self._begins[self._starts[-1]]) + self.tokens) % total
            # The first document that begins at or after the last batch's end; past the last one, the file's first.
            self._starts.append(int(np.searchsorted(self._begins, target)) % self._usable.size)
        return self._starts[step]
