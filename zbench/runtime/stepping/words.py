"""The words of a batch, their targets, and which of these count, read when they are asked for: a rank reads those of
its own tokens."""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.batch import Batch
from zbench.runtime.handlers.token_loss import CountedLoss, GivenLosses, TokenLosses
from zbench.runtime.job.step_job import StepJob
from zbench.runtime.training.text import END, sequences


class BatchWords(dict[int, Ints]):
    """The token ids of a batch's sequences by their numbers, each read when it is first asked for."""

    def __init__(self, job: StepJob, batch: Batch) -> None:
        super().__init__()
        self._job, self._batch = job, batch

    def __missing__(self, number: int) -> Ints:
        job = self._job
        (self[number],) = sequences(job.workload, self._batch, np.array([number]), job.cost.gpus.model.vocab)
        return self[number]


class BatchTargets(dict[int, Ints]):
    """The targets of a batch's tokens: the next token, of a sequence's last one END."""

    def __init__(self, words: BatchWords) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, number: int) -> Ints:
        self[number] = np.append(self._words[number][1:], END)
        return self[number]


class BatchCounts(dict[int, Floats]):
    """The weights of labels in the loss, of a batch's sequences by their numbers: 1 where one counts, 0 elsewhere.
    flags: as of zbench.describe.batch.Batch.counts_of_sequences."""

    def __init__(self, flags: Sequence[Flags]) -> None:
        super().__init__()
        self._flags = flags

    def __missing__(self, number: int) -> Floats:
        self[number] = self._flags[number].astype(np.float64)
        return self[number]


def counted_losses(batch: Batch) -> TokenLosses | None:
    """Returns the losses of a batch's tokens, which are 0 where labels do not count; None where all do."""
    flags = batch.counts_of_sequences
    return None if flags is None else GivenLosses({"counts": BatchCounts(flags)}, CountedLoss)
