"""What the executor keeps, predicted and counted; which recomputation is chosen by it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zbench.cost.cost import Cost
from zbench.cost.loss import chunked_bytes
from zbench.cost.memory.copies import kept_bytes
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.runtime.job.footprint import (
    LEVELS,
    RESERVE,
    choose_level,
    kept_layer_bytes,
    predicted_peak_bytes,
    training_state_bytes,
)
from zbench.runtime.training.transformer import Transformer
from zbench.systems.zeppelin.planner import Zeppelin

DENSE = Model("dense", 2, 24, 6, 3, 4, 40, 31, element_bytes=8, lse_bytes=8)
EXPERTS = replace(DENSE, name="experts", num_experts=5, experts_per_token=2)
SHARED = replace(EXPERTS, name="shared", shared_experts=2)
TOKENS = 20


class Keeps(torch.autograd.Function):
    """Keeps what zbench.runtime.training.attention keeps of a plan without messages."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, lse = q + (k * v).sum(), q.sum(-1)
        ctx.save_for_backward(q, torch.stack((k, v), 1), o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kv = ctx.saved_tensors[1]
        return do, torch.zeros_like(kv[:, 0]), torch.zeros_like(kv[:, 1])


def kept(model: Model, level: str) -> int:
    """Bytes of all tensors that the forward leaves for the backward, each once, weights aside."""
    network = Transformer(model, 0)
    network.recompute = level
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    seen: dict[int, Tensor] = {}

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in weights:
            seen[x.untyped_storage().data_ptr()] = x  # held: memory that is free again would be counted twice
        return x

    tokens = torch.arange(TOKENS)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        loss = network(tokens, tokens, tokens, lambda layer, q, k, v: Keeps.apply(q, k, v), TOKENS)
    loss.backward()
    return sum(x.untyped_storage().nbytes() for x in seen.values())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", [DENSE, EXPERTS, SHARED], ids=["dense", "experts", "shared"])
def test_what_a_layer_keeps_is_what_is_predicted(model: Model, level: str) -> None:
    one_more = kept(replace(model, num_layers=3), level) - kept(model, level)
    assert one_more == kept_layer_bytes(model, level) * TOKENS


def plan_of(cost: Cost, tokens: int) -> Plan:
    """A sequence of `tokens` on every rank."""
    ranks = cost.cluster.num_ranks
    builder = Builder(np.full(ranks, tokens, np.int64), ranks, cost.model.num_heads)
    local(builder, np.arange(ranks), np.arange(ranks))
    return reverse(builder.build(), "keep")


def test_the_lightest_recomputation_that_fits_is_chosen(uneven: Cost) -> None:
    cost = replace(uneven, model=replace(uneven.model, num_layers=8))
    plans = (plan_of(cost, 1000),)
    needs = [int(predicted_peak_bytes(plans, cost, "replicated", level).max()) for level in LEVELS]
    assert needs == sorted(needs, reverse=True)
    for level, bytes_ in zip(LEVELS, needs, strict=True):
        room = int(bytes_ / (1 - RESERVE)) + 1
        found = choose_level(plans, cost, "replicated", room)
        assert (found.level, found.predicted_bytes, found.capacity_bytes) == (level, bytes_, room)
    assert choose_level(plans, cost, "replicated", 1).level == "full"  # which does not fit either, and is told


def test_the_fullest_rank_and_micro_batch_count(uneven: Cost) -> None:
    small, large = plan_of(uneven, 10), plan_of(uneven, 90)
    together = predicted_peak_bytes((small, large), uneven, "replicated", "none")
    assert (together == predicted_peak_bytes((large,), uneven, "replicated", "none")).all()
    by_token = uneven.model.num_layers * kept_layer_bytes(uneven.model, "none")
    assert int((together - predicted_peak_bytes((small,), uneven, "replicated", "none")).min()) >= 80 * by_token


def test_received_kv_counts_once_a_layer_unless_the_forward_runs_again(uneven: Cost) -> None:
    plans = Zeppelin(uneven).plan(Batch(np.array([900, 40, 30]), 0, 0))
    assert len(plans) == 1
    received = kept_bytes(plans[0], uneven)
    assert received.any()
    deeper = replace(uneven, model=replace(uneven.model, num_layers=3))
    for level, times in (("none", 1), ("linear", 1), ("full", 0)):
        more = [predicted_peak_bytes(plans, one, "replicated", level) for one in (uneven, deeper)]
        static = [training_state_bytes(one, "replicated", level) for one in (uneven, deeper)]
        layer = kept_layer_bytes(uneven.model, level) * plans[0].tokens_per_rank + times * received
        assert ((more[1] - more[0]) - (static[1] - static[0]) == layer).all()


def test_shards_need_less_and_every_dtype_counts(uneven: Cost) -> None:
    assert training_state_bytes(uneven, "sharded", "none") < training_state_bytes(uneven, "replicated", "none")
    assert training_state_bytes(uneven, "sharded", "none", 2) > training_state_bytes(uneven, "sharded", "none")
    exact = replace(uneven, model=replace(uneven.model, element_bytes=8, lse_bytes=8))
    params = uneven.model.total_params
    assert training_state_bytes(exact, "replicated", "none") == 32 * params + 8 * exact.model.head_params
    assert training_state_bytes(uneven, "replicated", "none") > 16 * params
    assert chunked_bytes(exact.model, 100) > 0
