"""The words of a batch and their targets, read when they are asked for: a rank reads those of its own tokens."""

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
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
