"""Tokens drawn of logits, each sequence by a generator of its own: the same whoever generates it, and beside whom."""

import numpy as np
from torch import Tensor

END = 0  # the token that a response ends with


def generator_of(seed: int, iteration: int, sequence: int) -> np.random.Generator:
    """Returns the generator of a sequence."""
    return np.random.default_rng([seed, iteration, sequence])


def sampled(logits: Tensor, rng: np.random.Generator) -> tuple[int, float]:
    """Draws a token at temperature 1; returns it and its negative log-likelihood. logits: of all words, [words]."""
    logs = logits.double().log_softmax(0)
    chances = logs.exp().cumsum(0)
    drawn = rng.random() * float(chances[-1])
    token = min(int((chances <= drawn).sum()), len(chances) - 1)
    return token, -float(logs[token])


def likeliest(logits: Tensor) -> tuple[int, float]:
    """Returns the likeliest token and its negative log-likelihood, as `sampled`."""
    logs = logits.double().log_softmax(0)
    token = int(logs.argmax())
    return token, -float(logs[token])
