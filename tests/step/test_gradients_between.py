"""Gradients in pieces between experts' messages of the next layer: proven, exact, with the bytes of whole ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.degrees import ShardDegrees
from zbench.describe.expert_schedule import ExpertChunks, GradientPieces
from zbench.describe.model import Model
from zbench.describe.overlap import END, StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import sent_by_purpose, stated_bytes
from zbench.step.operations import GATHER, QUEUES, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import ExpertParallel
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.template import Step
from zbench.step.text import step_text

MODEL = replace(EXPERTS, num_layers=3)
HOW = ExpertParallel(2, 1, 1.0)
PIECES = {
    "lina's": GradientPieces(4, 1, 2),
    "fsmoe's": GradientPieces(3, 1, 1, apart=False),
    "all of them inside": GradientPieces(2, 2, 0, apart=False),
    "all of them after the backward": GradientPieces(3, 0, 0),
}
# ZeRO's stage or degrees, stages of a pipeline, tensor parallelism, recomputation, chunks of a forward and a backward.
CASES = (
    ("none", 2, 1, "none", 1, 1),
    ("1", 2, 2, "full", 2, 3),
    ("2", 1, 1, "selective", 1, 4),
    ("3", 1, 2, "none", 2, 2),
    (ShardDegrees(2, 2, 2, 4), 1, 1, "none", 1, 1),
)


def plans_of(degree: int) -> list[Plan]:
    return [plan_of([40, 3], 4 // degree, 4 // degree), plan_of([5], 4 // degree, 4 // degree, first=2)]


def built(pieces: GradientPieces | None, case: tuple[Any, ...], model: Model = MODEL) -> tuple[Step, list[Plan], int]:
    zero, stages, degree, recompute, forward, backward = case
    plans, overlap = plans_of(degree), StepOverlap(experts=ExpertChunks(forward, backward, gradients=pieces))
    step = whole_step(replace(model, num_kv_heads=4), plans, degree, zero, overlap, recompute, HOW, stages)
    return step, plans, overlap.token_slices


@pytest.mark.parametrize(
    ("pieces", "case"), [(name, CASES[(at + more) % 5]) for at, name in enumerate(PIECES) for more in (0, 2)], ids=str
)
def test_exact_and_as_many_bytes(pieces: str, case: tuple[Any, ...]) -> None:
    """Shards end where pieces do, so that a GPU's share is larger or smaller by what rounding does; all GPUs together
    send as many bytes for gradients, and each as many for experts."""
    step, plans, slices = built(PIECES[pieces], case)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, case[2], replace(MODEL, num_kv_heads=4), HOW, slices) < 1e-12
    found, wanted = (stated_bytes(one) for one in (step, built(None, case)[0]))
    assert [one["experts"] for one in found] == [one["experts"] for one in wanted]
    assert sent_by_purpose(found)["gradients"] == sent_by_purpose(wanted)["gradients"] > 0


@pytest.mark.parametrize(
    ("pieces", "case"), [(name, CASES[(at + more) % 5]) for at, name in enumerate(PIECES) for more in (1, 4)], ids=str
)
def test_in_two_levels(pieces: str, case: tuple[Any, ...]) -> None:
    """With two GPUs a node, of which some have no tokens: what each GPU sends to experts, and what all of them send for
    gradients, stays, and no piece goes between GPUs of two nodes that have other numbers in theirs."""
    flat, plans, slices = built(PIECES[pieces], case)
    step = in_two_levels(flat, 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, case[2], replace(MODEL, num_kv_heads=4), HOW, slices) < 1e-12
    found, wanted = (stated_bytes(one) for one in (step, flat))
    assert [one["experts"] for one in found] == [one["experts"] for one in wanted]
    assert sent_by_purpose(found)["gradients"] == sent_by_purpose(wanted)["gradients"] > 0
    seen = set()
    for template in step.templates:
        for kind, _, _, dst, *rest in template.operations.table.tolist():
            if kind in (GATHER, REDUCE) and QUEUES[rest[4]] == "experts":
                members = step.layouts[template.layout].lists[dst]
                nodes, inside = (len(np.unique(one)) for one in (members // 2, members % 2))
                seen.add((nodes, inside))
    assert seen <= {(1, 2), (2, 1)}
    assert len(seen) == (2 if PIECES[pieces].inside + PIECES[pieces].beside else 0)


def test_mutants_in_two_levels() -> None:
    """The proof and the unrolled walk agree on each."""
    assert rejected_mutants(in_two_levels(built(PIECES["lina's"], CASES[2])[0], 2), 1) > 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("kind", [(1, 0, 0), (2, 2, 0), (3, 1, 0), (3, 0, 1)])
def test_exact_where_some_layers_rest_on_hosts(kind: tuple[int, int, int], pieces: str) -> None:
    """A layer whose gradients the backward of another kind of layer completes is updated behind that one."""
    case = ("3", 1, 2, "none", 2, 2)
    step, plans, slices = built(PIECES[pieces], case)
    step = with_optimizer_on_hosts(step, 2, HostLayers(3, *kind))
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, case[2], replace(MODEL, num_kv_heads=4), HOW, slices) < 1e-12


def test_mutants() -> None:
    """The proof and the unrolled walk agree on each."""
    assert rejected_mutants(built(PIECES["lina's"], CASES[2])[0], 0) > 8


def test_order_of_a_backward() -> None:
    """A layer's backward has pieces of the layer before it behind all that is sent to experts, and behind all that came
    home; what is over is reduced in the end, and so is the layer that is done last, whole."""
    plans = [plan_of([8], 2, 4)]
    overlap = StepOverlap(experts=ExpertChunks(1, 2, gradients=GradientPieces(3, 1, 1)))
    step = whole_step(MODEL, plans, 1, "1", overlap, "none", ExpertParallel(2, 1))
    (backward,) = (one for one in step.templates if one.name == "backward")
    ops, layout = backward.operations, step.layouts[0]
    rows = [row for row in ops.table.tolist() if row[8] == QUEUES.index("experts")]
    told = ["reduce" if row[0] == REDUCE else layout.tensors[row[1]].name for row in rows]
    runs = [name for at, name in enumerate(told) if at == 0 or told[at - 1] != name]
    first, second = (at for at, name in enumerate(runs) if name == "reduce")
    assert set(runs[:first]) == {"dv"}
    assert set(runs[first + 1 : second]) == {"dp", "di"}
    assert second == len(runs) - 1
    assert {row[7] for row in rows if row[0] == REDUCE} == {1}
    assert step_text(step).count("play reduce_rest for layers 1 to 2\nplay reduce for layer 0\n") == 1
    assert "play backward for layers 2 to 0\n" in step_text(step)


def test_every_piece_is_reduced_once_and_pieces_are_alike() -> None:
    step = built(PIECES["lina's"], CASES[2])[0]
    layout = step.layouts[-1]
    number, sizes = layout.number["dez"], layout.index["zez"].sizes
    seen = np.zeros(len(sizes), np.int64)
    named = {one.name: one for one in step.templates}
    for template, times in (("backward.1", 1), ("reduce_rest.1", 1)):
        for row in named[template].operations.table.tolist():
            if row[0] == REDUCE and row[1] == number and layout.lists[row[4]][0] == 0:
                seen[layout.lists[row[5]]] += times
    assert (seen == 1).all()


@pytest.mark.parametrize(("pieces", "zero"), [("lina's", "2"), ("all of them inside", "3"), ("fsmoe's", "1")])
def test_with_optimizer_on_hosts(pieces: str, zero: str) -> None:
    """A layer is updated behind the backward that has its last pieces, or behind what is over."""
    step, plans, slices = built(PIECES[pieces], (zero, 1, 1, "full", 1, 2))
    step = with_optimizer_on_hosts(step, 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, replace(MODEL, num_kv_heads=4), HOW, slices) < 1e-12
    order = [(step.templates[one.template].name, layer) for one in step.order for layer in one.layers]
    updates = [order.index(("optimizer", layer)) for layer in (2, 1, 0)]
    complete = ["reduce_rest.1"] * 2 if pieces != "all of them inside" else ["backward.1"] * 2
    behind = 0 if pieces != "all of them inside" else -1
    assert [order[at - 1] for at in updates] == [
        (complete[0], 2 + behind), (complete[1], 1 + behind), ("reduce.1", 0)
    ]  # fmt: skip


# Layers, stages, ZeRO's stage, pieces, kinds of layers on hosts, when CPUs update.
STAGED = (
    (2, 2, "1", "lina's", (2, 0, 0), "as_gradients_come"),
    (2, 2, "3", "fsmoe's", (2, 2, 0), "after_backward"),
    (4, 2, "2", "all of them after the backward", (4, 0, 0), "after_backward"),
    (4, 2, "3", "lina's", (2, 2, 0), "as_gradients_come"),
    (4, 2, "1", "all of them inside", (4, 0, 2), "as_gradients_come"),
    (5, 2, "3", "lina's", (3, 1, 0), "as_gradients_come"),
    (4, 4, "1", "lina's", (4, 0, 0), "as_gradients_come"),
)


@pytest.mark.parametrize(("layers", "stages", "zero", "pieces", "kind", "when"), STAGED)
def test_with_optimizer_of_stages_on_hosts(
    layers: int, stages: int, zero: str, pieces: str, kind: tuple[int, int, int], when: str
) -> None:
    """A stage's last layer in a backward has none behind it: the layer of the next number is another stage's, which
    that one reduces whole and whose update is behind this reduction."""
    model = replace(MODEL, num_layers=layers)
    step, plans, slices = built(PIECES[pieces], (zero, stages, 1, "full", 2, 2), model)
    step = with_optimizer_on_hosts(step, 2, HostLayers(layers, *kind), when)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, replace(model, num_kv_heads=4), HOW, slices) < 1e-12
    order = [(step.templates[one.template].name, layer, one.place) for one in step.order for layer in one.layers]
    for start in (one for one in step.stages if one.layer >= layers - kind[0]):  # the last ones have their state there
        name, *where = order[order.index(("reduce.1", start.layer, start.place)) + 1]
        assert (name.startswith("optimizer"), where) == (True, [start.layer, start.place])


def test_experts_on_every_gpu_have_no_messages_to_go_between() -> None:
    plans = plans_of(1)
    overlap = StepOverlap(experts=ExpertChunks(gradients=GradientPieces(2, 1, 1)))
    step = whole_step(EXPERTS, plans, 1, "1", overlap, "none", ExpertParallel())
    assert fault(step) == ""
    assert not any((one.operations.queue == QUEUES.index("experts")).any() for one in step.templates)


def test_pieces_that_cannot_be() -> None:
    for keys, told in (
        ((0, 0, 0), "pieces of gradients count is 0; it takes a whole number from 1 to 64"),
        ((4, 5, 0), "pieces of gradients inside is 5; it takes a whole number from 0 to 4"),
        ((4, 3, 2), "pieces of gradients beside is 2; it takes a whole number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=f"^{told}"):
            GradientPieces(*keys)
    chunks = ExpertChunks(gradients=GradientPieces(2, 1, 1))
    with pytest.raises(ValueError, match=r"^sharding.gradient_bucket is end; with experts.gradients=between"):
        StepOverlap(1, END, experts=chunks)
    with pytest.raises(ValueError, match=r"^gradients go between experts' messages"):
        whole_step(MODEL, plans_of(1), 1, "1", StepOverlap(experts=chunks), SomeLayers("full", (1,)), HOW)
