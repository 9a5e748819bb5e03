"""The verifier against mutations: a plan that computes something wrong is rejected, and the message says where.

Whether a mutated plan is wrong is decided by executing it (zbench.correctness.reference.interpreter): an operation used
what was not there, or outputs or gradients differ from dense attention.
"""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import SHARP, costs, plans
from zbench.correctness.reference.interpreter import Broken, Tensors, dense_attention, execute
from zbench.cost.cost import Cost
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.mask import FULL
from zbench.describe.model import DKV, DO, DQ, KV, Model, O, Q
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring, ulysses_ring
from zbench.plans.plan import ATTEND, COLUMNS, TRANSFER, Lists, Ops, Plan
from zbench.proof.verify import OutOfMemory, PlanError, verify, verify_step

LISTS = ("forward", "backward")


def wrong(plan: Plan) -> bool:
    given = Tensors.random(plan.num_heads, 1, int(plan.lengths.sum()), 3)
    try:
        return not execute(plan, given).difference(dense_attention(plan.lengths, given)) < 1e-9
    except (Broken, KeyError, IndexError, ValueError):
        return True


def rejected(plan: Plan) -> str | None:
    """The verifier's words, None if it finds nothing wrong."""
    try:
        verify(plan)
    except PlanError as error:
        return str(error)
    return None


def set_(plan: Plan, name: str, column: str, at: int, value: int) -> Plan:
    ops = getattr(plan, name)
    values = getattr(ops, column).copy()
    values[at] = value
    return replace(plan, **{name: replace(ops, **{column: values})})


def taken(plan: Plan, name: str, index: np.ndarray) -> Plan:
    return replace(plan, **{name: getattr(plan, name).take(index)})


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, Plan]:
    """A valid plan with one thing changed."""
    cost = draw(costs(nodes=2, gpus=3, heads=3))
    plan = draw(plans(cost, 40))
    name = draw(st.sampled_from(LISTS))
    ops: Ops = getattr(plan, name)
    count = len(ops)
    kind = draw(st.sampled_from(("drop", "twice", "move", "swap", *COLUMNS, "home", "shrink", "grow", "steal")))
    at, other = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
    index = np.arange(count)
    if kind == "drop":
        return kind, taken(plan, name, np.delete(index, at))
    if kind == "twice":
        return kind, taken(plan, name, np.insert(index, other, at))
    if kind == "move":
        return kind, taken(plan, name, np.insert(np.delete(index, at), min(other, count - 1), at))
    if kind == "swap":
        index[[at, other]] = index[[other, at]]
        return kind, taken(plan, name, index)
    if kind in COLUMNS:
        top = {
            "kind": 1,
            "tensor": 5,
            "src": plan.num_ranks,
            "dst": plan.num_ranks,
            "head_lo": plan.num_heads,
            "head_hi": plan.num_heads + 1,
            "blocks": len(plan.lists),
            "kv_blocks": len(plan.lists),
            "via": len(plan.lanes),
            "keep": 1,
            "collective": 1,
        }
        low = 0 if kind in ("keep", "collective") else -1
        return kind, set_(plan, name, kind, at, draw(st.integers(low, top[kind])))
    blocks = plan.blocks
    if kind == "home":
        home = blocks.home.copy()
        home[draw(st.integers(0, len(home) - 1))] = draw(st.integers(0, plan.num_ranks - 1))
        return kind, replace(plan, blocks=replace(blocks, home=home))
    piece = draw(st.integers(0, len(blocks.seq) - 1))
    if kind == "steal":
        block = blocks.block.copy()
        block[piece] = draw(st.integers(0, len(blocks) - 1))
        return kind, replace(plan, blocks=replace(blocks, block=block))
    stop = blocks.stop.copy()
    stop[piece] += -1 if kind == "shrink" else 1
    return kind, replace(plan, blocks=replace(blocks, stop=stop))


