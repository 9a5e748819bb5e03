"""Programs that are one kernel call on all of the rank's own tokens, and nothing else: run without slots or copies.

A rank whose sequences are its own alone has such a program, as has every job of one rank. What the interpreter puts
around a call (keys and values side by side, as messages have them) costs up to 4 % of short sequences' kernels
(docs/torch.md).

Shapes as in zbench.runtime.training.attention.
"""

from time import perf_counter

from torch import Tensor

from zbench.runtime.clocks.pace import Unpaced
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.program.program import HOME, KernelCall, Program, is_run
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.transport import Pair


def calls_alone(engine: Engine, programs: Pair, rows: int) -> tuple[KernelCall, KernelCall] | None:
    """Returns the two kernel calls that are all of the programs, on the rank's own `rows` tokens as they lie; None
    where they do more, or the engine has a clock of its own to keep to."""
    if not isinstance(engine.pace, Unpaced) or not all(_has_one_call(program) for program in programs):
        return None
    forward, backward = (program.attends[0] for program in programs)
    every = all(_is_of_all(call, rows, engine.shape.model.num_heads) for call in (forward, backward))
    return (forward, backward) if every else None


def _has_one_call(program: Program) -> bool:
    more = program.sends or program.receives or program.slots or any(one.parts for one in program.collects)
    return len(program.attends) == 1 and not more


def _is_of_all(call: KernelCall, rows: int, heads: int) -> bool:
    reads = [read for read in (call.q, call.kv, call.do) if read is not None]
    at_home = all(read.slot == HOME and is_run(read.rows, slice(0, rows)) for read in reads)
    afresh = all(target.slot == HOME and target.fresh and target.whole for target in call.adds)
    return at_home and afresh and (call.lo, call.hi) == (0, heads) and not call.fills


def forward_alone(engine: Engine, call: KernelCall, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (o, log-sum-exp [T, H]), both contiguous and in the model's dtypes."""
    number, ready, began = engine.post.events.run(), perf_counter(), engine.times.clock.now()
    q, k, v = (_dense_in_d(x) for x in (q, k, v))
    o, lse = engine.kernel.forward(q, k, v, call.cuts)
    _note(engine, "attend forward", number, call.op, ready, began)
    return o.to(q.dtype).contiguous(), lse.to(DTYPES[engine.shape.model.lse_bytes]).contiguous()


def backward_alone(
    engine: Engine, call: KernelCall, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv). o, lse: as forward_alone returned them."""
    number, ready, began = engine.post.events.run(), perf_counter(), engine.times.clock.now()
    q, k, v = (_dense_in_d(x) for x in (q, k, v))
    dq, dk, dv = engine.kernel.backward(do, q, k, v, o, lse, call.cuts)
    _note(engine, "attend backward", number, call.op, ready, began)
    return dq, dk, dv


def _dense_in_d(x: Tensor) -> Tensor:
    """Returns x as kernels take it: its last dimension in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _note(engine: Engine, name: str, number: int, op: int, ready: float, began: float) -> None:
    """Notes a call as the interpreter does."""
    ended = engine.times.clock.now()
    engine.times.add("kernel", began, ended)
    engine.times.add("total", began, ended)
    engine.post.events.span(name, ready, number, op)
