"""Weights for GPUs that generate alone, as a step: each slice goes along a chain of the GPUs that take it.

GPUs that train have all weights, and one of them begins a chain. Whoever has received a weight sends it on, so weights
follow one another along a chain, and each enters a node once for every slice that the node takes.
"""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Ints
from zbench.rollouts.weights import Weight
from zbench.step.index import Index
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.passes.parameters.switch import flagged_items
from zbench.step.template import Instance, Items, Step, Template
from zbench.step.tensor import Tensor


def slice_chains(training: int, every: int, tensor: int, gpus_per_node: int) -> list[Ints]:
    """Returns the GPUs of the chain of each of `tensor` slices: one that trains, then those of all replicas that take
    it. training: GPUs that train, which come first; every: of both."""
    first = np.arange(tensor) * min(training, gpus_per_node) // tensor  # spread over a node's NICs
    return [np.concatenate([first[at : at + 1], np.arange(training + at, every, tensor)]) for at in range(tensor)]


def broadcast_step(
    weights: Sequence[Weight], unit: int, stages: Sequence[Sequence[Ints]], gpus: int, num_layers: int
) -> Step:
    """Returns the step. unit: bytes of an element. stages: the chains of the slices of each stage of generation, as
    `slice_chains` has them."""
    count = len(stages[0])
    sizes = {one.elements: np.diff(np.arange(count + 1) * one.elements // count) for one in weights}
    indices = {elements: Index(f"e{number}", size) for number, (elements, size) in enumerate(sizes.items())}
    lists = ListTable({**{one.name: len(one) for one in indices.values()}, PLACE: gpus})
    tensors, operations = list[Tensor](), list[list[int]]()
    begins, ends = list[list[int]](), list[list[int]]()
    for weight in weights:
        index, what = indices[weight.elements].name, len(tensors)
        tensors.append(Tensor(weight.name, (index,), "copy", "", "none", unit, np.full(count, -1, np.int64)))
        had, has = np.zeros((2, gpus, count), bool)
        for at, chain in enumerate(stages[weight.layer * len(stages) // num_layers]):
            pieces = np.array([at]) if weight.is_cut else np.arange(count)
            for src, dst in zip(chain[:-1].tolist(), chain[1:].tolist(), strict=True):
                cells = [lists.number(index, pieces)]
                operations.append(operation_row(SEND, what, (src, dst), cells, "parameters"))
            had[chain[0], pieces] = True
            has[chain[:, None], pieces] = True
        begins += flagged_items(lists, index, what, had)
        ends += flagged_items(lists, index, what, has)
    layout = StepLayout(tuple(indices.values()), (), (), (), tuple(tensors), (), lists.lists())
    needs, leaves = Items.of(begins), Items.of(ends)
    template = Template("broadcast", 0, Operations.of(operations), (), needs, leaves)
    return Step(gpus, 0, 0, (), (layout,), (template,), (Instance(0, 0),), needs, leaves)
