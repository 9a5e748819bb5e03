"""One micro-batch on one rank: which tokens are the rank's, their attention, and the way there and back.

Shapes: N tokens of the packed batch (all its sequences, one after another, in the order of its lengths); T of them at
home on this rank, which may be 0; H query heads, K kv heads, D head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.describe.mask import Mask
from zbench.describe.units import with_noun
from zbench.plans.plan import Plan
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.program.holders import home_pieces
from zbench.runtime.training.attention import Attention
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.transport import Pair
from zbench.torch.agreement import agree_on_rows
from zbench.torch.patience import Patience


@dataclass(frozen=True)
class TokenRows:
    """The tokens that a rank is home of, in the order of its rows, int64 [T] each: their rows in the packed batch,
    their sequences in it, and their positions inside those."""

    index: Ints
    sequences: Ints
    positions: Ints

    @staticmethod
    def of(plan: Plan, rank: int, lengths: Ints, sequences: Ints) -> "TokenRows":
        """Returns a rank's tokens under a plan. lengths: of the batch, [num_sequences]. sequences: which of them the
        plan's are.

        Raises:
            ValueError: the plan pads sequences.
        """
        if plan.padding is not None:
            raise ValueError(
                "plan.padding is given; zbench.torch has the batch's tokens alone, and takes a plan without"
            )
        seq, start, stop = home_pieces(plan, rank)
        count = stop - start
        ends = np.cumsum(count)
        positions = np.arange(int(count.sum())) + np.repeat(start - (ends - count), count)
        which = np.repeat(sequences[seq], count)
        return TokenRows((np.cumsum(lengths) - lengths)[which] + positions, which, positions)


class PlannedBatch:
    """This rank's part of a micro-batch; zbench.torch.Runtime.micro_batches makes it.

    number: of the micro-batch in its step. num_tokens: T. num_batch_tokens: N. index, sequences, positions: int64 [T]
    on the device, of this rank's tokens their rows in the packed batch, the numbers of their sequences in it, and their
    positions inside those: what RoPE takes, and all that is needed to read only one's own tokens.
    """

    def __init__(
        self, engine: Engine, programs: Pair, patience: Patience, rows: Sequence[TokenRows], number: int, total: int
    ) -> None:
        """Makes it of what `engine` runs. rows: of every rank. total: N."""
        self._engine, self._programs, self._patience, self._rows = engine, programs, patience, rows
        mine, device, model = rows[patience.rank], engine.shape.device, engine.shape.model
        self.number, self.num_batch_tokens, self.num_tokens = number, total, len(mine.index)
        self.index, self.sequences, self.positions = (
            torch.from_numpy(x).to(device) for x in (mine.index, mine.sequences, mine.positions)
        )
        self._calls = 0
        self._heads = tuple((self.num_tokens, heads, model.head_dim) for heads in (model.num_heads, model.num_kv_heads))
        self._dtype = DTYPES[model.element_bytes]

    @property
    def mask(self) -> Mask:
        """The mask of the plan: what a query sees of its sequence."""
        return self._engine.shape.model.mask

    def scatter(self, x: Tensor) -> Tensor:
        """Returns this rank's rows, [T, ...], of `x`, [N, ...], which every rank has whole: tokens, labels
        (zbench.torch.next_tokens), masks. Nothing is sent.

        Raises:
            ValueError: x is no tensor, or has another number of rows.
        """
        self._check_rows("x", x, self.num_batch_tokens, "tokens of the packed batch")
        return x.index_select(0, self.index.to(x.device))

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the attention of this rank's tokens over the whole of their sequences, [T, H, D]; differentiable.

        q: [T, H, D]; k, v: [T, K, D]; positions are already in q and k. Collective, as is its backward: every rank of
        the group calls it as often and in the same order, also with T = 0.

        Raises:
            ValueError: a shape, dtype or device is not the plan's, or the Runtime is closed.
            TimeoutError: a rank did not come, or left the call with an error; also out of the backward.
            RuntimeError: a rank was lost, or one did not come before.
        """
        self._calls += 1
        where = f"micro-batch {self.number}, attention call {self._calls}"
        with self._patience.call(f"{where}, forward attention"):
            self._check(q, k, v)
            out: Tensor = Attention.apply(q, k, v, self._engine, self._programs, where)
        return out

    @torch.no_grad()
    def gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns all ranks' rows in the order of the packed batch, [N, ...], on every rank; without gradient.

        x: [T, ...], this rank's, of one dtype and trailing shape on all ranks. out: [N, ...], what it is written into,
        as the micro-batch before returned it; None: zeros, which rows of other micro-batches keep. Collective.

        Raises:
            ValueError: x or out has another number of rows, dtype or trailing shape, or the Runtime is closed.
            TimeoutError: a rank did not come, or left the call with an error.
        """
        with self._patience.call(f"micro-batch {self.number}, gather"):
            self._check_rows("x", x, self.num_tokens, f"tokens of this rank in micro-batch {self.number}")
            if out is not None:
                self._check_rows("out", out, self.num_batch_tokens, "tokens of the packed batch")
                if (out.dtype, out.shape[1:]) != (x.dtype, x.shape[1:]):
                    raise ValueError(
                        f"out is {out.dtype} of shape {list(out.shape)}; it takes x's {x.dtype} and "
                        f"{[self.num_batch_tokens, *x.shape[1:]]}"
                    )
            with self._patience.waiting():
                agree_on_rows(self._engine.post.group, x, self._engine.shape.device)
                return self._gathered(x, out)

    def _gathered(self, x: Tensor, out: Tensor | None) -> Tensor:
        """Returns all ranks' rows in the order of the packed batch, [N, ...]."""
        whole = x.new_zeros(self.num_batch_tokens, *x.shape[1:]) if out is None else out
        most = max(len(rows.index) for rows in self._rows)
        mine = x.new_zeros(most, *x.shape[1:])
        mine[: len(x)] = x
        every = [torch.empty_like(mine) for _ in self._rows]
        dist.all_gather(every, mine, group=self._engine.post.group)
        for rows, some in zip(self._rows, every, strict=True):
            whole[torch.from_numpy(rows.index).to(x.device)] = some[: len(rows.index)]
        return whole

    def _check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        device = self._engine.shape.device
        for name, x, wanted in (("q", q, self._heads[0]), ("k", k, self._heads[1]), ("v", v, self._heads[1])):
            if not isinstance(x, Tensor) or x.shape != wanted or x.dtype != self._dtype or x.device != device:
                raise ValueError(self._wrong(name, x, wanted))

    def _wrong(self, name: str, x: object, wanted: tuple[int, ...]) -> str:
        """Says what is wrong with q, k or v."""
        model, field = self._engine.shape.model, "num_heads" if name == "q" else "num_kv_heads"
        if not isinstance(x, Tensor):
            return f"{name} is of type {type(x).__name__}; it takes a tensor of shape {list(wanted)}"
        shape = list(x.shape)
        if x.dim() == 3 and shape[0] == wanted[0] and shape[1] != wanted[1]:
            heads = with_noun(shape[1], "head")
            return f"{name} has {heads}; the plan is for model {model.name!r} with {field}={wanted[1]}"
        if tuple(shape) != wanted:
            return (
                f"{name} has shape {shape}; it takes {list(wanted)}: this rank's tokens in micro-batch {self.number}, "
                f"{field} and head_dim of model {model.name!r}"
            )
        if x.dtype != self._dtype:
            return (
                f"{name} is {x.dtype}; model.element_bytes={model.element_bytes} of the plan's model {model.name!r} "
                f"takes {self._dtype}"
            )
        return f"{name} is on {x.device}; the runtime was made for {self._engine.shape.device}"

    @staticmethod
    def _check_rows(name: str, x: Tensor, count: int, what: str) -> None:
        if not isinstance(x, Tensor) or x.dim() < 1 or len(x) != count:
            has = f"has shape {list(x.shape)}" if isinstance(x, Tensor) else f"is of type {type(x).__name__}"
            raise ValueError(f"{name} {has}; it takes a tensor of shape [{count}, ...], the {what}")
