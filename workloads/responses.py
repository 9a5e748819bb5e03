"""Fine-tuning on responses: another workload's sequences, each a prompt and a response; labels of responses alone count
in the loss. Pure.

Frameworks give tokens whose label does not count the label -100 (torch's ignore_index). Which labels count is data, so
this is a workload: two systems are compared on the same labels, and a record's settings say which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.batch import Batch
from zbench.interfaces.abilities import HasContextLimit
from zbench.interfaces.protocols import Workload
from zbench.workloads.check import number, whole

_LABELS = 0x1ABE15  # the stream of random numbers beside those that lengths are drawn with


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """A workload of another one's batches, in which labels count that are tokens of a response: of a sequence of L
    tokens with a prompt of p, those at positions p - 1 to L - 2. The last token has no label that counts.

    sequences: the other workload, with `_partial_: true`; its seed and tokens are this one's. It has no tokens of its
        own.
    prompt_share: the least and the largest share of a sequence that is its prompt, between which each is drawn evenly;
        None: prompts are those that the other workload tells (zbench.describe.batch.Rollouts).
    unanswered_share: of sequences, drawn one by one, whose prompt is all there is, so that no label of theirs counts.

    A batch may have no label that counts; whoever trains with one refuses it.

    Raises:
        ValueError: a key cannot be, or the other workload tells no prompts, or has tokens of its own.
    """

    seed: int
    tokens: int
    sequences: Callable[..., Workload]
    prompt_share: Sequence[float] | None
    unanswered_share: float = 0.0
    _inner: Workload = field(init=False, repr=False)

    def __post_init__(self) -> None:
        number("workload.unanswered_share", self.unanswered_share, 0, 1)
        if self.unanswered_share == 1:
            raise ValueError("workload.unanswered_share is 1, with which no label counts; it must be below 1")
        if self.prompt_share is not None:
            shares = self.prompt_share
            if isinstance(shares, str) or not isinstance(shares, Sequence) or len(shares) != 2:
                raise ValueError(
                    f"workload.prompt_share is {shares!r}; it must be the least and the largest share of a sequence "
                    "that is its prompt, as in [0.1,0.9], or null"
                )
            number("workload.prompt_share[0]", shares[0], 0, 1)
            number("workload.prompt_share[1]", shares[1], shares[0], 1)
        if not callable(self.sequences):
            raise ValueError(f"workload.sequences is {self.sequences!r}; it must be a workload with _partial_: true")
        try:
            inner = self.sequences(seed=self.seed, tokens=self.tokens)
        except ValueError as error:  # whose keys are one deeper here
            raise ValueError(str(error).replace("workload.", "workload.sequences.")) from None
        if hasattr(inner, "tokens_of"):
            raise ValueError(
                f"workload.sequences is a {type(inner).__name__}, which has tokens of its own; it must be a workload "
                "of lengths, whose tokens are made"
            )
        if self.prompt_share is None and inner.batch(0).rollouts is None:
            raise ValueError(
                f"workload.prompt_share is None and workload.sequences a {type(inner).__name__}, which tells no "
                "prompts; it must be the least and the largest share of a sequence that is its prompt, as in [0.1,0.9]"
            )
        object.__setattr__(self, "_inner", inner)

    @property
    def context_limit(self) -> int:
        """The most tokens of a sequence."""
        return self._inner.context_limit if isinstance(self._inner, HasContextLimit) else self.tokens

    def batch(self, step: int) -> Batch:
        whole("step", step, 0)
        batch = self._inner.batch(step)
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, step, _LABELS]))
        prompts = self._prompts(batch, rng)
        prompts = np.where(rng.random(len(prompts)) < self.unanswered_share, batch.lengths, prompts)
        return replace(batch, counts=response_labels(batch.lengths, prompts))

    def _prompts(self, batch: Batch, rng: np.random.Generator) -> Ints:
        """Returns the tokens of each sequence that are its prompt."""
        if self.prompt_share is not None:
            low, high = self.prompt_share
            return np.floor(batch.lengths * rng.uniform(low, high, len(batch.lengths))).astype(np.int64)
        assert batch.rollouts is not None, "the other workload tells prompts"
        return batch.rollouts.prompts


def response_labels(lengths: Ints, prompts: Ints) -> Flags:
    """Returns which labels are tokens of a response, bool [all tokens], sequence after sequence. lengths, prompts: of
    each sequence its tokens and those that are its prompt, int64 [sequences]."""
    ends = np.cumsum(lengths)
    first, last = ends - lengths + np.maximum(prompts - 1, 0), ends - 1  # from the first on, to before the last
    some, edges = first < last, np.zeros(ends[-1], np.int8)
    edges[first[some]], edges[last[some]] = 1, -1
    return np.cumsum(edges, dtype=np.int8).astype(bool)
