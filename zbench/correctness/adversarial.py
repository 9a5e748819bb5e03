"""Makes batches that planners find hard, as large as a cluster can have. Pure: no torch.

One token; ones and primes; equal lengths that nothing divides; one sequence of half of all tokens; two of a third each;
a long tail.
"""

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.needs import memory_of
from zbench.describe.batch import Batch
from zbench.plans.plan import Ints

KINDS = ("tail", "giant", "two", "equal", "primes", "one")
PRIMES = (2, 3, 5, 7, 11, 13, 31, 61, 127, 131, 257, 509, 1021)
FILLED = 0.6  # of a GPU's memory for activations, at most: more, and systems that keep copies seldom fit
MEDIAN = 600.0  # tokens of a sequence of the long tail, with this spread of its logarithm:
SPREAD = 1.6


def adversarial_batches(cost: Cost, tokens_per_gpu: int, seed: int) -> dict[str, Batch]:
    """Makes one batch of each of KINDS. tokens_per_gpu: of each GPU at most; fewer where its memory is small."""
    most = max(int(memory_of(cost).tokens(cost.cluster.device.memory_bytes, filled=FILLED)), 1)
    gpus = cost.gpus.cluster.num_ranks
    tokens = min(tokens_per_gpu * gpus, most * cost.cluster.num_ranks)
    rng = np.random.default_rng(seed)
    return {
        kind: Batch(_lengths(kind, tokens, cost.cluster.num_ranks, rng), seed, step) for step, kind in enumerate(KINDS)
    }


def _lengths(kind: str, tokens: int, ranks: int, rng: np.random.Generator) -> Ints:
    if kind == "one":
        return np.ones(1, np.int64)
    if kind == "primes":
        return rng.choice(np.array([1, *PRIMES]), min(2 * ranks + 1, max(tokens // 128, 1)))
    if kind == "equal":
        length = max(int(rng.integers(tokens // (4 * ranks) + 1, tokens // ranks + 2)) | 1, 1)
        return np.full(max(tokens // length, 1), length, np.int64)
    if kind == "tail":
        return _tail(tokens, rng)
    long = [tokens // 2] if kind == "giant" else [tokens // 3, tokens // 3 - 1]
    long = [max(length, 1) for length in long]
    return rng.permutation(np.concatenate([np.array(long), _tail(max(tokens - sum(long), 1), rng)]))


def _tail(tokens: int, rng: np.random.Generator) -> Ints:
    """Draws log-normal lengths of so many tokens together."""
    drawn = np.exp(rng.normal(np.log(MEDIAN), SPREAD, tokens // 64 + 1)).astype(np.int64) + 1
    ends = np.minimum(np.cumsum(drawn), tokens)
    ends[-1] = tokens
    lengths = np.diff(ends, prepend=0)
    return lengths[lengths > 0]
