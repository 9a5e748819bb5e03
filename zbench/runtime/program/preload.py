"""Loads what compiling a plan takes from numba's cache, so that ranks that are forked afterwards need not each."""

import numpy as np

from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.segments import segments
from zbench.simulator.hops import hops

_DEVICE = Device("one", 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e-6, 1e-6)
_ONE = Cluster("one", 1, 1, 1, 1e9, 1.0, 1e-6, 1e9, 1.0, 1e-6, _DEVICE)


def preload() -> None:
    """Loads it, some 0.6 s of a core: what zbench.runtime.program.compiler asks of a plan of one token on one GPU."""
    builder, first = Builder(np.ones(1, np.int64), 1, 1), np.zeros(1, np.int64)
    local(builder, first, first)
    plan = builder.build()
    hops(plan, plan.forward, np.zeros(len(plan.forward), np.int64), _ONE)
    segments(plan, first, first)