@settings(max_examples=800)
@given(mutations())
def test_no_wrong_plan_passes(mutation: tuple[str, Plan]) -> None:
    kind, plan = mutation
    if wrong(plan):
        assert rejected(plan) is not None, kind


@settings(max_examples=500)
@given(mutations())
def test_what_is_rejected_is_wrong_or_breaks_a_rule_of_form(mutation: tuple[str, Plan]) -> None:
    """The verifier cries wolf only over forms that some executor could not run, though numbers would come out right."""
    kind, plan = mutation
    words = rejected(plan)
    if words is not None and not wrong(plan):
        assert re.search(
            r"heads that cut through|(kind|tensor|src|dst|kv_blocks|via|keep|collective|head_lo|head_hi) is -?\d+; "
            r"|in .sequence, start. order|a second time|a piece begins before it stops|is empty; a block",
            words,
        ), (kind, words)


@given(st.data())
def test_valid_plans_pass(data: st.DataObject) -> None:
    verify(data.draw(plans(data.draw(costs()), 400)))


# -- every way of breaking a plan, by construction ------------------------------------------------------------------


def laid(mode: str = "keep", kind: str = "ring") -> Plan:
    """Two sequences over 2 nodes' 4 ranks."""
    builder = Builder(np.array([23, 9]), 4, 4)
    zero = np.zeros(2, np.int64)
    grid = np.arange(4).reshape((1, 4, 1) if kind == "ring" else (1, 2, 2))
    ulysses_ring(builder, np.arange(2), zero, grid)
    return reverse(builder.build(), mode)


def every(kinds: Callable[[Ops], np.ndarray], name: str, plan: Plan) -> list[int]:
    return np.flatnonzero(kinds(getattr(plan, name))).tolist()


def sends(*tensors: int) -> Callable[[Ops], np.ndarray]:
    return lambda ops: (ops.kind == TRANSFER) & np.isin(ops.tensor, tensors)


def attends(ops: Ops) -> np.ndarray:
    return ops.kind == ATTEND


@pytest.mark.parametrize("mode", ["keep", "carry", "regather"])
@pytest.mark.parametrize("layout", ["ring", "usp"])
@pytest.mark.parametrize(
    ("name", "which", "words"),
    [
        ("forward", attends, "visible"),
        ("backward", attends, "visible"),
        ("forward", sends(Q), r"uses q of block \d+ on rank \d+, which no earlier"),
        ("forward", sends(KV), r"uses kv of block \d+ on rank \d+, which no earlier"),
        ("forward", sends(O), r"adds to o of block \d+ on rank \d+, and nothing sends that home to rank \d+"),
        ("backward", sends(DO), r"uses do of block \d+ on rank \d+, which no earlier"),
        ("backward", sends(DQ), r"adds to dq of block \d+ on rank \d+, and nothing sends that home"),
        ("backward", sends(DKV), r"adds to dkv of block \d+ on rank \d+, and nothing sends|sends dkv of block"),
        ("backward", sends(KV), r"uses kv of block \d+ on rank \d+, which no earlier"),
    ],
)
def test_dropping_any_operation(mode: str, layout: str, name: str, which: Callable, words: str) -> None:
    plan = laid(mode, layout)
    for at in every(which, name, plan):
        broken = taken(plan, name, np.delete(np.arange(len(getattr(plan, name))), at))
        with pytest.raises(PlanError, match=words) as caught:
            verify(broken)
        assert name in str(caught.value)


@pytest.mark.parametrize("layout", ["ring", "usp"])
@pytest.mark.parametrize("name", LISTS)
def test_doing_anything_twice(layout: str, name: str) -> None:
    plan = laid("carry", layout)
    count = len(getattr(plan, name))
    for at in range(count):
        with pytest.raises(PlanError, match=rf"{name} operation \d+ \(.*rank \d+.*\) .*block \d+"):
            verify(taken(plan, name, np.insert(np.arange(count), at, at)))


