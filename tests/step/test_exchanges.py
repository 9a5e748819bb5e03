"""Exchanges of tensor-parallel groups beside matmuls: proven, exact, with the bytes of collectives, in their order."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, plan_of, rejected_mutants
from tests.helpers.variants import Variant
from tests.step.test_exact import CLUSTER, OWN
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.cost.ranks_of_gpus import grouped
from zbench.describe.batch import Batch
from zbench.describe.exchanges import WHOLE, ExchangeOverlap
from zbench.describe.overlap import StepOverlap
from zbench.passes.reverse import Mode
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, DROP, GATHER, QUEUES, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step, Template
from zbench.step.text import step_text

FOUR = replace(MODEL, num_kv_heads=4)
HOWS = {
    "sliced 2": ExchangeOverlap("sliced", 2),
    "sliced 8": ExchangeOverlap("sliced", 8),
    "async_tp": ExchangeOverlap("async_tp", 1, "direct"),
    "async_tp 2": ExchangeOverlap("async_tp", 2, "direct"),
    "commfuse": ExchangeOverlap("commfuse"),
    "commfuse 3": ExchangeOverlap("commfuse", 3),
    "commfuse direct": ExchangeOverlap("commfuse", 1, "direct"),
    "query_split": ExchangeOverlap("query_split", balance="area"),
    "query_split 3": ExchangeOverlap("query_split", 3),
    "query_split direct": ExchangeOverlap("query_split", 1, "direct", "area"),
}
QUEUE = QUEUES.index("tensor_parallel")


def built(
    plans: list[Plan], how: ExchangeOverlap, degree: int = 4, zero: str = "1", recompute: str = "none", stages: int = 1
) -> Step:
    return whole_step(FOUR, plans, degree, zero, StepOverlap(exchanges=how), recompute, stages=stages)


def of_layers(step: Step) -> Iterator[Template]:
    return (one for one in step.templates if one.name.split(".")[0] in ("forward", "backward"))


TOKENS = (1, 2, 5, 23, 32)
COVER = [  # every pair of choices
    (how, tokens, ("none", "full")[(at + to) % 2]) for at, how in enumerate(HOWS) for to, tokens in enumerate(TOKENS)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("how", "tokens", "recompute"), COVER)
def test_exact_and_as_many_bytes(how: str, tokens: int, recompute: str) -> None:
    """On four GPUs, with fewer tokens than GPUs, too: slices without a token have no operation."""
    plans = [plan_of([tokens], 1, 1)]
    step = built(plans, HOWS[how], recompute=recompute)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 4, FOUR, slices=HOWS[how].token_slices) < 1e-12
    wanted, found = (stated_bytes(one) for one in (built(plans, WHOLE, recompute=recompute), step))
    for way in (0, 1):
        sums = {sum(one.get("tensor_parallel", (0, 0))[way] for one in every) for every in (wanted, found)}
        assert len(sums) == 1
    passes_on = HOWS[how].transfers == "ring" and HOWS[how].method != "sliced"  # others' tokens, too
    if tokens == 32 or not (passes_on or HOWS[how].balance == "area"):  # which gives the odd token to another GPU
        assert wanted == found
    sizes = step.layouts[0].lists.offsets
    for template in of_layers(step):
        ops = template.operations
        lists = ops.list0[(ops.queue == QUEUE) | (ops.kind == COMPUTE)]
        assert (np.diff(sizes)[lists[lists >= 0]] > 0).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("zero", ["none", "2", "3"])
@pytest.mark.parametrize("how", HOWS)
def test_exact_with_several_groups_micro_batches_and_stages(how: str, zero: str) -> None:
    plans = [plan_of([9, 7], 2, 2), plan_of([1], 2, 2, first=2)]
    step = built(plans, HOWS[how], 2, zero, "selective", 1 if zero in ("2", "3") else 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 2, FOUR, slices=HOWS[how].token_slices) < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", OWN, ids=str)
def test_plans_of_every_system(variant: Variant) -> None:
    """In groups of two GPUs, by a method that its place in the list says."""
    system = variant.make(grouped(Cost(CLUSTER, FOUR), 2))
    if not hasattr(system, "plan"):
        pytest.skip(f"{variant} chooses before a run")
    plans = list(system.plan(Batch(np.array([31, 7, 1, 1, 13]), seed=0, step=0)))
    how = list(HOWS.values())[OWN.index(variant) % len(HOWS)]
    step = built(plans, how, 2, "3")
    prove_step(step)
    assert execute(step, plans, 2, FOUR, slices=how.token_slices) < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", HOWS)
def test_mutants(how: str) -> None:
    plans = [plan_of([7, 4], 2, 2)]
    step = built(plans, HOWS[how], 2, "3")

    def error(broken: Step) -> float:
        return execute(broken, plans, 2, FOUR, slices=HOWS[how].token_slices)

    assert rejected_mutants(step, list(HOWS).index(how), 36, error) > 12


@pytest.mark.parametrize("how", HOWS)
def test_what_stays_a_collective(how: str) -> None:
    """With messages nothing of layers, but for what async_tp gathers for gradients of parameters alone; m and n are."""
    step = built([plan_of([64], 1, 1)], HOWS[how])
    number = step.layouts[0].number
    found = [
        int(what)
        for template in of_layers(step)
        for what in template.operations.what[
            np.isin(template.operations.kind, (GATHER, REDUCE)) & (template.operations.queue == QUEUE)
        ]
    ]
    wanted = {"async_tp": [number["m"], number["n"]], "commfuse": [], "query_split": []}.get(HOWS[how].method)
    assert wanted is None or found == wanted
    if HOWS[how].method == "sliced":  # n, a, m, b forward; dx, dm, dy, dn backward; and whole m and n
        assert len(found) == 8 * HOWS[how].slices + 2


FORWARD = {
    "commfuse": """
      compute z[1,1] compute u[1,1] compute z[0,1] compute u[0,1] compute b[0,1] move b[0] compute b[1,1]""",
    "async_tp": """
      compute z[1,1] compute z[0,1] compute u[*,1] compute b[0,1] move b[0] compute b[1,1]""",
    "sliced 2": """
      compute z[0 2,1] compute u[0 2,1] compute b[0 2,1] compute z[1 3,1] compute u[1 3,1] compute b[1 3,1]""",
}


@pytest.mark.parametrize("how", FORWARD)
def test_order_on_a_gpu(how: str) -> None:
    """Own tokens first where they are gathered and last where they are summed; by commfuse through all matmuls."""
    step = built([plan_of([8], 1, 2)], HOWS[how], 2)
    text = step_text(step)
    lines = text[text.index("template forward") : text.index("template head")].splitlines()
    names = ("compute z", "compute u", "compute b", "move b")
    mine = [line for line in lines if any(name in line for name in names) and (" at 1" in line or " 1 ->" in line)]
    mine = [line.split(": ")[1].split(" at ")[0].split(" 1 ->")[0] for line in mine]
    assert " ".join(mine) == " ".join(FORWARD[how].split())


SPLIT = {
    ("tokens", 1): "o[0,1,*] a[0,1] a[0] o[1,1,*] a[1,1]",
    ("area", 1): "o[0 3,1,*] a[0 3,1] a[0 3] o[1-2,1,*] a[1-2,1]",
    ("tokens", 2): "o[0-1,1,0-1] o[0,1,2-3] a[0,1] a[0] o[1,1,2-3] a[1,1]",  # of a ring's steps the last one is cut
}


@pytest.mark.parametrize(("balance", "ranks"), SPLIT)
def test_order_of_attention_on_a_gpu(balance: str, ranks: int) -> None:
    """A GPU attends with the other one's queries, projects and sends, and then with its own."""
    text = step_text(built([plan_of([16], ranks, 2)], ExchangeOverlap("query_split", balance=balance), 2))
    forward = text[text.index("template forward") : text.index("template head")]
    found = re.findall(r"compute ([oa]\[.*\]) at 1$|move (a\[.*\]) 1 ->", forward, re.MULTILINE)
    assert " ".join(map("".join, found)) == SPLIT[balance, ranks]


