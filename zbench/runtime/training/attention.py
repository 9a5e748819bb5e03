"""Attention of any plan as a function that torch can differentiate: two runs of programs
(zbench.runtime.training.interpreter).

Shapes: T of the rank's own tokens (rows as in zbench.runtime.program.program), H query heads, K kv heads, D head_dim;
q, o [T, H, D], k and v [T, K, D].
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from zbench.cost.cost import Cost
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.plans.plan import Plan
from zbench.runtime.kernels.memory import Memory, bytes_of
from zbench.runtime.kernels.span import ATTENTION, in_span
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.program import Program, Slot
from zbench.runtime.training.alone import backward_alone, calls_alone, forward_alone
from zbench.runtime.training.interpreter import Engine, ProgramRun
from zbench.runtime.transport.transport import Pair


def programs_of(engine: Engine, plan: Plan, rank: int, cost: Cost, is_paced: bool = False) -> Pair:
    """Compiles a rank's part of a plan into programs, (forward, backward), that `engine` can run. is_paced: they say
    how long work takes on the cluster's device."""
    index = partial(_index, engine.shape.device)
    pair = Compiler(plan, rank, cost, index, engine.kernel.cut, is_paced).compile()
    return engine.transport.prepare(plan, cost, pair)


class Attention(torch.autograd.Function):
    """Attention over the whole plan, as this rank's part of it. Collective: every rank has to come here."""

    @staticmethod
    @in_span(ATTENTION)
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, engine: Engine, programs: tuple[Program, Program], where: str
    ) -> Tensor:
        engine.board.say(f"{where}, forward attention")
        forward, backward = programs
        ctx.engine, ctx.programs, ctx.where = engine, programs, where
        ctx.alone = calls_alone(engine, programs, len(q))
        if ctx.alone is not None:
            o, lse = forward_alone(engine, ctx.alone[0], q, k, v)
            ctx.save_for_backward(q, k, v, o, lse)
            return o
        kv = torch.stack((k, v), 1)
        heads = (0, q.shape[1])
        q = q.contiguous()
        home = {
            Q: Memory(Q, *heads, (q,), None),
            KV: Memory(KV, *heads, (kv,), None),
            O: engine.shape.empty(O, *heads, len(q), start=O not in forward.covered),
        }
        run = ProgramRun(engine, forward, home, (), backward.imported)
        engine.pace.spend(forward.linear)  # once messages can arrive: links do not wait for the device
        run.go()
        outer = [run.slots[number] for number in backward.imported if forward.slots[number].inside is None]
        o, lse = home[O].fields
        ctx.save_for_backward(q, kv, o, lse, *(memory.fields[0] for memory in outer if memory))
        return o

    @staticmethod
    @in_span(ATTENTION)
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        _, program = ctx.programs
        ctx.engine.board.say(f"{ctx.where}, backward attention")
        if ctx.alone is not None:
            return *backward_alone(ctx.engine, ctx.alone[1], do.contiguous(), *ctx.saved_tensors), None, None, None
        q, kv, o, lse, *outer = ctx.saved_tensors
        do, heads, shape = do.contiguous(), (0, q.shape[1]), ctx.engine.shape
        deltas = ((do * o).sum(-1, dtype=lse.dtype),) if program.deltas else ()
        home = {
            Q: Memory(Q, *heads, (q,), None),
            KV: Memory(KV, *heads, (kv,), None),
            O: Memory(O, *heads, (o, lse), None),
            DO: Memory(DO, *heads, (do, lse, *deltas), None),
        } | {sum_: shape.empty(sum_, *heads, len(q), start=sum_ not in program.covered) for sum_ in (DQ, DKV)}
        run = ProgramRun(ctx.engine, program, home, _kept(program, outer), ())
        ctx.engine.pace.spend(program.linear)
        run.go()
        dkv = home[DKV].fields[0]
        return home[DQ].fields[0], dkv[:, 0], dkv[:, 1], None, None, None


def _kept(program: Program, outer: list[Tensor]) -> list[Memory]:
    """Returns the memory of the imported slots, from that of those which are no part of another."""
    slots = program.slots[: len(program.imported)]
    tensors = iter(outer)
    made = [None if slot.inside else _one_field(slot, next(tensors)) for slot in slots]
    return [
        one or made[slot.inside[0]].part(slot.inside[1], slot.rows)  # type: ignore[index, union-attr]
        for slot, one in zip(slots, made, strict=True)
    ]


def _one_field(slot: Slot, field: Tensor) -> Memory:
    return Memory(slot.tensor, slot.lo, slot.hi, (field,), bytes_of(field))


def _index(device: torch.device, rows: object) -> Tensor:
    return torch.from_numpy(rows).to(device)