@pytest.mark.parametrize("layout", ["ring", "usp"])
@pytest.mark.parametrize("name", LISTS)
def test_attending_on_the_wrong_rank(layout: str, name: str) -> None:
    plan = laid("carry", layout)
    for at in every(attends, name, plan):
        rank = (int(getattr(plan, name).src[at]) + 1) % 4
        moved = set_(set_(plan, name, "src", at, rank), name, "dst", at, rank)
        with pytest.raises(PlanError, match=rf"{name} operation \d+ \(.*\) .*block \d+ .*rank \d+"):
            verify(moved)


@pytest.mark.parametrize("layout", ["ring", "usp"])
def test_using_before_it_is_made(layout: str) -> None:
    """The last operation first: always something its data edges forbid, as all of them depend on something."""
    plan = laid("carry", layout)
    for name in LISTS:
        count = len(getattr(plan, name))
        home = every(lambda ops: (ops.kind == ATTEND) & (ops.blocks == ops.kv_blocks), name, plan)
        at = max(set(range(count)) - set(home))
        order = np.insert(np.delete(np.arange(count), at), 0, at)
        with pytest.raises(PlanError, match=rf"{name} operation 0 \(.*\) .*block \d+ .*rank \d+"):
            verify(taken(plan, name, order))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("kind", 2, "it takes 0, a transfer, or 1, an attend"),
        ("src", 4, "ranks are 0 to 3"),
        ("dst", -1, "ranks are 0 to 3"),
        ("head_lo", -1, "heads are 0 to 3"),
        ("head_hi", 5, "it is above head_lo and at most 4"),
        ("head_hi", 0, "it is above head_lo and at most 4"),
        ("blocks", 99, "lists are 0 to 3"),
        ("blocks", -1, "lists are 0 to 3"),
        ("tensor", DQ, r"a transfer of the forward takes 0 \(q\), 1 \(kv\), 2 \(o\)"),
        ("tensor", -1, r"a transfer of the forward takes 0 \(q\)"),
        ("via", 0, "without lanes it takes -1, sent directly"),
        ("via", -7, "without lanes it takes -1, sent directly"),
        ("keep", 2, "it takes 0 or 1"),
        ("kv_blocks", 0, "a transfer has none, which is -1"),
    ],
)
def test_fields_that_name_nothing(column: str, value: int, words: str) -> None:
    plan = laid()
    (at, *_) = every(sends(KV), "forward", plan)
    with pytest.raises(PlanError, match=rf"forward operation {at} on rank -?\d+: {column} is {value}; {words}"):
        verify(set_(plan, "forward", column, at, value))


def test_a_transfer_to_its_own_rank() -> None:
    plan = laid()
    (at, *_) = every(sends(KV), "forward", plan)
    broken = set_(plan, "forward", "dst", at, int(plan.forward.src[at]))
    with pytest.raises(PlanError, match=rf"forward operation {at} .*a transfer goes to another rank"):
        verify(broken)


def test_an_attend_with_fields_of_a_transfer() -> None:
    plan = laid()
    (at, *_) = every(attends, "forward", plan)
    with pytest.raises(PlanError, match=f"forward operation {at} .*an attend is on one rank"):
        verify(set_(plan, "forward", "dst", at, (int(plan.forward.src[at]) + 1) % 4))
    for column, value, words in (
        ("kv_blocks", -1, "lists are"),
        ("tensor", Q, "an attend has none"),
        ("via", -7, "not ro"),
    ):
        with pytest.raises(PlanError, match=f"forward operation {at} on rank 0: {column} is {value}; .*{words}"):
            verify(set_(plan, "forward", column, at, value))


@pytest.mark.parametrize("which", [attends, sends(O)])
def test_keeping_what_is_no_copy(which: Callable) -> None:
    """`keep` says that a received q or kv stays until the backward; on anything else it means nothing."""
    plan = laid("keep", "usp")
    (at, *_) = every(which, "forward", plan)
    with pytest.raises(PlanError, match=f"forward operation {at} .*can be kept"):
        verify(set_(plan, "forward", "keep", at, 1))


