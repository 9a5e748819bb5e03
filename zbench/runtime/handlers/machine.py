"""The parts of a process that runs steps: the formats, parameters and contexts that handlers need, and its messages."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from zbench.describe.links import Lanes
from zbench.describe.model import Model
from zbench.runtime.handlers.context import Contexts, TokenWords
from zbench.runtime.handlers.counted import CountedRows
from zbench.runtime.handlers.formats import Format, Formats
from zbench.runtime.handlers.functions import FUNCTIONS
from zbench.runtime.handlers.messages import StepMessages
from zbench.runtime.handlers.optimizer import Update
from zbench.runtime.handlers.parameters import ParameterSlices
from zbench.runtime.handlers.store import Key
from zbench.runtime.kernels.kernels import Kernel
from zbench.runtime.steps.instructions import Compute, Parts
from zbench.runtime.steps.recurring import KeptPrograms
from zbench.runtime.steps.routed import RoutedTokens
from zbench.runtime.steps.seats import SeatParts
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.expert_cut import ExpertCut
from zbench.step.formula import Formula
from zbench.step.layout import StepLayout
from zbench.step.tensor import NONE

# The functions of updates, which the machine's optimizer does: of a step, and of what a round of steps ends with.
UPDATES = ("adam", "outer", "take")


@dataclass(frozen=True)
class StepMachine:
    """The parts of a process that runs steps. choices: of routers in the step that runs, by micro-batch, layer and
    parts of a: logits of their tokens, and the token in each seat. programs: instructions of templates, kept from step
    to step. lanes: of nodes, over which processes spread transfers as the step says; None: these go straight."""

    model: Model
    device: torch.device
    kernel: Kernel
    messages: StepMessages
    update: Update
    choices: dict[tuple[int, int, Parts], tuple[Tensor, Tensor]] = field(default_factory=dict)
    programs: KeptPrograms = field(default_factory=KeptPrograms)
    lanes: Lanes | None = None


@dataclass(frozen=True)
class BatchParts:
    """A layout for a process: what handlers need to know of a micro-batch. number: of the layout. layers: the numbers
    that the step's layers have in stores, and what is after the last, where it is of some layers of the model; ():
    those that they have in it."""

    number: int
    layout: StepLayout
    machine: StepMachine
    tokens: TokenParts
    words: TokenWords
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = self.layout.index["t"].sizes.tolist() if "t" in self.layout.index else []
        if self.tokens.sizes.tolist() != sizes:
            raise ValueError(
                f"the tokens of micro-batch {self.number} are in parts of {self.tokens.sizes.tolist()}; the step has "
                f"parts of {sizes}"
            )
        self._check_routed()
        known = {*FUNCTIONS, *UPDATES, ""}
        for formula in self.layout.formulas:
            for term in formula.terms:
                if term.function not in known:
                    raise ValueError(
                        f"formula {formula} has function {term.function}; those that run are {', '.join(FUNCTIONS)}"
                    )

    def _check_routed(self) -> None:
        """Raises ValueError where tokens have no experts, or other ones than the step counts."""
        for one in self.layout.tensors:
            if one.amounts is None or self.seats is not None:
                continue
            if self.routed is None:
                told = f"the tokens of micro-batch {self.number} have no experts"
                raise ValueError(f"{told}; tensor {one.name} takes some")
            found = self.routed.amounts(one.axes[1]).reshape(-1)
            if not np.array_equal(found, one.amounts):
                told = f"the tokens of micro-batch {self.number} go to {one.axes[1]} as {found.tolist()}"
                raise ValueError(f"{told}; tensor {one.name} of the step has {one.amounts.tolist()}")

    @cached_property
    def routed(self) -> RoutedTokens | None:
        """The experts of the tokens, None where they have none."""
        if self.tokens.chosen is None:
            return None
        cut = ExpertCut.of(self.layout.index, self.machine.model.num_experts)
        nodes = next((one.part for one in self.layout.maps if (one.coarse, one.fine) == ("n", "k")), None)
        aligned = any(term.function == "align" for one in self.layout.formulas for term in one.terms)
        return RoutedTokens(self.tokens.chosen, self.tokens.sizes, cut, self.tokens.padding, nodes, aligned)

    @cached_property
    def seats(self) -> SeatParts | None:
        """The seats of experts whose tokens a router chooses, None where none does."""
        return SeatParts.of(self.layout)

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """The formats of the tensors, with the most rows that there may be where these are counted."""
        return Formats(self.layout, self.machine.model).all

    @cached_property
    def counted(self) -> CountedRows | None:
        """The rows that are counted while the step runs, None where none are."""
        seats = self.seats
        return None if seats is None or not seats.counted else CountedRows(self.layout, seats, self.formats)

    @cached_property
    def _is_counted(self) -> tuple[bool, ...]:
        return tuple(bool(one.counted_by) for one in self.layout.tensors)

    def format(self, tensor: int, layer: int) -> Format:
        """Returns the format of a tensor. layer: of the tensor itself, offsets counted."""
        if self._is_counted[tensor]:
            assert self.counted is not None, "a tensor is counted, and so are seats"
            return self.counted.format(tensor, layer)
        return self.formats[tensor]

    @cached_property
    def seconds_for(self) -> tuple[str, ...]:
        """The part of a step that every formula's seconds are (zbench.interfaces.result.SECONDS_FOR)."""
        return tuple(_part_of(formula) for formula in self.layout.formulas)

    @cached_property
    def slices(self) -> ParameterSlices:
        """The parameters' slices and shards."""
        model = self.machine.model
        dims = {
            "c": model.hidden, "d": model.head_dim, "k": 2, "h": model.num_heads, "g": model.num_kv_heads,
            "f": model.common_ffn, "i": model.ffn_hidden, "v": model.vocab, "e": model.num_experts,
            "x": model.num_experts, "y": model.router_dim, "o": 1, "w": model.dense_ffn_hidden,
        }  # fmt: skip
        return ParameterSlices(self.layout, dims)

    def key(self, tensor: int, layer: int) -> Key:
        """Returns the key of a tensor in stores. layer: of the tensor itself, offsets counted."""
        name, of_layer, of_batch = self._named[tensor]
        if not of_layer:
            return name, 0, of_batch
        return name, self.layers[layer] if self.layers else layer, of_batch

    @cached_property
    def _named(self) -> tuple[tuple[str, bool, int], ...]:
        """Of every tensor its name, whether each layer has one, and the micro-batch, as of keys in stores."""
        of_batch = (self.number if self.layout.of_batch(at) else -1 for at in range(len(self.layout.tensors)))
        return tuple((one.name, one.layers != NONE, of) for one, of in zip(self.layout.tensors, of_batch, strict=True))

    @cached_property
    def contexts(self) -> Contexts:
        """The contexts of computes, each made when it is first asked for."""
        of, own = self.machine, (self.routed, self.seats)
        return Contexts(self.layout, of.model, self.tokens, self.words, of.kernel, of.device, *own)

    @cached_property
    def _are_updates(self) -> tuple[bool, ...]:
        return tuple(one.terms[0].function in UPDATES for one in self.layout.formulas)

    def is_update(self, one: Compute) -> bool:
        """Returns whether a compute is an update by the optimizer."""
        return self._are_updates[one.formula]

    def slots(self, one: Compute) -> dict[str, Parts]:
        """Returns the parts of each slot of a compute."""
        return dict(zip(self.layout.formulas[one.formula].slots, one.slots, strict=True))


def _part_of(formula: Formula) -> str:
    function = formula.terms[0].function
    if formula.results[0].tensor.endswith("~"):  # made again (zbench.step.passes.recompute)
        return "recomputation"
    if function in (*UPDATES, "contribute"):
        return "optimizer"
    return "attention" if function in ("attend", "attend_d") else "linear"
