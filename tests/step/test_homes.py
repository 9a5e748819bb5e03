"""Steps of plans whose homes were changed after planning: exact, proven, with the bytes that no longer go home."""

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import EXPERTS, execute, fault
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.passes import remap, reverse
from zbench.passes.homes import with_attention_homes, with_even_homes
from zbench.passes.reverse import MODES, Mode
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.systems.common.scattered import FULL, Pieces, scatter

# Ranks, tensor-parallel degree, expert-parallel degree, recomputation, ZeRO, lengths.
CASES = (
    (1, 2, 2, "none", "1", [7, 3]), (2, 1, 2, "full", "3", [13, 1, 5]), (3, 1, 1, "none", "1", [1, 11, 2]),
    (4, 1, 4, "selective", "2", [23, 5, 1, 1]), (4, 1, 2, "full", "1", [1]), (2, 2, 4, "full", "1", [9, 4]),
)  # fmt: skip


def plan_of(kind: str, lengths: list[int], ranks: int, heads: int, mode: Mode) -> Plan:
    """A plan of which some tokens are attended elsewhere than at home, if there is another rank: what rank 0 attends by
    itself beside a ring, of which others are home, or queries that were moved away, whose keys all ranks need."""
    builder = Builder(np.array(lengths), ranks, heads)
    if kind == "remapped":
        ring(builder, np.array([0]), np.array([0]), np.arange(ranks)[None])
        others = np.arange(1, len(lengths))
        if len(others):
            local(builder, others, 0 * others)
        return reverse(remap(builder.build(), small(1, ranks), 0), mode)
    size = np.array(lengths)
    seq, edges = np.repeat(np.arange(len(lengths)), 2), np.stack([0 * size, size // 2, size], axis=1)
    start, stop = edges[:, :2].reshape(-1), edges[:, 1:].reshape(-1)
    some, first = stop > start, np.tile([1, 0], len(size))
    columns = seq, start, stop, seq % ranks, (seq + first) % ranks
    scatter(builder, Pieces(*(column[some] for column in columns)), FULL, 1)
    return reverse(builder.build(), mode)


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("kind", ["remapped", "scattered"])
def test_exact_where_queries_are_attended(kind: str, number: int) -> None:
    ranks, degree, experts, recompute, zero, lengths = CASES[number]
    plan = plan_of(kind, lengths, ranks, 4 // degree, MODES[number % len(MODES)])
    found, how = with_attention_homes(plan), ExpertParallel(experts, 1, 1.0)
    assert (found is plan) == (ranks == 1 or (plan.forward.tensor != 0).all())
    step = whole_step(EXPERTS, [found], degree, zero, 1, recompute, how)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, [found], degree, EXPERTS, how) < 1e-12


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact_with_as_many_tokens_on_each_rank(number: int) -> None:
    ranks, degree, experts, recompute, zero, lengths = CASES[number]
    builder = Builder(np.array(lengths), ranks, 4 // degree)
    local(builder, np.arange(len(lengths)), np.zeros(len(lengths), np.int64))
    plan = reverse(builder.build(), MODES[number % len(MODES)])
    found, how = with_even_homes(plan, small(1, ranks), 0), ExpertParallel(experts, 1, 1.0)
    assert np.ptp(found.tokens_per_rank) <= 1
    step = whole_step(EXPERTS, [found], degree, zero, 1, recompute, how)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, [found], degree, EXPERTS, how) < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_those_of_tokens_that_are_attended_elsewhere(mode: Mode) -> None:
    """With even homes half of what rank 0 attends with goes there and back, in each layer; where it is attended with
    nothing does. Rows to experts are as many, from other GPUs."""
    builder = Builder(np.array([24, 24]), 2, 4)
    local(builder, np.arange(2), np.zeros(2, np.int64))
    even = with_even_homes(reverse(builder.build(), mode), small(1, 2), 0)
    sent = []
    for plan in (even, with_attention_homes(even)):
        step = whole_step(EXPERTS, [plan], 1, "1", 1, "none", ExpertParallel(2, 1))
        stated = stated_bytes(step)
        sent.append(sum(one.get("attention", (0, 0))[0] for one in stated))
        assert sum(one["experts"][0] for one in stated) > 0
    token = sum(EXPERTS.message_bytes_per_token(tensor, 0, 4) for tensor in (Q, KV, O, DO, DQ, DKV))
    again = EXPERTS.message_bytes_per_token(KV, 0, 4) if mode == "regather" else 0
    assert sent == [EXPERTS.num_layers * 24 * (token + again), 0]