def test_head_ranges_that_overlap_or_leave_a_gap() -> None:
    plan = laid("keep", "usp")
    for name in LISTS:
        for at in every(attends, name, plan):
            ops = getattr(plan, name)
            lo, hi = int(ops.head_lo[at]), int(ops.head_hi[at])
            with pytest.raises(PlanError):
                verify(set_(plan, name, "head_hi", at, hi - 1))
            with pytest.raises(PlanError):
                verify(set_(plan, name, "head_hi" if lo == 0 else "head_lo", at, hi + 1 if lo == 0 else lo - 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: replace(b, stop=b.stop - (np.arange(len(b.seq)) == 3)), "a token is owned twice or not at all"),
        (lambda b: replace(b, stop=b.stop + (np.arange(len(b.seq)) == 3)), "a token is owned twice or not at all"),
        (lambda b: replace(b, stop=np.append(b.stop[:-1], b.stop[-1] - 1)), "has 9 tokens, its blocks hold 8"),
        (lambda b: replace(b, start=b.start + (np.arange(len(b.seq)) == 0)), "block 0 has tokens from 1"),
        (lambda b: replace(b, home=b.home + 4), r"plan.blocks.home\[0\] is 4; ranks are 0 to 3"),
        (lambda b: replace(b, home=np.append(b.home, 0)), "block 4 is empty"),
        (lambda b: replace(b, block=b.block + 1), r"plan.blocks.block\[\d+\] is 4; blocks are 0 to 3"),
        (
            lambda b: replace(b, **{n: getattr(b, n)[::-1].copy() for n in ("seq", "start", "stop", "block")}),
            r"not in \(sequence, start\) order",
        ),
        (lambda b: replace(b, stop=b.start), "the tokens 0 to 0 of sequence 0; a piece begins before it"),
        (lambda b: replace(b, seq=b.seq + 1), r"plan.blocks.seq\[\d+\] is 2; sequences are 0 to 1"),
        (
            lambda b: replace(
                b, seq=b.seq[b.seq == 0], start=b.start[b.seq == 0], stop=b.stop[b.seq == 0], block=b.block[b.seq == 0]
            ),
            "sequence 1 has 9 tokens, its blocks hold 0",
        ),
        (lambda b: replace(b, seq=b.seq - 1), r"plan.blocks.seq\[0\] is -1; sequences are 0 to 1"),
        (
            lambda b: replace(
                b, **{n: np.append(getattr(b, n), v) for n, v in (("seq", 2), ("start", 0), ("stop", 5), ("block", 0))}
            ),
            r"plan.blocks.seq\[16\] is 2; sequences are 0 to 1",
        ),
    ],
)
def test_tokens_without_exactly_one_block(change: Callable, words: str) -> None:
    plan = laid()
    with pytest.raises(PlanError, match=words):
        verify(replace(plan, blocks=change(plan.blocks)))


def test_lists_that_name_no_block() -> None:
    plan = laid()
    items = plan.lists.items.copy()
    items[0] = 99
    with pytest.raises(PlanError, match=r"plan.lists.items\[0\] is 99; blocks are 0 to 3"):
        verify(replace(plan, lists=replace(plan.lists, items=items)))
    offsets = np.append(plan.lists.offsets, plan.lists.offsets[-1])
    with pytest.raises(PlanError, match=r"plan\.lists has nothing in list 4"):
        verify(replace(plan, lists=replace(plan.lists, offsets=offsets)))


