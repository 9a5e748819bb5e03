"""Plans are alike that do the same work on the same ranks, whichever sequences of the batch it is for."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b

import numpy as np

from zbench.plans.plan import Plan

_APART = ("sequences", "notes")  # fields that plans which are alike may differ in


def plan_digest(plan: Plan) -> bytes:
    """Returns what is the same for plans that are alike, and for no others."""
    digest = blake2b(digest_size=16)
    for field in fields(plan):
        if field.name not in _APART:
            _add(digest, getattr(plan, field.name))
    return digest.digest()


def plans_digests(plans: Sequence[Plan]) -> tuple[bytes, ...]:
    """Returns what is the same for the same plans of the same sequences."""
    return tuple(plan_digest(one) + one.sequences.tobytes() for one in plans)


def _add(digest: blake2b, value: object) -> None:
    """Adds a field to a digest, column by column."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    elif is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for field in fields(value):
            _add(digest, getattr(value, field.name))
    else:
        digest.update(f"{value!r};".encode())
