"""One rank of a run that trains by whole steps: a GPU of the cluster, which is a process. Collective: every rank runs
its part of the same step.

A step: its instructions are made, parameters stay where the one before left them, all ranks meet at a barrier, and
the step's seconds are counted from there to its end, updates included.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zbench.console.heap import keep_freed_memory
from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.describe.mask import Mask
from zbench.interfaces.result import HANDED_OVER, SWITCH
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.machine import StepMachine
from zbench.runtime.handlers.messages import open_messages
from zbench.runtime.handlers.moving import HANDED, QUEUE, Mover, changed
from zbench.runtime.handlers.optimizer import AcrossSteps, AdamWUpdate, NotedUpdate, NoUpdate, Update
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.handlers.runner import StepRunner, Whole
from zbench.runtime.handlers.store import Store
from zbench.runtime.job.job import RankSetup, relays_shares
from zbench.runtime.job.step_job import StepJob, StepReport
from zbench.runtime.kernels.elementwise import Elementwise
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.processes.host import cpu_name, memory_bytes
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.stepping.choices import by_sequence, counted_rows, counted_seats, gathered_choices
from zbench.runtime.stepping.comparison import (
    Piece,
    gradient_differences,
    left_differences,
    lost_together,
    state_pieces,
    whole_weights,
)
from zbench.runtime.stepping.dense import DenseGradients, dense_gradients
from zbench.runtime.stepping.instruments import Instruments, pace_of
from zbench.runtime.stepping.rank_state import RankState, without_gradients
from zbench.runtime.stepping.step_report import Ran, step_report
from zbench.runtime.stepping.weighed_store import WeighedStore
from zbench.runtime.stepping.weights import InitialWeights
from zbench.runtime.stepping.words import BatchTargets, BatchWords, counted_losses
from zbench.runtime.steps.device_seconds import Seconds
from zbench.runtime.steps.tokens import TokenParts, routes_of
from zbench.runtime.training.checkpoint import save_checkpoint
from zbench.runtime.training.text import is_real, sequences
from zbench.runtime.transport.transport import Traffic
from zbench.step.passes.memory.last_update import begun_gradients
from zbench.step.template import Step


class SteppingRank:
    """A rank's parameters, messages and runner; made and called by a fleet (zbench.runtime.processes.fleet)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: StepJob) -> None:
        self.rank, self.job, self.board, self.rendezvous = rank, job, rendezvous.board, rendezvous
        self.process = rank  # among those that run its steps
        self.pace = pace_of(job)
        self.board.say("opening torch.distributed")
        self.device = rendezvous.open(job.device)
        self.sharing = rendezvous.sharing(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        gpus = job.cost.gpus
        self.model = gpus.model
        self.capacity_bytes = memory_bytes(self.device, gpus.cluster.device.memory_bytes) // self.sharing
        dtype = DTYPES[self.model.element_bytes]
        kernel = choose_kernel(job.kernel, self.device, self.model.head_dim, dtype, self.model.mask)
        self.group = dist.new_group()
        messages = open_messages(self.group, self._node_of(num_ranks), self.device, pace=self.pace)
        relays = relays_shares(dist.get_backend(self.group), messages.ends[0].through_host)
        lanes = gpus.cluster.lanes if relays else None
        machine = StepMachine(self.model, self.device, kernel, messages, NoUpdate(), lanes=lanes)
        weighed = self.device.type == "cpu" and job.is_weighed  # a GPU's allocator tells
        self.runner = StepRunner(machine, self.board, kind=WeighedStore if weighed else Store)
        self.updates = 0
        self.resting: Resting | None = None  # what the step before has left; None before the first one
        self.left: Update | None = None  # of the step before, of what it has left gradients of in host memory

    @staticmethod
    def prepare() -> None:
        """Loads, before ranks are forked, what each would load in its first step."""
        one = np.zeros(1, np.int64)
        TokenParts(one, one, one + 1, one, one + 1, one, one + 1, Mask()).segments([((0,), (0,))])

    def about(self) -> RankSetup:
        """Returns what the rank found out about how it runs."""
        cuda = self.device.type == "cuda"
        machine = self.runner.machine
        return RankSetup(
            device=torch.cuda.get_device_name(self.device) if cuda else cpu_name(),
            kernel=machine.kernel.name,
            backend=dist.get_backend(),
            torch=str(torch.__version__),  # to unpickle its own type, the driver would import torch
            tokens="text" if is_real(self.job.workload) else "made",
            elementwise=Elementwise().name,
            memory_bytes=self.capacity_bytes,
            packages={},
            sharing=self.sharing,
            staged=machine.messages.ends[0].through_host,
        )

    def step(
        self,
        batch: Batch,
        step: Step,
        tokens: tuple[TokenParts, ...],
        train: bool,
        noted: bool = False,
        seconds: Seconds = (),
    ) -> StepReport:
        """Runs a step; without `train` everything but the updates, as in a warm-up of a step that begins without
        gradients: what a step has left of these stays. tokens: of every micro-batch. noted: the report has notes of
        what this rank did. seconds: that computes take a paced device."""
        where = f"step {batch.step}"
        counted, begun = self._counted(batch), begun_gradients(step)
        own = self._update(counted) if train else NoUpdate()
        noting = NotedUpdate(own) if train and self.job.exact else None
        update: Update = noting or own
        if begun:
            assert self.left is not None, "the step before has left these gradients"
            update = AcrossSteps(update, self.left, begun)
        self.board.say(f"{where}, making instructions")
        asked = perf_counter()
        prepared = self._prepared(batch, step, tokens, update, seconds)
        compiling = perf_counter() - asked
        weights = self._weights(where) if noting else {}
        self.runner.where = f"{where}, "
        self.runner.lost = {} if noting and step.encodings else None
        aside = {} if train else without_gradients(self.runner.stores)
        ran = self._run(prepared, where, batch.step if train else None, noted)
        losses = [float(one) / counted for one in self.runner.take(prepared, "loss")]
        worst, swapped = None, 0
        if train:
            self.left = own
        else:
            without_gradients(self.runner.stores)
            for place, held in aside.items():
                self.runner.stores[place].put_back(held)
        if noting:
            wanted, off, swapped = self._wanted(batch, prepared, weights, where)
            off += [(abs(loss * counted / wanted.loss - 1), "the loss") for loss in losses]
            lost = lost_together(self.runner.lost, self.group)
            off += gradient_differences(prepared, noting.found, wanted.gradients, lost, begun)
            off += left_differences(prepared, self.runner.stores, wanted.gradients, lost)
            worst = max(off, key=lambda one: (one[0] != one[0], one[0]), default=(0.0, "nothing"))  # NaN first
        found = self._report(self.runner, ran, compiling, prepared if noted else None)
        found = replace(found, loss=losses[0] if losses else None, worst=worst)
        return replace(found, seats=counted_seats(prepared), rows=counted_rows(prepared), swapped=swapped)

    def last_update(self, step: Step) -> StepReport:
        """Runs the updates that the last step has left (zbench.step.passes.memory.last_update)."""
        assert self.left is not None, "a step has left gradients"
        where = self.runner.where = "the last update"
        self.board.say(f"{where}, making instructions")
        asked = perf_counter()
        machine = replace(self.runner.machine, update=self.left, choices={})
        prepared = PreparedStep.of(step, self.process, machine, (), ())
        compiling = perf_counter() - asked
        return self._report(self.runner, self._run(prepared, where, None), compiling)

    def keep(self, path: str, rests: Step, meta: Mapping[str, Any]) -> None:
        """Writes a checkpoint between two steps. rests: what rests then (zbench.step.passes.memory.resting_step); meta:
        what the checkpoint says of itself."""
        self.board.wait("a checkpoint")
        prepared = PreparedStep.of(rests, self.process, self.runner.machine, (), ())
        save_checkpoint(path, RankState(self.rank, prepared, self.runner.stores, self.updates), meta)
        self.board.resume()

    def take_over(self, path: str, rests: Step, num_labels: int) -> None:
        """Takes over a checkpoint before the first step. rests: as of keep; num_labels: of the last step before it,
        those that count."""
        self.board.wait("a checkpoint")
        prepared = PreparedStep.of(rests, self.process, self.runner.machine, (), ())
        kept = RankState.loaded(path, self.rank, prepared, self.device, self.runner.kind)
        self.runner.stores, self.updates, self.resting = dict(kept.stores), kept.updates, Resting.before(prepared)
        self.left = AdamWUpdate(self.job.optimizer, self.updates, num_labels)
        self.board.resume()

    def arrange(self, rests: Step) -> None:
        """Moves all that rests between two steps where another one begins with it. rests: what rests then, as of
        keep."""
        prepared = PreparedStep.of(rests, self.process, self.runner.machine, (), ())
        self._run(prepared, "before the first step", None)

    def close(self) -> None:
        """Ends the group of ranks."""
        self.rendezvous.close()

    # -- inside ---------------------------------------------------------------------------------------
    @cached_property
    def instruments(self) -> Instruments:
        """The instruments of this rank, made when all its groups are open."""
        return Instruments.of(self.job, self.rank, self.rendezvous.place, self.pace)

    def _node_of(self, num_ranks: int) -> Ints:
        """Returns the node of every rank, int64 [num_ranks]."""
        return self.job.cost.gpus.cluster.node_of

    def _meet(self) -> None:
        """Waits for all ranks that run a step together."""
        dist.barrier()

    def _update(self, num_labels: int) -> Update:
        self.updates += 1
        return AdamWUpdate(self.job.optimizer, self.updates, num_labels)

    def _initial(self) -> Whole:
        """Returns the parameters that training begins with."""
        return InitialWeights(self.model, self.job.seed)

    def _counted(self, batch: Batch) -> int:
        """Returns of how many labels the loss is the mean."""
        return batch.counted_labels

    def _words(self, batch: Batch) -> TokenWords:
        """Returns the words of a batch's tokens."""
        words = BatchWords(self.job, batch)
        return TokenWords(words, BatchTargets(words), counted_losses(batch))

    def _prepared(
        self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], update: Update, seconds: Seconds = ()
    ) -> PreparedStep:
        """Returns this rank's instructions; the first step's parameters are put where it begins with them."""
        given = self._words(batch)
        machine = replace(self.runner.machine, update=update, choices={})
        words = [given] * len(tokens)
        prepared = PreparedStep.of(step, self.process, machine, tokens, words, seconds=seconds)
        prepared.make_contexts()
        if not self.runner.stores:
            self.board.say("drawing parameters")
            self.runner.begin(prepared, self._initial())
            self.resting = Resting.before(prepared)
        return prepared

    def _run(self, prepared: PreparedStep, where: str, number: int | None, noted: bool = False) -> Ran:
        """Runs a step from a barrier on; where its strategy is another one than that of the step before, parameters and
        optimizer state move first. number: of the step, None where it is not recorded. noted: as of `step`."""
        assert self.resting is not None, "parameters are drawn before the first step"
        messages, after = self.runner.machine.messages, Resting.before(prepared)
        moving = changed(self.resting, after)
        for end in messages.ends:
            end.traffic = Traffic()
        self.board.wait(f"{where}, barrier before it")
        self._meet()
        self._synchronize()
        began = self.instruments.begin(number)
        messages.times.begin(noted)
        if moving:
            self.board.say(f"{where}, moving parameters and optimizer state")
            with self.runner.places_of(prepared) as stores:
                mover = Mover(self.process, stores, messages, self.board, self.job.cost.gpus.cluster.gpus_per_node)
                mover.move(moving, self.resting, after)
            self._synchronize()
        switching = perf_counter() - began if moving else 0.0
        moved = {name: messages.ends[queue].traffic for name, queue in ((SWITCH, QUEUE), (HANDED_OVER, HANDED))}
        for queue in (QUEUE, HANDED):
            messages.ends[queue].traffic = Traffic()
        self._weigh_anew()
        self.runner.run(prepared)
        messages.times.end()
        self._synchronize()
        self.resting = Resting.after(prepared)
        return Ran(began, perf_counter() - began, switching, moved, self.instruments.end())

    def _report(self, runner: StepRunner, ran: Ran, compiling: float, noted: PreparedStep | None = None) -> StepReport:
        """Returns what a runner's messages and a rank's memory tell of what it has run. noted: as of step_report."""
        found = step_report(runner.machine.messages, self.device, self.capacity_bytes, ran, compiling, noted)
        return replace(found, store_bytes=self._most_held())

    def _weigh_anew(self) -> None:
        """Begins anew to look for the fullest moment of the store of this rank's GPU, where it is weighed."""
        if (store := self._weighed()) is not None:
            store.begin(self._aside_bytes())

    def _most_held(self) -> int | None:
        """Returns the most bytes there since `_weigh_anew`, None where they are not weighed."""
        store = self._weighed()
        return None if store is None else store.peak

    def _weighed(self) -> WeighedStore | None:
        found = self.runner.stores.get(self.process)
        return found if isinstance(found, WeighedStore) else None

    def _aside_bytes(self) -> int:
        """Returns the bytes on this rank's GPU of what is set aside while a step runs."""
        return 0

    def _synchronize(self) -> None:
        """Returns once the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _weights(self, where: str) -> dict[str, torch.Tensor]:
        """Returns all parameters as they are before the step, on rank 0; nothing on others. Collective."""
        self.board.wait(f"{where}, gathering parameters")
        assert self.resting is not None, "parameters are drawn before the first step"
        mine = state_pieces(self.resting, self.runner.stores, self.left)
        every: list[list[Piece]] | None = [[]] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(mine, every, 0, self.group)
        self.board.resume()
        if every is None:
            return {}
        return whole_weights(self.resting.parts, [piece for one in every for piece in one])

    def _wanted(
        self, batch: Batch, prepared: PreparedStep, weights: dict[str, torch.Tensor], where: str
    ) -> tuple[DenseGradients, list[tuple[float, str]], int]:
        """Returns what the step has to come to, which rank 0 computes of all parameters as they were before it and of
        what routers chose, and, there alone, how far these choices are from right and how many are of equals.
        Collective."""
        self.board.wait(f"{where}, gathering choices")
        choices = gathered_choices(prepared, self.model, self.group)
        self.board.resume()
        found: list[DenseGradients | None] = [None]
        faults, swapped = list[tuple[float, str]](), 0
        if self.rank == 0:
            numbers = np.arange(len(batch.lengths))
            text = sequences(self.job.workload, batch, numbers, self.model.vocab)
            routes = routes_of([one.tokens for one in prepared.batches]) if choices is None else choices.routes()
            chosen = [routes[number] for number in sorted(routes)]
            tell, counts = self.board.say, batch.counts_of_sequences
            dense = dense_gradients(self.model, weights, text, chosen, lambda place: tell(f"{where}, {place}"), counts)
            if choices is not None:
                logits = by_sequence(routes, dense.router_logits)
                faults, swapped = list(choices.faults(logits)), choices.swapped(logits)
            found = [replace(dense, router_logits=())]
        self.board.wait(f"{where}, the dense reference")
        dist.broadcast_object_list(found, 0, self.group)
        self.board.resume()
        assert found[0] is not None, "rank 0 has told it"
        return found[0], faults, swapped
