"""Every plan computes what dense single-process attention computes: outputs and gradients, within 1e-12.

Plans are executed by zbench.correctness.reference.interpreter, which knows nothing of the verifier.
"""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.judged import JudgedPlans
from tests.helpers.strategies import SHARP, batches, cases, costs, forwards, masks
from tests.helpers.variants import SYSTEMS, VARIANTS, Variant
from zbench.correctness.reference.interpreter import Broken, Results, Tensors, dense_attention, execute
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.mask import FULL
from zbench.describe.model import Model
from zbench.passes import order, remap, reverse, route
from zbench.passes.reverse import MODES
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step

TOLERANCE = 1e-12
CUT = JudgedPlans()


def tensors(model: Model, num_tokens: int) -> Tensors:
    return Tensors.random(model.num_heads, model.num_kv_heads, num_tokens, model.head_dim)


@lru_cache(maxsize=100)
def answer(lengths: tuple[int, ...], model: Model) -> tuple[Tensors, Results]:
    """Inputs and what dense attention makes of them: of every plan for these sequences, the same."""
    given = tensors(model, sum(lengths))
    return given, dense_attention(np.array(lengths), given, model.mask)


def check(plan: Plan, cost: Cost) -> Results:
    given, wanted = answer(tuple(plan.lengths.tolist()), cost.model)
    found = execute(plan, given)
    assert found.difference(wanted) < TOLERANCE
    return found


def test_the_dense_gradients_are_finite_differences() -> None:
    lengths = np.array([5, 1, 7])
    given = Tensors.random(2, 1, 13, 3)
    exact = dense_attention(lengths, given)
    rng = np.random.default_rng(1)
    for name, gradient in (("q", exact.dq), ("k", exact.dk), ("v", exact.dv)):
        step = rng.standard_normal(given.q.shape)
        values = []
        for sign in (1, -1):
            moved = Tensors(**{**vars(given), name: getattr(given, name) + sign * 1e-5 * step})
            values.append((dense_attention(lengths, moved).o * given.do).sum())
        assert (values[0] - values[1]) / 2e-5 == pytest.approx((gradient * step).sum(), rel=1e-7)


@given(st.data(), costs(mask=masks()), st.sampled_from(MODES))
def test_every_pattern_in_every_backward_mode(data: st.DataObject, cost: Cost, mode: str) -> None:
    check(reverse(data.draw(forwards(cost)), mode), cost)


@examples(20)
@given(cases(mask=masks()))
def test_every_combination_of_rewrites(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    check(plan, cost)


@given(st.data(), costs(), st.sampled_from(MODES))
def test_routing_and_order_change_no_bit_of_what_they_must_not(data: st.DataObject, cost: Cost, mode: str) -> None:
    """route: the same data to the last bit. order: the same up to the order in which partial results are added."""
    plan = reverse(remap(data.draw(forwards(cost)), cost, 0), mode)
    before = check(plan, cost)
    routed = check(route(plan, cost), cost)
    for name in ("o", "dq", "dk", "dv"):
        assert (getattr(before, name) == getattr(routed, name)).all()
    check(order(plan, cost), cost)


@pytest.mark.parametrize("which", SYSTEMS, ids=str)
@examples(6)
@given(st.data())
def test_every_system(which: Variant, data: st.DataObject) -> None:
    cost = data.draw(costs(mask=masks()))
    batch = data.draw(batches())
    plans = which.make(cost).plan(batch)
    for plan in plans:
        assert plan.lengths.tolist() == batch.lengths[plan.sequences].tolist()
        check(plan, cost)
    verify_step(batch, plans, cost, memory=False)
    assert sorted(np.concatenate([plan.sequences for plan in plans]).tolist()) == list(range(len(batch.lengths)))


@pytest.mark.parametrize("which", SYSTEMS, ids=str)
@pytest.mark.parametrize("lengths", [[1], [7, 11, 13], [2, 1, 1], [150, 1, 1, 1], [16] * 6], ids=str)
def test_every_system_on_named_lengths(which: Variant, lengths: list[int], uneven: Cost) -> None:
    """One token; primes; shorter than the 15 ranks; one giant; all equal."""
    for plan in which.make(uneven).plan(Batch(np.array(lengths), 0, 0)):
        check(plan, uneven)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((3, 2, 2), [700, 1, 1, 1]), ((1, 4, 1), [600] * 3), ((2, 2, 2), [900, 700, 650, 20])],
    ids=str,
)
def test_every_variant_where_cutting_pays(which: Variant, shape: tuple[int, int, int], lengths: list[int]) -> None:
    """Long sequences, slow kernels and fast links: systems that choose cut over nodes, route and remap."""
    cluster = Cluster("c", *shape, 25e9, 0.8, 0.0, 2e11, 0.6, 0.0, SHARP)
    cost = Cost(cluster, Model("m", 2, 16, 2, 1, 2, 32, 64))
    for plan in which.make(cost).plan(Batch(np.array(lengths), 0, 0)):
        if not CUT.has((plan,), cost.model):
            check(plan, cost)


def _bidirectional(builder: Builder) -> Plan:
    local(builder, np.arange(len(builder.lengths)), np.zeros(len(builder.lengths), np.int64))
    return reverse(builder.build(), "keep")


def test_full_attention_is_exact_too(uneven: Cost) -> None:
    plan = _bidirectional(Builder(np.array([5, 9]), uneven.cluster.num_ranks, uneven.model.num_heads, mask=FULL))
    given = tensors(uneven.model, 14)
    assert execute(plan, given).difference(dense_attention(plan.lengths, given, mask=FULL)) < TOLERANCE


def test_the_interpreter_fails_loudly(uneven: Cost) -> None:
    """Without this, everything above might pass for the wrong reason."""
    builder = Builder(np.array([40]), uneven.cluster.num_ranks, uneven.model.num_heads)
    ring(builder, np.array([0]), np.array([0]), np.arange(uneven.cluster.num_ranks)[None])
    plan = reverse(builder.build(), "keep")
    given = tensors(uneven.model, 40)
    for drop in range(0, len(plan.forward), 29):
        rest = np.delete(np.arange(len(plan.forward)), drop)
        try:
            found = execute(plan.with_(forward=plan.forward.take(rest)), given)
        except Broken:
            continue
        assert found.difference(dense_attention(plan.lengths, given)) > 1e-6
