"""The prompts and responses that a batch's sequences are, as rollouts have them."""

from dataclasses import dataclass

from zbench.describe.arrays import Ints


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What a batch's sequences were generated from, and what was generated for nothing.

    prompts: int64 [num_sequences], tokens of each sequence that are its prompt, fewer than it has; the others are its
        response.
    given_up: int64 [2, sequences], prompt and response tokens of sequences that were begun with the batch and given up
        before they ended; no step trains with those.
    """

    prompts: Ints
    given_up: Ints
