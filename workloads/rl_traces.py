"""Prompts and responses of reinforcement learning: drawn from a distribution, or from a file of the user's. Pure.

Responses to a prompt are a group, which has its prompt and some of its difficulty in common: ln(length) of a response
is normal, and a part of its variance is the group's. A response that has not ended at the limit ends there, so a batch
has a spike of responses as long as the limit.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.units import with_noun
from zbench.workloads.check import number, text, whole
from zbench.workloads.fill import check_batch
from zbench.workloads.pair_batches import pair_batch
from zbench.workloads.read_lengths import FILE_OF_LENGTHS, read_lengths

_PAIRED = (".jsonl", ".parquet", ".npz")
_FILE_OF_PAIRS = "a file of prompts and responses, .jsonl, .parquet or .npz"


@dataclass(frozen=True, slots=True)
class RLTraces:
    """A workload of prompts with `group` responses each.

    prompt_mu, prompt_sigma, response_mu, response_sigma: mean and standard deviation of ln(length). prompt_limit: of a
        prompt, at which it is cut; what is left of context_limit is a response's limit.
    endless_share: of responses that do not end before the limit, whatever was drawn. shared: of the variance of
        ln(length) of responses, the part that those of a group have in common.
    short_rounds: as zbench.workloads.pair_batches has them; 0: no tail batching.
    """

    seed: int
    tokens: int
    group: int
    prompt_mu: float
    prompt_sigma: float
    prompt_limit: int
    response_mu: float
    response_sigma: float
    endless_share: float
    shared: float
    context_limit: int
    short_rounds: int = 0

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, "cut")
        whole("workload.group", self.group, 1, 1 << 16)
        whole("workload.prompt_limit", self.prompt_limit, 1)
        whole("workload.short_rounds", self.short_rounds, 0, 1 << 10)
        if self.prompt_limit >= self.context_limit:
            raise ValueError(
                f"workload.prompt_limit is {self.prompt_limit}; it has to be below workload.context_limit, "
                f"{self.context_limit}, which prompt and response have together"
            )
        for name in ("prompt_mu", "response_mu"):
            number(f"workload.{name}", getattr(self, name), -20, 20)
        for name in ("prompt_sigma", "response_sigma"):
            number(f"workload.{name}", getattr(self, name), 0, 10)
        for name in ("endless_share", "shared"):
            number(f"workload.{name}", getattr(self, name), 0, 1)

    @property
    def response_limit(self) -> int:
        """The tokens at which a response ends, whether it is done or not."""
        return self.context_limit - self.prompt_limit

    def batch(self, step: int) -> Batch:
        return pair_batch(self, step)

    def draw_pairs(self, rng: np.random.Generator, num: int) -> Ints:
        """Draws whole groups, at least `num` sequences, int64 [2, sequences]."""
        groups = -(-num // self.group)
        prompts = self._lengths(self.prompt_mu + self.prompt_sigma * rng.standard_normal(groups), self.prompt_limit)
        common, own = rng.standard_normal((groups, 1)), rng.standard_normal((groups, self.group))
        normal = np.sqrt(self.shared) * common + np.sqrt(1 - self.shared) * own
        responses = self._lengths(self.response_mu + self.response_sigma * normal, self.response_limit)
        responses[rng.random(responses.shape) < self.endless_share] = self.response_limit
        return np.stack([np.repeat(prompts, self.group), responses.reshape(-1)])

    def _lengths(self, logarithms: Floats, limit: int) -> Ints:
        return np.clip(np.exp(np.minimum(logarithms, 40)).astype(np.int64), 1, limit)


@dataclass(frozen=True, slots=True, eq=False)
class RLTracesFile:
    """A workload of the user's prompts and responses, drawn at random from the rows of a file.

    path: .jsonl, .parquet or .npz, with a length of each in the fields, columns or arrays prompt_field and
        response_field. context_limit: longer sequences are refused, as a cut response would be no trace; null: the
        file's longest sequence has as many.
    short_rounds: as zbench.workloads.pair_batches has them; 0: no tail batching.
    """

    seed: int
    tokens: int
    path: str | None = None
    prompt_field: str = "prompt_length"
    response_field: str = "response_length"
    context_limit: int | None = None
    short_rounds: int = 0
    _pairs: Ints = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, 1 if self.context_limit is None else self.context_limit, "cut")
        whole("workload.short_rounds", self.short_rounds, 0, 1 << 10)
        columns = [self._column("prompt_field"), self._column("response_field")]
        if len(columns[0]) != len(columns[1]):
            raise ValueError(
                f"workload.path is '{self.path}', which has {with_noun(len(columns[0]), 'prompt')} and "
                f"{with_noun(len(columns[1]), 'response')}; each sequence has one of both"
            )
        pairs = np.stack(columns)
        longest = int(pairs.sum(axis=0).max())
        if self.context_limit is not None and longest > self.context_limit:
            raise ValueError(
                f"workload.context_limit is {self.context_limit}; a sequence of '{self.path}' has {longest} tokens, so "
                "it takes at least that"
            )
        object.__setattr__(self, "_pairs", pairs)
        object.__setattr__(self, "context_limit", self.context_limit or longest)

    @property
    def lengths(self) -> Ints:
        """The tokens of prompt and response of every row, int64 [rows]."""
        lengths: Ints = self._pairs.sum(axis=0)
        return lengths

    @property
    def prompt_limit(self) -> int:
        """The tokens of the longest prompt."""
        return int(self._pairs[0].max())

    def _column(self, key: str) -> Ints:
        """Reads a length of every row.

        Raises:
            ValueError: the file is none of pairs, or has no such lengths.
        """
        field = getattr(self, key)
        text(f"workload.{key}", field)
        if self.path and Path(str(self.path)).suffix in (".txt", ".npy"):
            raise ValueError(
                f"workload.path is '{self.path}', which has one length a row; prompts and responses take a file that "
                f"ends in {', '.join(_PAIRED[:-1])} or {_PAIRED[-1]}"
            )
        try:
            return read_lengths(self.path, field)
        except ValueError as error:
            told = str(error).replace("workload.field", f"workload.{key}").replace(FILE_OF_LENGTHS, _FILE_OF_PAIRS)
            raise ValueError(told) from None

    def batch(self, step: int) -> Batch:
        return pair_batch(self, step)

    def draw_pairs(self, rng: np.random.Generator, num: int) -> Ints:
        """Draws `num` rows, int64 [2, num]."""
        return self._pairs[:, rng.integers(self._pairs.shape[1], size=num)]
