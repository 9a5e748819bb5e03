"""Passes from plan to plan, pure: reverse (add the backward), remap (balance homes), route (spread over NICs), order
(when)."""

from zbench.passes.order import order
from zbench.passes.remap import remap
from zbench.passes.reverse import reverse
from zbench.passes.route import route

__all__ = ["order", "remap", "reverse", "route"]
