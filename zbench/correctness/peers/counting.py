"""Counts what a peer sends: every collective of torch.distributed, where it is dispatched, also from C++ and autograd.

The convention is that of rings, as in zbench.step.passes.parameters.zero's reductions and gathers: of S bytes over n
processes an all-gather (S is its result), a reduce-scatter (S is its input), a broadcast and a reduction to one process
have all processes together send (n - 1) S, an all-reduce twice that. What gloo's own algorithms send is not looked at.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.correctness.peers.cases import GRADIENTS, OTHER, PARAMETERS
from zbench.correctness.peers.differences import sent_elements

# Of the operations that the dispatcher knows: the argument that S is the size of, how often (n - 1) S is sent.
GATHERS = {"_allgather_base_": (0, 1)}
REDUCTIONS = {"_reduce_scatter_base_": (1, 1), "reduce_": (0, 1), "allreduce_": (0, 2)}
BROADCASTS = {"broadcast_": (0, 1)}
EMPTY = ("barrier", "monitored_barrier_")


class CountedCollectives(TorchDispatchMode):
    """Counts bytes while it is entered, which may be several times. sent: by all processes, by what they are of.

    Reductions are of gradients while `backward` is set; after that, in an update, of norms and flags. Broadcasts of
    whole numbers are of what processes agree on (DDP's buckets), others of parameters.

    Raises ValueError for a collective that it does not know.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.backward = ranks, True
        self.sent: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False: nothing is compiled here, and torch would import its compiler, for seconds, to tell it so."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if "c10d" in func.namespace:
            self._count(func.namespace, func.__name__.partition(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _count(self, space: str, name: str, args: tuple[Any, ...]) -> None:
        known = {**GATHERS, **REDUCTIONS, **BROADCASTS}
        if space != "c10d" or name not in (*known, *EMPTY):
            raise ValueError(f"{space}::{name} was called; collectives that are counted are {', '.join(known)}")
        if name in EMPTY:
            return
        which, times = known[name]
        tensors: list[Tensor] = [args[which]] if isinstance(args[which], Tensor) else args[which]
        of = PARAMETERS
        if name in REDUCTIONS:
            of = GRADIENTS if self.backward else OTHER
        elif name in BROADCASTS and not tensors[0].is_floating_point():
            of = OTHER
        size = sum(one.numel() * one.element_size() for one in tensors)
        self.sent[of] += times * sent_elements(self.ranks, _group_size(args, self.ranks)) * size


def _group_size(args: tuple[Any, ...], ranks: int) -> int:
    """Returns the processes of a collective's group, all of them where it names none."""
    groups = [one for one in args if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())]
    size = dist.ProcessGroup.unbox(groups[0]).size() if groups else dist.get_world_size()
    return ranks if size == dist.get_world_size() else size
