"""Plan -> Plan, pure: reverse (add the backward), remap (balance homes), route (spread over NICs), order (when)."""

from zbench.rewrite.order import order
from zbench.rewrite.remap import remap
from zbench.rewrite.reverse import reverse
from zbench.rewrite.route import route

__all__ = ["order", "remap", "reverse", "route"]
