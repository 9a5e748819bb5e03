"""Parts of the runtime for attention that another package runs: its kernel, and its time and bytes counted.

Shapes: T of the rank's own tokens, N tokens of whole sequences, h query heads, h' kv heads, D head_dim.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.runtime.training.interpreter import Engine


class Whole(torch.autograd.Function):
    """Runs the runtime's kernel over sequences that are here whole: q [N, h, D], k and v [N, h', D] -> o [N, h, D]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, engine: Engine, cuts: Any) -> Tensor:
        began = engine.times.clock.now()
        o, lse = engine.kernel.forward(q, k, v, cuts) if len(q) else (torch.empty_like(q), q.new_empty(q.shape[:2]))
        engine.times.add("kernel", began)
        ctx.engine, ctx.cuts = engine, cuts
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, o, lse = ctx.saved_tensors
        times = ctx.engine.times
        began = times.clock.now()
        grads = ctx.engine.kernel.backward(do.contiguous(), q, k, v, o, lse, ctx.cuts) if len(q) else (q, k, v)
        times.add("kernel", began)
        return (*grads, None, None)


class Counted:
    """A module like torch.distributed, whose all-to-alls are counted and timed as the runtime's own messages are.

    The group's ranks are neighbours from `first` on, and this one is number `place` of them.
    """

    def __init__(self, comm: Any, engine: Engine, first: int, place: int) -> None:
        self._comm, self._engine, self._first, self._place = comm, engine, first, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> None:
        """Exchanges, and blocks, or on a GPU holds up the stream, until that is done."""
        assert not async_op
        board, times, post = self._engine.board, self._engine.times, self._engine.post
        for count, data, splits in (
            (post.traffic.sent, given, input_split_sizes),
            (post.traffic.received, output, output_split_sizes),
        ):
            ranks = dist.get_world_size(group)
            for place, rows in enumerate(splits or [len(data) // ranks] * ranks):
                if place != self._place:
                    count(post.peers[self._first + place], rows * data[0].numel() * data.element_size())
        board.wait()
        began = times.clock.now()
        self._comm.all_to_all_single(output, given, output_split_sizes, input_split_sizes, group=group)
        ended = times.clock.now()
        board.resume()
        times.add("waiting", began, ended)
        times.add("under_way", began, ended)


@dataclass(slots=True)
class AttentionSpan:
    """The stretch from where attention begins to where it ends, in the forward and again in the backward."""

    engine: Engine
    where: str
    began: Any = None

    def begin(self, way: str) -> None:
        """Begins attention's time."""
        self.engine.board.say(f"{self.where}, {way} attention")
        self.began = self.engine.times.clock.now()

    def end(self) -> None:
        """Ends attention's time."""
        self.engine.times.add("total", self.began)


class Enter(torch.autograd.Function):
    """Marks where the backward of attention ends."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, span: AttentionSpan) -> tuple[Tensor, Tensor, Tensor]:
        ctx.span = span
        return q.view_as(q), k.view_as(k), v.view_as(v)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        ctx.span.end()
        return dq, dk, dv, None


class Leave(torch.autograd.Function):
    """Marks where the backward of attention begins."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, span: AttentionSpan) -> Tensor:
        ctx.span = span
        return o.view_as(o)

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, None]:
        ctx.span.begin("backward")
        return do, None
