"""Of q and kv a layer's forward keeps what its backward reads: heads that were sent away are not kept at home."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.api.parts import system_named
from zbench.correctness.steps.choices import MODEL
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, SEND
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step, Template

Cells = dict[str, set[tuple[int, int, int]]]  # of q and kv: (GPU, part of t, part of h or g)
MODES = list(product(("ulysses", "usp", "ring", "allgather"), ("keep", "carry", "regather")))
CASES = [*MODES, ("flexsp", "keep"), ("zeppelin", "carry")]
LENGTHS = (257, 40, 100, 33, 60, 9)


def step_of(system: str, mode: str, degree: int) -> Step:
    """A step of four ranks, each a group of GPUs, with two query heads to a kv head; its proof holds."""
    model = replace(MODEL, num_layers=2, num_heads=8, num_kv_heads=4, tensor_parallel=degree)
    one = small(2, 2 * degree, memory=1e12)
    cost = make_cost(one.cluster, model)
    found, _ = system_named(system, cost, {"received_kv": mode})
    step = whole_step(model, list(found.plan(Batch(np.array(LENGTHS), 0, 0))), degree, "1")
    prove_step(step)
    return step


def kept(template: Template, layout: StepLayout) -> Cells:
    """Returns the cells of q and kv of its own layer that a forward leaves, by tensor."""
    found: Cells = {"q": set(), "kv": set()}
    for row in template.leaves.rows():
        name = layout.tensors[row[0]].name
        if name in found and row[1] == 0:
            places, tokens, heads = (layout.lists[row[at]].tolist() for at in (2, 3, 4))
            fresh = set(product(places, tokens, heads))
            assert not fresh & found[name], "no cell is kept twice"
            found[name] |= fresh
    return found


def read(template: Template, layout: StepLayout) -> tuple[Cells, Cells]:
    """What attention reads in a backward, or is sent on, and what is sent to a GPU there."""
    found, arrived = ({"q": set[tuple[int, int, int]](), "kv": set[tuple[int, int, int]]()} for _ in range(2))
    (kv_of_head,) = (one.part for one in layout.maps if (one.coarse, one.fine) == ("g", "h"))
    for row in template.operations.table.tolist():
        if row[0] == COMPUTE and layout.formulas[row[1]].relation == ("visible", "t", "s"):
            tokens, heads, keys = (layout.lists[row[at]].tolist() for at in (4, 5, 6))
            found["q"] |= set(product([row[2]], tokens, heads))
            found["kv"] |= set(product([row[2]], keys, kv_of_head[heads].tolist()))
        elif row[0] == SEND and layout.tensors[row[1]].name in found:
            for cells, gpu in ((found, row[2]), (arrived, row[3])):
                name, lists = layout.tensors[row[1]].name, (layout.lists[row[at]].tolist() for at in (4, 5))
                cells[name] |= set(product([gpu], *lists))
    return found, arrived


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(("system", "mode"), CASES)
def test_what_is_kept_is_what_is_read(system: str, mode: str, degree: int) -> None:
    """Cell by cell, of own tokens and of what was received, but for what comes in the backward."""
    step = step_of(system, mode, degree)
    layout = step.layouts[0]
    forward, backward = (next(one for one in step.templates if one.name == name) for name in ("forward", "backward"))
    has, (wants, arrived) = kept(forward, layout), read(backward, layout)
    for name in ("q", "kv"):
        assert has[name] <= wants[name] <= has[name] | arrived[name]
    away = system in ("ulysses", "usp")  # a GPU has fewer than all heads of its own tokens
    home = np.asarray(layout.tensors[layout.number["x"]].home) // degree
    of_own = sum(home[part] == gpu // degree for gpu, part, _ in has["q"])
    assert (of_own < len(home) * len(layout.index["h"].sizes)) == away
