"""A rank that runs plans' attention over a transport of the test's choice, and compares it with dense attention."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zbench.correctness.reference.interpreter import Tensors, dense_attention
from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.runtime.kernels.kernels import Matmul
from zbench.runtime.kernels.memory import Shape
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.holders import HomeRows
from zbench.runtime.training.attention import Attention
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.gloo import Sender
from zbench.runtime.transport.nccl import BatchedMessages, Batches
from zbench.runtime.transport.transport import Endpoint, Traffic, Transport, TransportedRun


@dataclass(frozen=True)
class Seen:
    """worst: largest difference of o, dq, dk, dv to the dense ones, over the largest value of each or 1. sent,
    received: bytes inside nodes and across."""

    worst: float
    sent: tuple[int, int]
    received: tuple[int, int]


class Standing(Batches):
    """Stands still in each batch until it is complete: no rank of NCCL's is so strict. As there, what a batch brought
    is there for those after it, without waiting."""

    def __init__(self) -> None:
        super().__init__(self.stand)

    def stand(self, ops: list[dist.P2POp]) -> list[Any]:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return []

    def open(self, post: Endpoint, job: TransportedRun) -> BatchedMessages:
        messages = super().open(post, job)
        messages.in_order = True
        return messages


class Phased:
    """argument: the cost."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Cost) -> None:
        rendezvous.open()
        self.rank, self.cost = rank, argument
        node = argument.cluster.node_of
        self.post = Endpoint(dist.new_group(), [bool(node[other] != node[rank]) for other in range(num_ranks)])
        shape = Shape(argument.model, torch.device("cpu"))
        transports: dict[str, Transport] = {"threads": Sender(), "batches": Batches(), "standing": Standing()}
        self.engines = {
            name: Engine(shape, Matmul(), self.post, transport, rendezvous.board)
            for name, transport in transports.items()
        }
        staged = replace(self.post, through_host=True)
        self.engines["staged"] = Engine(shape, Matmul(), staged, self.engines["threads"].transport, rendezvous.board)

    def attend(self, plan: Plan, how: str) -> Seen:
        """One layer on made numbers in float64."""
        model, engine = self.cost.model, self.engines[how]
        group = model.num_heads // model.num_kv_heads
        given = Tensors.random(model.num_heads, model.num_kv_heads, int(plan.lengths.sum()), model.head_dim)
        whole = dense_attention(plan.lengths, given, plan.mask)
        own = tokens(plan, self.rank)

        def mine(x: np.ndarray, step: int = 1) -> torch.Tensor:
            """[heads, all tokens, D] -> [own tokens, every step-th head, D]."""
            return torch.from_numpy(np.ascontiguousarray(x[::step][:, own].transpose(1, 0, 2)))

        def per_kv_head(x: np.ndarray) -> np.ndarray:
            return x.reshape(-1, group, *x.shape[1:]).sum(1)

        engine.post.traffic = Traffic()
        pair = Compiler(plan, self.rank, self.cost, torch.from_numpy, engine.kernel.cut).compile()
        pair = engine.transport.prepare(plan, self.cost, pair)
        q, k, v = (x.requires_grad_() for x in (mine(given.q), mine(given.k, group), mine(given.v, group)))
        o = Attention.apply(q, k, v, engine, pair, "here")
        o.backward(mine(given.do))
        wanted = (whole.o, whole.dq, per_kv_head(whole.dk), per_kv_head(whole.dv))
        worst = 0.0
        for got, want in zip((o.detach(), q.grad, k.grad, v.grad), wanted, strict=True):
            if got.numel():
                worst = max(worst, float((got - mine(want)).abs().max()) / max(1.0, float(np.abs(want).max())))
        traffic = engine.post.traffic
        return Seen(worst, (traffic.inside_tx, traffic.across_tx), (traffic.inside_rx, traffic.across_rx))

    def close(self) -> None:
        for engine in self.engines.values():
            engine.transport.close()


def tokens(plan: Plan, rank: int) -> np.ndarray:
    """The rank's own tokens as indices into all, in the order of its rows."""
    blocks, layout = plan.blocks, HomeRows.of(plan, rank)
    begin = np.cumsum(plan.lengths) - plan.lengths
    own = np.zeros(layout.num_tokens, np.int64)
    for block in np.flatnonzero(layout.row >= 0).tolist():
        at = int(layout.row[block])
        for piece in blocks.pieces[block].tolist():
            count = int(blocks.stop[piece] - blocks.start[piece])
            first = int(begin[blocks.seq[piece]] + blocks.start[piece])
            own[at : at + count] = np.arange(first, first + count)
            at += count
    return own
