"""One rank of a run in rounds: it trains with the other ranks of its worker, and after a round with all.

A worker's step is a step of its own processes, whose messages go through a group of theirs. What a round ends with is a
step of all. An average that is used late is left under way: its messages go beside those of the next steps, and are
waited for where the sums are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from zbench.describe.batch import Batch
from zbench.runtime.handlers.messages import open_messages
from zbench.runtime.handlers.optimizer import AdamWUpdate, RoundUpdate, Update
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.store import Held, Key, Slab, Store
from zbench.runtime.job.step_job import StepJob, StepReport
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.processes.host import measured_peak_bytes
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.stepping.rank import SteppingRank
from zbench.runtime.stepping.rank_state import RankState, averages
from zbench.runtime.stepping.step_report import Ran
from zbench.runtime.stepping.weighed_store import held_bytes
from zbench.runtime.stepping.weights import InitialWeights
from zbench.runtime.steps.device_seconds import Seconds
from zbench.runtime.steps.tokens import TokenParts
from zbench.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from zbench.runtime.transport.transport import Traffic
from zbench.step.passes.rounds.outer_step import SHARE
from zbench.step.passes.rounds.worker_steps import FragmentEnd
from zbench.step.template import Step

OwnStep = tuple[Step, tuple[TokenParts, ...], Seconds]


class RoundRank(SteppingRank):
    """A rank of a worker. The outer parameters and their momentum that it is home of are in the store of its own."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: StepJob) -> None:
        super().__init__(rank, num_ranks, rendezvous, job)
        self.worker, self.process = divmod(rank, job.worker_gpus)
        self.runner.machine = replace(self.runner.machine, lanes=None)  # transfers of a worker go straight
        machine = replace(self.runner.machine, update=RoundUpdate(job.sync))
        self.outer = StepRunner(machine, self.board, kind=self.runner.kind)
        node_of, each = job.cost.gpus.cluster.node_of, job.worker_gpus
        for first in range(0, num_ranks, each):  # every rank makes every group, as torch asks of all
            members = list(range(first, first + each))
            group = dist.new_group(members)
            if rank in members:
                messages = open_messages(group, node_of[members], self.device, pace=self.pace, members=members)
                self.runner.machine = replace(self.runner.machine, messages=messages)
        self.labels = 0  # of the worker in the step under way, those that count
        self.aside: dict[int, Held] = {}  # by fragment, the averages under way

    def begin(self, step: Step) -> None:
        """Puts parameters, those that workers begin with and the outer ones, where a round's end finds them."""
        self.board.say("drawing parameters")
        prepared = PreparedStep.of(step, self.rank, self.outer.machine, (), ())
        self.outer.begin(prepared, InitialWeights(self.model, self.job.seed))
        self.runner.stores = {self._own_place(step, place): store for place, store in self.outer.stores.items()}

    def local_step(self, batch: Batch, train: bool, noted: bool, own: OwnStep | None) -> StepReport:
        """Runs this rank's part of its worker's step. own: that step, its tokens and the seconds of its computes; None
        where the worker has none."""
        if own is None:
            self.board.wait(f"step {batch.step}, barrier before it")
            dist.barrier()
            self.board.resume()
            self.instruments.begin(None)
            self._weigh_anew()
            nothing = StepReport(None, 0.0, {}, 0.0, {}, {}, measured_peak_bytes(self.device), self.capacity_bytes, 0.0)
            measured = self.instruments.end()
            nothing = replace(nothing, nic=measured.nic, nic_series=measured.nic_series, paced=measured.paced)
            return replace(nothing, store_bytes=self._most_held())
        step, tokens, seconds = own
        self.labels = sum(batch.of_sequences(one.numbers).counted_labels for one in tokens)
        return self.step(batch, step, tokens, train, noted, seconds)

    def end_round(
        self, end: FragmentEnd, shares: Sequence[float], late: bool, seconds: Seconds, noted: bool, later: float
    ) -> StepReport:
        """Runs what a round ends with. shares: of each worker, of the labels since the fragment's last average left; ()
        where none leaves. late: some average is under way when it has ended. seconds: of its computes on a paced
        device. noted: as of `step`. later: seconds by which this rank comes after the first one."""
        where = "the end of a round"
        self.board.say(f"{where}, making instructions")
        asked = perf_counter()
        prepared = self._prepared_end(end, seconds)
        compiling = perf_counter() - asked
        store = self.outer.stores[self.rank]
        store.put_back(self.aside.pop(end.fragment, {}))
        parts = prepared.batches[0]
        if shares:
            number = parts.layout.number[SHARE]
            share = torch.tensor([shares[self.worker]], dtype=DTYPES[self.model.lse_bytes], device=self.device)
            for tensor, layer, places, *_ in items_of(prepared, end.step.begins):  # those in host memory, too
                for place in places if tensor == number else ():
                    slab = Slab.of(parts.formats[number], (self.worker,), (0,), (share,))
                    self.outer.stores[place].put(parts.key(number, layer), slab)
        messages = self.outer.machine.messages
        for one in messages.ends:
            one.traffic = Traffic()
        self.outer.where = f"{where}, "
        self.board.wait(f"{where}, barrier before it")
        dist.barrier()
        self.board.resume()
        self._synchronize()
        self._weigh_anew()
        began = self.instruments.begin(None, later)
        messages.times.begin(noted)
        self.outer.run(prepared, settles=not late)
        messages.times.end()
        self._synchronize()
        ran = Ran(began, perf_counter() - began, measured=self.instruments.end())
        self._set_aside(end.fragment, averages(prepared, end.step.ends))
        return self._report(self.outer, ran, compiling, prepared if noted else None)

    def save(self, path: str, whole: Step, late: Sequence[FragmentEnd], meta: Mapping[str, Any]) -> None:
        """Writes a checkpoint between two steps. whole: the end of a round of all parameters; late: what the averages
        under way arrive with; meta: what the checkpoint says of itself."""
        self.board.wait("a checkpoint, the averages under way")
        store, kept = self.outer.stores[self.rank], self._kept(whole, late)
        for held in self.aside.values():
            store.put_back(held)
        save_checkpoint(path, kept, meta)
        self._take_out(kept, late)
        self.board.resume()

    def load(self, path: str, whole: Step, late: Sequence[FragmentEnd]) -> None:
        """Takes over a checkpoint. whole, late: as of save."""
        self.board.wait("a checkpoint")
        kept = self._kept(whole, late, to_fill=True)  # averages under way are not here before
        load_checkpoint(path, kept)
        self.updates = kept.updates
        self._take_out(kept, late)
        self.board.resume()

    # -- inside ---------------------------------------------------------------------------------------
    def _own_place(self, step: Step, place: int) -> int:
        """Returns the place of a worker's own step that is a place of the end of a round: a GPU, or a host memory."""
        each, at_host = self.job.worker_gpus, place - step.num_gpus
        return place % each if at_host < 0 else each + at_host % (step.num_hosts * each // step.num_gpus)

    def _prepared_end(self, end: FragmentEnd, seconds: Seconds = ()) -> PreparedStep:
        return PreparedStep.of(end.step, self.rank, self.outer.machine, (), (), end.layers, seconds)

    def _set_aside(self, fragment: int, keys: Sequence[Key]) -> None:
        """Takes a fragment's average, which is under way, out of the store."""
        if keys:
            self.aside[fragment] = self.outer.stores[self.rank].set_aside(keys)

    def _aside_bytes(self) -> int:
        return sum(map(held_bytes, self.aside.values()))

    def _kept(self, whole: Step, late: Sequence[FragmentEnd], to_fill: bool = False) -> RankState:
        prepared = PreparedStep.of(whole, self.rank, self.outer.machine, (), ())
        arriving = [self._prepared_end(one) for one in late]
        return RankState(self.rank, prepared, self.outer.stores, self.updates, arriving, to_fill)

    def _take_out(self, kept: RankState, late: Sequence[FragmentEnd]) -> None:
        """Takes all averages under way out of the store, each by itself."""
        for one, prepared in zip(late, kept.late, strict=True):
            self._set_aside(one.fragment, averages(prepared, one.step.begins))

    def _update(self, num_labels: int) -> Update:
        self.updates += 1
        # Where no label of the worker counts its gradients are 0, whatever they are divided by.
        return AdamWUpdate(self.job.optimizer, self.updates, max(1, self.labels))

    def _prepared(
        self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], update: Update, seconds: Seconds = ()
    ) -> PreparedStep:
        found = super()._prepared(batch, step, tokens, update, seconds)
        for place in found.places:  # host memory, of which nothing may be there between two steps
            self.runner.stores.setdefault(place, Store(self.device))
        self.resting = self.resting or Resting.before(found)
        return found
