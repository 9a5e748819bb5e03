"""Parameters by the names of a step are those of the network, and whole ones come of their cells again."""

from dataclasses import replace
from math import prod

import pytest
import torch

from tests.helpers.steps import EXPERTS, MODEL, plan_of
from zbench.describe.model import Model
from zbench.runtime.handlers.formats import WHOLE
from zbench.runtime.handlers.parameters import ParameterSlices
from zbench.runtime.stepping.weights import OUTSIDE, InitialWeights, by_step, layer_names, network_weights
from zbench.runtime.training.transformer import Transformer
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel


@pytest.mark.parametrize(
    "model", [MODEL, EXPERTS, replace(EXPERTS, shared_experts=3)], ids=["dense", "experts", "shared"]
)
def test_a_run_begins_with_the_network_s_parameters(model: Model) -> None:
    """Every element of the network is in exactly one parameter of a step."""
    network = Transformer(model, seed=5)
    named = {name: value.detach() for name, value in network.named_parameters()}
    whole, drawn = by_step(model, named), InitialWeights(model, 5)
    assert sum(value.numel() for value in whole.values()) == sum(value.numel() for value in named.values())
    for name, value in whole.items():
        for layer, one in enumerate([value] if name in OUTSIDE else value):
            assert torch.equal(drawn(name, layer), one)


def test_names_lead_to_the_network_and_back() -> None:
    network = Transformer(MODEL, seed=5)
    named = {name: value.detach() for name, value in network.named_parameters()}
    again = network_weights(MODEL, by_step(MODEL, named))
    assert again.keys() == named.keys()
    assert all(torch.equal(again[name], value) for name, value in named.items())


@pytest.mark.parametrize("zero", ["none", "3"])
@pytest.mark.parametrize(("groups", "gpus"), [(2, 1), (2, 2), (1, 4)])
def test_slices_of_experts_are_columns_of_runs_of_them(groups: int, gpus: int, zero: str) -> None:
    """Slice g * gpus + c has columns c of the experts of run g, wherever its elements lie in the whole parameter."""
    how = ExpertParallel(groups * gpus, node=gpus if min(groups, gpus) > 1 else 0, tensor_parallel=gpus)
    layout = whole_step(EXPERTS, [plan_of([5, 3], 4, 4)], 1, zero, experts=how).layouts[0]
    dims = {"c": EXPERTS.hidden, "k": 2, "e": EXPERTS.num_experts, "i": EXPERTS.ffn_hidden}
    slices = ParameterSlices(layout, dims)
    for name in ("ez", "ed"):
        shape = [dims[letter] for letter in WHOLE[name]]
        whole, columns = torch.arange(prod(shape)).view(shape), WHOLE[name].index("i")
        shards, pieces = tuple(range(len(layout.index[f"z{name}"]))), []
        for share in range(groups * gpus):
            run = whole.chunk(groups)[share // gpus].chunk(gpus, columns)[share % gpus]
            found = slices.cells(name, whole, (share,), shards)
            assert torch.equal(found, run.reshape(1, -1))
            spans = slices.spans(name, (share,), shards)
            assert [at for span in spans for at in range(*span)] == run.reshape(-1).tolist()
            pieces.append(((share,), shards, found))
        assert torch.equal(slices.whole(name, pieces), whole)


@pytest.mark.parametrize("zero", ["none", "3"])
def test_whole_parameters_come_of_their_cells(zero: str) -> None:
    """Of groups of two GPUs, in shards and not, given one cell at a time and several at once."""
    layout = whole_step(MODEL, [plan_of([5, 3], 2, 2)], 2, zero).layouts[0]
    dims = {
        "c": MODEL.hidden, "d": MODEL.head_dim, "k": 2, "h": MODEL.num_heads, "g": MODEL.num_kv_heads,
        "f": MODEL.ffn_hidden, "v": MODEL.vocab, "e": 1, "x": 1,
    }  # fmt: skip
    slices, drawn = ParameterSlices(layout, dims), InitialWeights(MODEL, 0)
    for name in (*OUTSIDE, *layer_names(MODEL)):
        value = drawn(name, 0)
        if not layout.tensors[layout.number[name]].axes:
            assert slices.whole(name, [((0,), (0,), value)]) is value
            continue
        shards = tuple(range(len(layout.index[f"z{name}"])))
        each = [((a,), (b,)) for a in (1, 0) for b in shards]
        for cells in (each, [((0, 1), shards)]):
            pieces = [(a, b, slices.cells(name, value, a, b)) for a, b in cells]
            assert torch.equal(slices.whole(name, pieces), value)