@pytest.mark.parametrize("mode", ["keep", "regather"])
def test_what_attends_read_is_dropped_after_them(mode: Mode) -> None:
    plans = [plan_of([9, 7, 23], 4, 2, mode)]
    how = ExchangeOverlap("query_split", 2, "direct", "area")
    step = built(plans, how, 2, "1", "full")
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 2, FOUR, slices=how.token_slices) < 1e-12
    (backward,) = (one.operations for one in step.templates if one.name == "backward")
    assert (backward.kind == DROP).any() == (mode == "regather")


def test_groups_of_one_gpu_exchange_nothing() -> None:
    plans = [plan_of([9, 7], 4, 4)]
    assert step_text(built(plans, HOWS["commfuse"], 1)) == step_text(built(plans, WHOLE, 1))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (("flux", 1, "ring"), "overlap.method is 'flux'; it takes none, sliced, async_tp, commfuse or query_split"),
        (("commfuse", 1, "tree"), "overlap.transfers is 'tree'; it takes ring or direct"),
        (("sliced", 0, "ring"), "overlap.slices is 0; it takes a whole number from 1 to 64"),
        (("commfuse", 1.5, "ring"), "overlap.slices is 1.5; it takes a whole number from 1 to 64"),
        (("none", 2, "ring"), "overlap.slices is 2; overlap=none cuts no exchange, so it takes 1"),
        (("sliced", 2, "direct"), "overlap.transfers is direct; overlap=sliced takes ring"),
        (("async_tp", 1, "ring"), "overlap.transfers is ring; overlap=async_tp takes direct"),
        (("none", "best"), "overlap.slices is best; overlap=none cuts no exchange, so it takes 1"),
        (("sliced", "most"), "overlap.slices is 'most'; it takes a whole number from 1 to 64, or best"),
        (("query_split", 1, "ring", "heads"), "overlap.balance is 'heads'; it takes tokens or area"),
        (("commfuse", 1, "ring", "area"), "overlap.balance is area; overlap=commfuse takes tokens"),
    ],
)
def test_what_cannot_be(keys: tuple[str | int, ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        ExchangeOverlap(*keys)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", HOWS)
def test_attention_of_layers_with_experts(how: str) -> None:
    """Experts over one, two and four GPUs, skewed until some have no token; what tokens exchange with them stays."""
    model = replace(EXPERTS, num_kv_heads=4)
    plans = [plan_of([9, 7], 2, 2), plan_of([1], 2, 2, first=2)]
    for degree in (1, 2, 4):
        experts = ExpertParallel(degree, 0, 9.0)
        step, whole = (
            whole_step(model, plans, 2, "2", StepOverlap(exchanges=one), "full", experts) for one in (HOWS[how], WHOLE)
        )
        assert (fault(step), unrolled_fault(step)) == ("", "")
        assert execute(step, plans, 2, model, experts, HOWS[how].token_slices) < 1e-12
        sums = [
            [sum(gpu.get(name, (0, 0))[0] for gpu in stated_bytes(one)) for name in QUEUES] for one in (whole, step)
        ]
        assert sums[0] == sums[1]
