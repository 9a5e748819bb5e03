"""Padding of sequences to a multiple of two tokens a GPU, which some trainers' code has and plans need not.

Padded tokens are computed, kept and sent as all others are; no loss counts them.
"""

from typing import Literal

from zbench.describe.checks import check_choice
from zbench.describe.mask import FULL, Mask
from zbench.plans.plan import Ints

Padding = Literal["none", "published"]


def check_padding(padding: object, mask: Mask) -> None:
    """Refuses what a system's key `padding` cannot be.

    Raises:
        ValueError: it is neither, or sequences are padded under a mask that shows padding to all tokens.
    """
    check_choice("system.padding", padding, ("none", "published"))
    if padding == "published" and mask == FULL:
        raise ValueError(
            "system.padding is published, which a full mask would have all tokens see; it takes mask=causal"
        )


def padding_of(lengths: Ints, padding: Padding, num_ranks: int) -> Ints | None:
    """Returns how many tokens each sequence is padded by, int64 [n], or None where none is."""
    return -lengths % (2 * num_ranks) if padding == "published" else None
