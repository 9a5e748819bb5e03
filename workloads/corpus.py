"""Real documents: a folder of files, or the rows of a .jsonl or .parquet file. Pure.

A token is a byte unless a tokenizer is given, so that any text can be trained on without one.
Every batch draws its documents with replacement: which ones is then a function of (seed, step)
alone, at no cost for a corpus of any size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import text
from zbench.workloads.documents import Documents, open_documents
from zbench.workloads.fill import check_batch, fill, generator


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """A workload of real documents; Batch.documents says which, and tokens_of reads them.

    path: a folder, or a .jsonl or .parquet file whose `field` is the text.
    pattern, exclude: of a folder, the file names taken (as in "*.py"), and folder names not entered.
    tokenizer: from the bytes of a document to its token ids; lengths then cost one pass over the corpus.
    """

    seed: int
    tokens: int
    path: str | None = None
    field: str = "text"
    pattern: str = "*"
    exclude: Sequence[str] = ()
    tokenizer: Callable[[bytes], Sequence[int]] | None = None
    context_limit: int = 131072
    over_limit: str = "cut"
    _documents: Documents = dataclasses.field(init=False, repr=False)
    _lengths: Ints = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        text("workload.field", self.field)
        text("workload.pattern", self.pattern)
        if not isinstance(self.exclude, (list, tuple)) or not all(isinstance(name, str) for name in self.exclude):
            raise ValueError(f"workload.exclude is {self.exclude!r}; it must be a list of folders' names")
        if self.tokenizer is not None and not callable(self.tokenizer):
            raise ValueError(f"workload.tokenizer is {self.tokenizer!r}; it must be null or something to be called")
        documents = open_documents(self.path, self.field, self.pattern, self.exclude)
        lengths = documents.sizes
        if self.tokenizer is not None:
            lengths = np.array([len(self.tokenizer(documents.read(i))) for i in range(lengths.size)], dtype=np.int64)
            empty = np.flatnonzero(lengths == 0)
            if empty.size:
                raise ValueError(
                    f"workload.tokenizer gives {documents.name(int(empty[0]))} 0 tokens; it must give at least 1"
                )
        if self.over_limit == "drop" and lengths.min() > self.context_limit:
            raise ValueError(
                f"workload.context_limit is {self.context_limit}; with workload.over_limit=drop it must be at least "
                f"the shortest document in '{self.path}', {lengths.min()}"
            )
        object.__setattr__(self, "_documents", documents)
        object.__setattr__(self, "_lengths", lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the corpus without its documents: whoever unpickles it opens them again, on its own machine."""
        told = [field.name for field in dataclasses.fields(self) if field.init]
        return Corpus, tuple(getattr(self, name) for name in told)

    def batch(self, step: int) -> Batch:
        rng = generator(self.seed, step)
        lengths, documents = fill(
            lambda num: rng.integers(self._lengths.size, size=num),
            self.tokens,
            self.context_limit,
            self.over_limit,
            sizes=self._lengths,
        )
        return Batch(lengths=lengths, seed=self.seed, step=step, documents=documents)

    def tokens_of(self, batch: Batch, which: Ints | None = None) -> list[Ints]:
        """Returns the token ids of sequences of one of this corpus's batches (None: all), each the head of its
        document."""
        assert batch.documents is not None, "a batch of a corpus names its documents"
        wanted = slice(None) if which is None else which
        pairs = zip(batch.documents[wanted].tolist(), batch.lengths[wanted].tolist(), strict=True)
        return [self._head(document, length) for document, length in pairs]

    @property
    def vocab(self) -> int | None:
        """The bound that token ids are below; None where a tokenizer alone knows."""
        return 256 if self.tokenizer is None else None

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        return self._lengths[rng.integers(self._lengths.size, size=num)]

    def cdf(self, length: Ints) -> Floats:
        return np.asarray(np.searchsorted(np.sort(self._lengths), length, side="right") / self._lengths.size)

    def _head(self, document: int, length: int) -> Ints:
        content = self._documents.read(document)
        ids = np.frombuffer(content, dtype=np.uint8) if self.tokenizer is None else np.asarray(self.tokenizer(content))
        if ids.size < length:
            raise ValueError(
                f"workload.path has {self._documents.name(document)} with {ids.size} tokens; it must still have the "
                f"{self._lengths[document]} it had when the run began"
            )
        return ids[:length].astype(np.int64)