def test_memory() -> None:
    cluster = Cluster("two", 2, 2, 1, 1e9, 0.8, 0.0, 1e11, 0.6, 0.0, SHARP)
    cost = Cost(cluster, Model("small", 2, 16, 4, 2, 4, 32, 64))
    plan = laid()
    verify(plan, cost)
    peak = int(peak_bytes((plan,), cost).max())
    fits = replace(cost, cluster=replace(cost.cluster, device=replace(SHARP, memory_bytes=float(peak))))
    verify(plan, fits)
    small = replace(cost, cluster=replace(cost.cluster, device=replace(SHARP, memory_bytes=peak - 1.0)))
    with pytest.raises(OutOfMemory, match=r"rank \d+ needs .* GiB, a sharp has .* GiB"):
        verify(plan, small)


def test_a_step_has_every_sequence_in_one_micro_batch() -> None:
    batch = Batch(np.array([5, 6, 7]), 0, 0)

    def part(sequences: list[int], lengths: list[int] | None = None) -> Plan:
        tokens = batch.lengths[sequences] if lengths is None else np.array(lengths)
        builder = Builder(tokens, 2, 2, sequences=np.array(sequences))
        local(builder, np.arange(len(tokens)), np.zeros(len(tokens), np.int64))
        return reverse(builder.build(), "keep")

    verify_step(batch, (part([0, 1, 2]),))
    verify_step(batch, (part([2]), part([0, 1])))
    with pytest.raises(PlanError, match="sequence 1 is in 0 micro-batches"):
        verify_step(batch, (part([2]), part([0])))
    with pytest.raises(PlanError, match="sequence 0 is in 2 micro-batches"):
        verify_step(batch, (part([2, 0]), part([0, 1])))
    with pytest.raises(PlanError, match="micro-batch 0 has sequences of other lengths than the batch"):
        verify_step(batch, (part([0, 1, 2], [5, 7, 6]),))
    with pytest.raises(PlanError, match="micro-batch 0 names sequences that the batch does not have"):
        verify_step(batch, (part([0, 1, 3], [5, 6, 7]),))
    with pytest.raises(PlanError, match="sequence 0 is in 0 micro-batches"):
        verify_step(batch, ())
    with pytest.raises(
        PlanError, match=r"^plans are a Plan; it takes a tuple of zbench\.plans\.plan\.Plan, one a micro-batch$"
    ):
        verify_step(batch, part([0, 1, 2]))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"^it is a tuple, no zbench\.plans\.plan\.Plan$"):
        verify((part([0, 1, 2]),))  # type: ignore[arg-type]


def test_bidirectional_attention_is_counted_too() -> None:
    builder = Builder(np.array([6, 3]), 3, 2, FULL)
    ring(builder, np.arange(2), np.zeros(2, np.int64), np.arange(3)[None])
    plan = reverse(builder.build(), "keep")
    verify(plan)
    (at, *_) = every(attends, "forward", plan)
    with pytest.raises(PlanError, match="are attended of 90"):
        verify(taken(plan, "forward", np.delete(np.arange(len(plan.forward)), at)))


def test_nothing_that_was_derived_before_is_believed() -> None:
    """A planner that plays its plan and then writes to its arrays leaves sizes and areas of what they were before."""
    plan = laid()
    before, areas = plan.blocks.tokens.tolist(), plan.pairs.work.area.tolist()
    plan.blocks.block[:4] = np.arange(4) // 2
    verify(plan)
    fresh = replace(plan, blocks=replace(plan.blocks))
    assert plan.blocks.tokens.tolist() == fresh.blocks.tokens.tolist() != before
    assert plan.pairs.work.area.tolist() == fresh.pairs.work.area.tolist() != areas


def test_more_pairs_than_there_are_are_told_without_writing_them_down() -> None:
    plan = laid()
    everything = Lists(np.array([0, 10**6]), np.zeros(10**6, np.int64))
    same = Ops.attends(np.zeros(1, np.int64), (0, 4), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(
        PlanError, match="attends name 1000000000000 pairs of blocks, which is more than 4 x 4 for each"
    ):
        verify(plan.with_(lists=everything, forward=same, backward=same))
