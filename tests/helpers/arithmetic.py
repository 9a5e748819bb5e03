"""What computing and waiting come to by arithmetic alone, for tests of what plays steps."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.recompute import is_selective
from zbench.cost.stage import Stage
from zbench.describe.arrays import Floats, Ints
from zbench.plans.area import work
from zbench.plans.plan import Plan


def arithmetic(plans: tuple[Plan, ...], cost: Cost) -> tuple[Floats, Floats]:
    """Returns float64 [num_ranks] each: the seconds of attends, and of linear modules with the head, of all layers and
    micro-batches, each rank by itself; exchanges of tensor-parallel groups are no part of them."""
    attends, linear = np.zeros((2, cost.cluster.num_ranks))
    for plan in plans:
        tokens = plan.tokens_per_rank
        for ops, backward, times in (
            (plan.forward, False, cost.layers + cost.again_layers),
            (plan.backward, True, cost.layers),
        ):
            attend, amount = work(plan, ops)
            seconds = cost.attend_seconds(plan, ops, attend, amount, backward)
            attends += times * np.bincount(ops.src[attend], seconds, plan.num_ranks)
        passes = (cost.layers + cost.again_layers) * cost.linear_seconds(tokens)
        passes = passes + cost.layers * cost.backward_linear_seconds(tokens)
        linear += passes - _exchanges(tokens, cost) + cost.head_seconds(tokens)
    return attends, linear


def _exchanges(tokens: Ints, cost: Cost) -> Floats:
    """What a step's linear modules have of exchanges in tensor-parallel groups, in all layers."""
    early = is_selective(cost.model) * cost.model.recomputed_share  # a gather that is else behind matmuls
    shown = (3 + cost.model.forwards_again) * cost.exchange_seconds(tokens) + early * cost.group_gather_seconds(tokens)
    return np.asarray(cost.layers * shown, np.float64)


def arithmetic_of_pipelines(plans: tuple[Plan, ...], cost: Cost) -> tuple[Floats, Floats]:
    """Returns what `arithmetic` does of plans with pipelines, of which nothing is made again: a stage's GPUs share its
    heads and matmuls."""
    assert plans[0].pipelines is not None
    assert cost.model.recompute == "none"
    attends, linear = np.zeros((2, cost.cluster.num_ranks))
    for lead, tp, pp in zip(*plans[0].pipelines.layout, strict=True):
        stage = Stage.of(cost, tp, pp)
        of_stage, modules, head = 0.0, 0.0, 0.0
        for plan in plans:
            for ops, backward in ((plan.forward, False), (plan.backward, True)):
                attend, amount = work(plan, ops)
                heads, kv_heads = (np.full(len(attend), count) for count in (stage.heads, stage.kv_heads))
                of_stage += cost.kernel_seconds(amount, heads, kv_heads, backward)[ops.src[attend] == lead].sum()
            tokens = plan.tokens_per_rank[[lead]]
            if tokens.any():
                modules += float((stage.linear_seconds(tokens) + stage.gradient_seconds(tokens))[0])
                head += float(stage.head_seconds(tokens)[0])
        for at in range(pp):
            mine = slice(lead + at * tp, lead + (at + 1) * tp)
            attends[mine] = stage.layers * of_stage
            linear[mine] = stage.layers * modules + (head if at == pp - 1 else 0.0)
    return attends, linear


@contextmanager
def without_collectives() -> Iterator[None]:
    """Has what planners estimate add nothing for gathers and reductions; ranks that meet for them still do."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("shown_in_forward", "backward"):
            patch.setattr(Collectives, name, lambda *_: 0.0)
        patch.setattr(Collectives, "end_of_pipelines", lambda _, total, *__: float(total.max()))
        yield
