"""The emulation of a step with transfers in fewer bits in one process: its columns, executed in float64."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from zbench.correctness.steps.axes import CUT, MEMORY, from_memory, slice_in_whole
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.computing import Tokens
from zbench.correctness.steps.dense import SMOOTH, DenseStep, updated
from zbench.correctness.steps.interpreter import StepInterpreter
from zbench.describe.arrays import Floats
from zbench.runtime.stepping.weights import OUTSIDE
from zbench.runtime.steps.tokens import TokenParts
from zbench.runtime.training.text import END
from zbench.step.layout import StepLayout


def emulated_step(case: StepCase, weights: Mapping[str, Tensor]) -> DenseStep:
    """Returns the loss, gradients and parameters that a case comes to, as a dense step does for one without
    encodings."""
    tokens = [_tokens(one, case) for one in case.tokens]
    given = {name: _as_formulas(name, value.numpy(), back=False) for name, value in weights.items()}
    run = StepInterpreter(case.step, case.model, tokens, given)
    there, layout = run.run(), case.step.layouts[0]
    gradients = {name: np.zeros_like(value) for name, value in given.items()}
    for (name, layer, _), cells in there.items():
        weight = name.removeprefix("s")
        if name[0] == "s" and weight in given:
            own = gradients[weight]
            _assemble(layout, weight, own if layout.tensors[layout.number[weight]].layers == "none" else own[layer], {
                cell: value for (_, cell), value in cells.items()
            })  # fmt: skip
    summed = {name: torch.from_numpy(_as_formulas(name, value, back=True)) for name, value in gradients.items()}
    total = sum(len(one) for one in case.sequences.values())
    return DenseStep(float(sum(there["loss", 0, -1].values())), summed, updated(weights, summed, total, SMOOTH))


def _as_formulas(name: str, value: Floats, back: bool) -> Floats:
    """Returns a parameter with axes as formulas have them, from those in which processes have it, or back; of all
    layers where it is a layer's."""
    layers = "" if name in OUTSIDE else "L"
    ways = [layers + axes for axes in MEMORY.get(name, ("", ""))]
    if name not in MEMORY:
        return value
    return np.ascontiguousarray(np.einsum("->".join(ways if back else ways[::-1]), value))


def _tokens(parts: TokenParts, case: StepCase) -> Tokens:
    """Returns the tokens of a micro-batch by part, with their words."""
    found = Tokens([], [], [], [], [])
    targets = {number: np.append(ids[1:], END) for number, ids in case.sequences.items()}
    begin = 0
    for part in range(len(parts.sizes)):
        sequence, position = parts.rows((part,))
        found.sequence.append(sequence)
        found.position.append(position)
        for column, words in ((found.token, case.sequences), (found.target, targets)):
            pairs = zip(sequence.tolist(), position.tolist(), strict=True)
            column.append(np.array([words[one][at] for one, at in pairs], np.int64))
        if parts.chosen is not None:
            found.chosen.append(parts.chosen[begin : begin + len(sequence)])
        begin += len(sequence)
    return found


def _assemble(layout: StepLayout, weight: str, whole: Floats, cells: Mapping[tuple[int, int], Floats]) -> None:
    """Puts the cells of a parameter's gradient together, into `whole`."""
    if weight not in CUT:
        whole[...] = cells[0, 0]
        return
    slices, shards = layout.shape(layout.number[weight])
    for share in range(slices):
        where = slice_in_whole(layout, weight, whole.shape, share)
        flat = np.concatenate([cells[share, shard] for shard in range(shards)])
        whole[where] = from_memory(weight, flat, whole[where].shape)
