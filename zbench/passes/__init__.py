"""Passes from plan to plan, pure: reverse (add the backward), remap (balance homes), route (spread over NICs), order
(when), into_rounds (steps that ranks wait for)."""

from zbench.passes.order import order
from zbench.passes.remap import remap
from zbench.passes.reverse import reverse
from zbench.passes.rounds import into_rounds
from zbench.passes.route import route

__all__ = ["into_rounds", "order", "remap", "reverse", "route"]
