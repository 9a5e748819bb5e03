"""One process of those that execute steps to be checked: it runs its part and compares it with the dense reference."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.steps.cases import Executed, ProcessOptions, StepCase
from zbench.correctness.steps.dense import SMOOTH, USUAL, DenseStep, carried_step, dense_step, drawn_weights
from zbench.correctness.steps.emulated import emulated_step
from zbench.describe.mask import Mask
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.formats import base_name
from zbench.runtime.handlers.machine import StepMachine
from zbench.runtime.handlers.messages import bytes_by_queue, open_messages
from zbench.runtime.handlers.optimizer import AdamWUpdate, NotedUpdate
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.store import Store
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.processes.host import cpu_name
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.stepping.choices import by_sequence, counted_rows, gathered_choices
from zbench.runtime.stepping.comparison import difference, gradient_differences
from zbench.runtime.stepping.weighed_store import WeighedStore
from zbench.runtime.stepping.weights import OUTSIDE
from zbench.runtime.steps.seats import SeatParts
from zbench.runtime.steps.tokens import TokenParts, routes_of
from zbench.runtime.training.text import END
from zbench.step.passes.memory.last_update import begun_gradients
from zbench.step.template import Step


class StepRank:
    """A process that executes cases."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: ProcessOptions) -> None:
        self.rank, self.num_ranks, self.board = rank, num_ranks, rendezvous.board
        self.device = rendezvous.open(argument.device)
        self.sharing = rendezvous.sharing(self.device)
        self.group, self.batched = dist.new_group(), argument.batched
        self.known: tuple[Any, Mapping[str, Tensor], DenseStep] | None = None
        self.lossy = False  # whether what is known is an emulation of a step's own encodings

    @staticmethod
    def prepare() -> None:
        """Loads, before processes are forked, what each would load, or compile, in its first step."""
        one = np.zeros(1, np.int64)
        for mask in (Mask(), Mask(window=1)):
            TokenParts(one, one, one + 1, one, one + 1, one, one + 1, mask).segments([((0,), (0,))])

    def about(self) -> str:
        """Says in words what the process computes on and how its messages travel."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else cpu_name()
        shared = f", a GPU of {self.sharing} processes" if self.sharing > 1 else ""
        return f"{name}{shared}, over {dist.get_backend(self.group)}"

    def run(self, case: StepCase) -> Executed:
        """Runs a step and compares what is here afterwards with one dense process. Collective."""
        weights, wanted = self._reference(case)
        model = case.model
        kernel = choose_kernel("auto", self.device, model.head_dim, DTYPES[model.element_bytes], model.mask)
        of = SMOOTH if case.step.encodings else USUAL
        noted = NotedUpdate(AdamWUpdate(of, 1, sum(map(len, case.sequences.values()))))
        one_node = np.zeros(self.num_ranks, np.int64)
        messages = open_messages(self.group, one_node, self.device, self.batched)
        kind = WeighedStore if case.weighed else Store
        runner = StepRunner(StepMachine(model, self.device, kernel, messages, noted), self.board, kind=kind)
        words = TokenWords(case.sequences, {number: np.append(ids[1:], END) for number, ids in case.sequences.items()})
        prepared = PreparedStep.of(case.step, self.rank, runner.machine, case.tokens, [words] * len(case.tokens))
        values = weights if wanted is None else {**weights, **{f"d{name}": one for name, one in wanted.begun.items()}}
        runner.begin(prepared, lambda name, layer: values[name] if name.lstrip("d") in OUTSIDE else values[name][layer])
        runner.run(prepared)
        faults = list[float]()
        if wanted is None:
            wanted, faults = self._chosen_reference(case, prepared, weights)
        parameters, loss = self._parameters(runner, prepared, wanted)
        off = [0.0, *faults, *(one for one, _ in gradient_differences(prepared, noted.found, wanted.gradients))]
        own = runner.stores.get(self.rank)  # none of a rank that the step has no place for
        held = own.peak if isinstance(own, WeighedStore) else 0
        sent = bytes_by_queue(messages.ends)
        return Executed(loss, wanted.loss, float(np.max(off)), parameters, sent, held, counted_rows(prepared))

    def _reference(self, case: StepCase) -> tuple[Mapping[str, Tensor], DenseStep | None]:
        """Returns the weights and what they come to in one process; of the case before, if it is the same. None where
        routers choose, whose choices are to be told."""
        if SeatParts.of(case.step.layouts[0]) is not None and not case.step.encodings:  # an emulation chooses itself
            return drawn_weights(case.model, case.seed), None
        routes = routes_of(case.tokens)
        data = [[one[number].tolist() for number in sorted(one)] for one in (case.sequences, routes)]
        carried = _carried(case.step)
        same = (case.seed, replace(case.model), data, carried)
        if self.known is None or self.known[0] != same or case.step.encodings or self.lossy:
            self.lossy = bool(case.step.encodings)  # what such a step comes to is its own
            weights = drawn_weights(case.model, case.seed)
            found: list[DenseStep | None] = [None]
            if self.rank == 0:  # the others are told what it comes to
                ids = [case.sequences[number] for number in sorted(case.sequences)]
                chosen = [routes[number] for number in sorted(routes)]
                if carried:
                    found = [carried_step(case.model, weights, ids, chosen, carried)]
                elif self.lossy:
                    found = [emulated_step(case, weights)]
                else:
                    found = [dense_step(case.model, weights, ids, chosen)]
            self.board.wait("the dense reference")
            dist.broadcast_object_list(found, 0, self.group)
            self.board.resume()
            assert found[0] is not None, "process 0 has told it"
            self.known = (same, weights, found[0])
        return self.known[1], self.known[2]

    def _chosen_reference(
        self, case: StepCase, prepared: PreparedStep, weights: Mapping[str, Tensor]
    ) -> tuple[DenseStep, list[float]]:
        """Returns what a step in which routers chose comes to in one process that is told the choices, and how far they
        are from right. Collective."""
        choices = gathered_choices(prepared, case.model, self.group)
        found: list[tuple[DenseStep, list[float]] | None] = [None]
        if choices is not None:
            routes = choices.routes()
            ids, chosen = ([one[number] for number in sorted(one)] for one in (case.sequences, routes))
            dense = dense_step(case.model, weights, ids, chosen)
            faults = [one for one, _ in choices.faults(by_sequence(routes, dense.router_logits))]
            found = [(replace(dense, router_logits=()), faults)]
        self.board.wait("the dense reference")
        dist.broadcast_object_list(found, 0, self.group)
        self.board.resume()
        assert found[0] is not None, "process 0 has told it"
        return found[0]

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
                name = base_name(one.name)
                every = (wanted.left if one.name[0] == "d" else wanted.after)[name]
                want = every if one.layers == "none" else every[layer]
                worst = _larger(worst, difference(parts.slices, name, found, want, (first, second)))
        return worst, loss


def _carried(step: Step) -> dict[str, list[int]]:
    """Returns the layers of whose parameters a step begins with gradients, by parameter."""
    found: dict[str, list[int]] = {}
    for name, layer in sorted(begun_gradients(step)):
        found.setdefault(name, []).append(layer)
    return found


def _larger(one: float, other: float) -> float:
    """Returns the larger of two numbers, and what is none where there is such."""
    return float(np.maximum(one, other))
