"""A rank that has DeepSpeed compute attention, and compares it with dense attention of whole sequences."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from zbench.describe.mask import Mask
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.runtime.kernels.memory import Shape
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.training.deepspeed import DeepSpeed, Stream
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.gloo import Sender
from zbench.runtime.transport.transport import Endpoint, Traffic


@dataclass(frozen=True)
class Seen:
    """worst: largest difference of o, dq, dk, dv to the dense ones, over the largest value of each. sent, received:
    bytes inside nodes and across. seconds: by kind (zbench.runtime.clocks.times)."""

    worst: float
    sent: tuple[int, int]
    received: tuple[int, int]
    seconds: dict[str, float]


class Attending:
    """argument: unused. Ranks are two a node."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        rendezvous.open()
        self.rank, self.num_ranks, self.board = rank, num_ranks, rendezvous.board
        elsewhere = [other // 2 != rank // 2 for other in range(num_ranks)]
        self.post, self.sender = Endpoint(None, elsewhere), Sender()

    def attend(self, model: Model, plan: Plan) -> Seen:
        """Two layers of the plan, one after the other, on made numbers in float64."""
        engine = Engine(Shape(model, torch.device("cpu")), FlashCPU(), self.post, self.sender, self.board)
        deepspeed = DeepSpeed(self.rank, self.num_ranks, engine)
        attend = deepspeed.attend(plan)
        stream = Stream.of(plan, range(deepspeed.first, deepspeed.first + deepspeed.degree))
        begin = int(stream.tokens[: deepspeed.place].sum())
        mine = slice(begin, begin + int(stream.tokens[deepspeed.place]))
        random = torch.Generator().manual_seed(deepspeed.first)  # the same of all ranks of a group
        heads = (model.num_heads, model.num_kv_heads, model.num_kv_heads, model.num_heads, model.num_heads)
        given = [
            torch.randn(int(stream.tokens.sum()), count, model.head_dim, dtype=torch.float64, generator=random)
            for count in heads
        ]
        dense = self._twice(lambda q, k, v, where: _dense(q, k, v, stream.lengths.tolist(), plan.mask), given)
        self.post.traffic, worst = Traffic(), 0.0
        for whole, part in zip(dense, self._twice(attend, [x[mine] for x in given]), strict=True):
            if part.numel():
                worst = max(worst, float((whole[mine] - part).abs().max() / whole.abs().max().clamp_min(1e-300)))
        traffic, times = self.post.traffic, engine.times
        return Seen(
            worst,
            (traffic.inside_tx, traffic.across_tx),
            (traffic.inside_rx, traffic.across_rx),
            {kind: getattr(times, kind) for kind in ("kernel", "waiting", "total", "under_way")},
        )

    def _twice(self, attend: Any, given: list[Tensor]) -> list[Tensor]:
        """[o, dq, dk, dv] of two layers that are one query apart."""
        q, k, v = (x.clone().requires_grad_() for x in given[:3])
        first = attend(q, k, v, "layer 0")
        second = attend(q + first, k, v, "layer 1")
        total = (first * given[3] + second * given[4]).sum()
        grads = torch.autograd.grad(total, (q, k, v), allow_unused=True, materialize_grads=True)
        return [second.detach(), *grads]

    def close(self) -> None:
        self.sender.close()


def _dense(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], mask: Mask) -> Tensor:
    out, at = [q[:0]], 0
    for length in lengths:
        rows = (x[at : at + length].transpose(0, 1)[None] for x in (q, k, v))
        back = torch.arange(length)[:, None] - torch.arange(length)
        visible = (back >= 0) | (not mask.causal)
        visible &= (back < mask.window) | (mask.window == 0)
        out.append(scaled_dot_product_attention(*rows, attn_mask=visible, enable_gqa=True)[0].transpose(0, 1))
        at += length
    return torch.cat(out)
