"""One process of those that execute steps to be checked: it runs its part and compares it with the dense reference."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.steps.cases import Executed, StepCase
from zbench.correctness.steps.dense import DenseStep, dense_step, drawn_weights
from zbench.describe.mask import Mask
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.formats import Fields
from zbench.runtime.handlers.machine import StepMachine, is_update
from zbench.runtime.handlers.messages import BatchedStepMessages, GlooMessages, StepMessages, bytes_by_queue
from zbench.runtime.handlers.optimizer import AdamWUpdate
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.job.job import AdamW
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.steps.instructions import Compute, Parts
from zbench.runtime.steps.tokens import TokenParts
from zbench.runtime.training.text import END
from zbench.runtime.transport.transport import Endpoint
from zbench.step.operations import QUEUES


@dataclass
class _Noted:
    """An optimizer that notes the gradients that it is given. found: by name, in the order of updates."""

    of: AdamWUpdate
    found: list[tuple[str, Tensor]] = field(default_factory=list)

    def __call__(self, name: str, state: Fields, gradient: Tensor) -> Fields:
        self.found.append((name, gradient))
        return self.of(name, state, gradient)


class StepRank:
    """A process. argument: how messages travel, "single" or "batched". device: of zbench.runtime.job.job.DEVICES."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any, device: str = "auto") -> None:
        self.rank, self.num_ranks, self.board = rank, num_ranks, rendezvous.board
        self.device = rendezvous.open(device)
        self.group, self.way = dist.new_group(), argument
        self.known: tuple[Any, Mapping[str, Tensor], DenseStep] | None = None

    @staticmethod
    def prepare() -> None:
        """Loads, before processes are forked, what each would load in its first step."""
        torch.empty_like(torch.empty(1, device="meta"), device="cpu")  # torch's tracing, as the dense network does
        one = np.zeros(1, np.int64)
        TokenParts(one, one, one + 1, one, one + 1, one, one + 1, Mask()).segments([((0,), (0,))])

    def run(self, case: StepCase) -> Executed:
        """Runs a step and compares what is here afterwards with one dense process. Collective."""
        weights, wanted = self._reference(case)
        model, ends = case.model, self._ends()
        kernel = choose_kernel("auto", self.device, model.head_dim, DTYPES[model.element_bytes], model.mask)
        noted = _Noted(AdamWUpdate(AdamW(), 1, sum(map(len, case.sequences.values()))))
        runner = StepRunner(StepMachine(model, self.device, kernel, self._messages(ends), noted), self.board)
        words = TokenWords(case.sequences, {number: np.append(ids[1:], END) for number, ids in case.sequences.items()})
        prepared = PreparedStep.of(case.step, self.rank, runner.machine, case.tokens, [words] * len(case.tokens))
        runner.begin(prepared, weights)
        runner.run(prepared)
        parameters, loss = self._parameters(runner, prepared, wanted)
        return Executed(
            loss, wanted.loss, self._gradients(noted, runner, prepared, wanted), parameters, bytes_by_queue(ends)
        )

    def _reference(self, case: StepCase) -> tuple[Mapping[str, Tensor], DenseStep]:
        """Returns the weights and what they come to in one process; of the case before, if it is the same."""
        routes = case.routes()
        data = [[one[number].tolist() for number in sorted(one)] for one in (case.sequences, routes)]
        same = (case.seed, replace(case.model), data)
        if self.known is None or self.known[0] != same:
            weights = drawn_weights(case.model, case.seed)
            found: list[DenseStep | None] = [None]
            if self.rank == 0:  # the others are told what it comes to
                ids = [case.sequences[number] for number in sorted(case.sequences)]
                chosen = [routes[number] for number in sorted(routes)]
                found = [dense_step(case.model, weights, ids, chosen)]
            self.board.wait("the dense reference")
            dist.broadcast_object_list(found, 0, self.group)
            self.board.resume()
            assert found[0] is not None, "process 0 has told it"
            self.known = (same, weights, found[0])
        return self.known[1], self.known[2]

    def _ends(self) -> list[Endpoint]:
        nodes = np.zeros(self.num_ranks, np.int64)
        return [Endpoint.on(self.group, nodes, self.device) for _ in QUEUES]

    def _messages(self, ends: list[Endpoint]) -> StepMessages:
        if self.way == "batched" or dist.get_backend(self.group) == "nccl":
            return BatchedStepMessages(ends, self.device)
        return GlooMessages(ends, self.device)

    def _parameters(self, runner: StepRunner, prepared: PreparedStep, wanted: DenseStep) -> tuple[float, float | None]:
        """Returns the largest difference of parameters after the update, and the loss where it is here."""
        parts, worst, loss = prepared.batches[0], 0.0, None
        for tensor, layer, places, first, second in items_of(prepared, prepared.step.ends):
            one = parts.layout.tensors[tensor]
            for place in places:
                store, of = runner.stores[place], parts.formats[tensor]
                found = store.read(parts.key(tensor, layer), of, first, second)[0]
                if one.name == "loss":
                    loss = float(found)
                    continue
                name = one.name.removeprefix("s")
                want = wanted.after[name][layer] if one.layers == "layer" else wanted.after[name]
                worst = _larger(worst, self._off(prepared, name, found, want, (first, second)))
        return worst, loss

    def _gradients(self, noted: _Noted, runner: StepRunner, prepared: PreparedStep, wanted: DenseStep) -> float:
        """Returns the largest difference of the gradients that updates were given."""
        updates = [
            (prepared.batches[program.layout], one, layer)
            for program, one, layer in prepared.schedule()
            if isinstance(one, Compute) and is_update(prepared.batches[program.layout], one)
        ]
        worst = 0.0
        for (parts, one, layer), (name, gradient) in zip(updates, noted.found, strict=True):
            cells = one.writes[0]
            of_layer = parts.layout.tensors[cells.tensor].layers == "layer"
            want = wanted.gradients[name][layer + cells.layer] if of_layer else wanted.gradients[name]
            worst = _larger(worst, self._off(prepared, name, gradient, want, (cells.first, cells.second)))
        return worst

    def _off(self, prepared: PreparedStep, name: str, found: Tensor, want: Tensor, cells: tuple[Parts, Parts]) -> float:
        """Returns the largest difference over the largest element of the whole."""
        part = prepared.batches[0].slices.cells(name, want.contiguous(), *cells)
        top = float(want.abs().max())
        return float((found.cpu() - part).abs().max()) / (top or 1.0)


def _larger(one: float, other: float) -> float:
    """Returns the larger of two numbers, and what is none where there is such."""
    return float(np.maximum(one, other))
