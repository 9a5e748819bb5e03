"""What tests have judged: where a switch of a system makes no difference, plans are the same, and are judged once."""

import pickle
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from zbench.plans.plan import Plan


class JudgedPlans:
    """Plans that were judged, each with what it was judged by. Those that are equal in every array are the same; their
    notes, which mean nothing to who judges, may differ."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def has(self, plans: tuple[Plan, ...], *by: Any) -> bool:
        """Whether these plans were asked about before with `by`, dataclasses whose fields are what they are."""
        own = [plan.with_(notes={}) for plan in plans]
        key = sha256(pickle.dumps((own, [(type(one), asdict(one)) for one in by]))).digest()
        before = key in self._known
        self._known.add(key)
        return before
