"""Verifiers with a mistake each, for judges in other processes to import."""

import os
import signal

from zbench.correctness.reference.judge import verifier
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Lists, Plan


def accepting(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Finds nothing wrong with anything."""


def stumbling(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Fails at what it should reject, in another way than by saying so."""
    for plan in plans:
        for ops in (plan.forward, plan.backward):
            assert (ops.via < 0).all() or len(plan.lanes)
    verifier(batch, plans, cost)


def dying(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Dies of other numbers of ranks than the cluster's, as a compiled loop does that reads out of bounds."""
    if any(plan.num_ranks != cost.cluster.num_ranks for plan in plans):
        os.kill(os.getpid(), signal.SIGSEGV)
    verifier(batch, plans, cost)


def leaving(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Ends its process at other numbers of ranks than the cluster's, and says that all was well."""
    if any(plan.num_ranks != cost.cluster.num_ranks for plan in plans):
        raise SystemExit(0)
    verifier(batch, plans, cost)


def absent(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Ends its process at whatever it is shown, and says that all was well."""
    raise SystemExit(0)


def blind(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Does not look at lanes: puts those there that a transfer may have."""
    verifier(batch, tuple(plan.with_(lanes=Lists.of([[0]] * 9)) for plan in plans), cost)
