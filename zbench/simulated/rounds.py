"""Steps of workers that train apart, played: each worker's on its own GPUs' clock, and what a round ends with on that
of the cluster.

Workers wait for each other at the end of a round alone. So the seconds of a round are those of the worker whose steps
took longest together, not the sum of the slowest worker's in each step; a step of a record has what it added to that.
Nothing of a worker's step goes to another one, so the average that is used a round late has the links between workers
to itself: what of its seconds is exposed is what the steps until it is used are shorter. An average that is used some
steps later is one of some layers, and workers wait for each other where it is used.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import worker_cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.sync import NODE
from zbench.interfaces.result import StepResult, kept_rows
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import expert_rows, played_rows
from zbench.simulated.open_choices import told_of_workers
from zbench.simulated.traced import DrawnStep, write_round
from zbench.simulator.steps.least.bound import step_bound_seconds
from zbench.simulator.steps.play import PlayedStep, play_layers, play_step
from zbench.step.passes.memory.host_memory import checked_host_bytes
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.rounds.order import RoundEnd, round_ends, under_way
from zbench.step.passes.rounds.outer_step import LATER, NOW, PHASES, REDUCED, SENT, TAKEN
from zbench.step.passes.rounds.worker_steps import WorkerStep, WorkerSteps
from zbench.step.template import Step
from zbench.trace.part import StepPart

Told = Callable[[Batch, tuple[Plan, ...], PlayedStep, Cost], StepResult]  # what a record has of one worker's step


@dataclass
class PlayedRounds:
    """The rounds of a run on the cluster of `cost`. told: makes a record's result of one worker's step.

    elapsed: of each worker, the seconds since workers last waited for each other. added: of these, what its steps were
    told to take. late: of each fragment whose average is under way, the seconds that it still takes.
    """

    steps: WorkerSteps
    cost: Cost
    told: Told
    elapsed: Floats = field(init=False)
    added: float = 0.0
    late: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.elapsed = np.zeros(self.steps.workers)

    @cached_property
    def own_cost(self) -> Cost:
        """The cost model of one worker's GPUs."""
        return worker_cost(self.cost, self.steps.sync)

    @cached_property
    def _played(self) -> dict[int, PlayedStep]:
        return {}

    def end(self, step: Step) -> PlayedStep:
        """Returns the end of a round, played; fragments of as many layers share one."""
        if id(step) not in self._played:
            self._played[id(step)] = play_step(step, (), self.cost.gpus)
        return self._played[id(step)]

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Plays a step of every worker, and what follows it by its number."""
        sync = self.steps.sync
        if batch.step == 0 or any(TAKEN in PHASES[one.kind] for one in round_ends(sync, batch.step - 1)):
            self.elapsed, self.added = np.zeros(self.steps.workers), 0.0
        every = self.steps.of(batch, plans)
        found = [None if one is None else self._own(batch, one) for one in every]
        self.elapsed += [0.0 if one is None else one.seconds for one in found]
        seconds = float(self.elapsed.max()) - self.added
        self.added += seconds
        rows = expert_rows(self.steps.own, batch, [one.plans for one in every if one is not None])
        bound = step_bound_seconds(batch, self.cost, kept_rows(rows))
        result = replace(self._together(found, batch.step), seconds=seconds, bound_seconds=bound, expert_rows=rows)
        result = told_of_workers(result, batch, every)
        self._pass(seconds)
        late = set(under_way(sync, batch.step))
        for one in round_ends(sync, batch.step):
            peak = np.maximum(result.peak_bytes, self._peak_of_end(one, late))
            result = self._ended(replace(result, peak_bytes=peak.tolist()), one)
            late = late | {one.fragment} if one.is_late else late - {one.fragment}
        return replace(result, out_of_memory=max(result.peak_bytes) > result.capacity_bytes)

    def write_trace(self, path: str, batch: Batch, plans: tuple[Plan, ...]) -> None:
        """Writes the trace of a step: every worker's own, which begin together as in the first step of a run, and what
        follows it by its number, one after another, from when the slowest worker has ended.

        Raises:
            ValueError: as zbench.simulated.traced.write_whole_step.
        """
        whole, own = self.cost.gpus, self.own_cost.gpus
        workers, ends = [], list[DrawnStep]()
        for worker, one in enumerate(self.steps.of(batch, plans)):
            if one is not None:
                first, staged = worker * self.steps.gpus[1], len(one.step.stages) > 1
                where = StepPart(own.cluster, whole.cluster, first, stages=staged)
                step = played_rows(one.chosen.steps, one.step, batch, one.plans)
                workers.append(DrawnStep(*play_layers(step, plans_of_layouts(one.plans), own), where))
        begin = max(one.end for one in workers)
        for end in round_ends(self.steps.sync, batch.step):
            of = self.steps.end(end.fragment, end.kind)
            where = StepPart(whole.cluster, whole.cluster, begin=begin, layers=of.layers)
            ends.append(DrawnStep(*play_layers(of.step, (), whole), where))
            begin = ends[-1].end
        write_round(path, workers, ends, whole.cluster)

    def _pass(self, seconds: float) -> None:
        """Lets averages that are under way go on."""
        self.late = {fragment: max(0.0, left - seconds) for fragment, left in self.late.items()}

    def _own(self, batch: Batch, one: WorkerStep) -> StepResult:
        own = batch.of_sequences(np.concatenate([plan.sequences for plan in one.plans]))
        cost, step = self.own_cost, played_rows(one.chosen.steps, one.step, batch, one.plans)
        return self.told(own, one.plans, play_step(step, plans_of_layouts(one.plans), cost.gpus), cost)

    def _together(self, found: Sequence[StepResult | None], step: int) -> StepResult:
        """Returns the result of all workers' steps, its seconds 0, bound and rows of experts those of one. Those
        without tokens are idle. step: its number."""
        ranks, some = self.steps.gpus[1], next(one for one in found if one is not None)
        nothing = [0.0] * ranks

        def joined(values: Callable[[StepResult], Any], idle: Any = nothing) -> list[Any]:
            return [value for one in found for value in (idle if one is None else values(one))]

        names = {name for one in found if one is not None for name in one.seconds_for}
        queues = {name for one in found if one is not None for name in one.nic_tx_for}
        if self.steps.sync.worker == NODE:
            none = [0] * len(some.nic_tx_bytes)
            nic_tx, nic_rx = joined(lambda one: one.nic_tx_bytes, none), joined(lambda one: one.nic_rx_bytes, none)
            nic_tx_for = {name: joined(lambda one, name=name: one.nic_tx_for.get(name, none), none) for name in queues}  # type: ignore[misc]
        else:
            nic_tx, nic_rx, nic_tx_for = *([0] * self.cost.gpus.cluster.num_nics for _ in range(2)), {}
        peak = joined(lambda one: one.peak_bytes, [0] * ranks)
        resting = (self.outer + self._late(self._moment(step)))[: self.steps.gpus[0]]
        peak = [own + more for own, more in zip(peak, resting.tolist(), strict=True)]
        return replace(
            some,
            seconds=0.0,
            attention_seconds=joined(lambda one: one.attention_seconds),
            linear_seconds=joined(lambda one: one.linear_seconds),
            communication_seconds=joined(lambda one: one.communication_seconds),
            exposed_seconds=joined(lambda one: one.exposed_seconds),
            exposed_nic_seconds=joined(lambda one: one.exposed_nic_seconds),
            nic_tx_bytes=nic_tx,
            nic_rx_bytes=nic_rx,
            nvlink_bytes=sum(one.nvlink_bytes for one in found if one is not None),
            peak_bytes=peak,
            host_bytes=self._host_bytes(joined(lambda one: one.host_bytes, [0] * len(some.host_bytes))),
            out_of_memory=max(peak) > some.capacity_bytes,
            phases={name: max(one.phases[name] for one in found if one is not None) for name in some.phases},
            seconds_for={
                name: joined(lambda one, name=name: one.seconds_for.get(name, nothing))  # type: ignore[misc]
                for name in sorted(names)
            },
            nic_tx_for={name: sizes for name, sizes in nic_tx_for.items() if any(sizes)},
        )

    def _host_bytes(self, own: Sequence[int]) -> list[int]:
        """Returns the most bytes in every node's host memory: beside workers' steps outer parameters and momentum rest
        there, and when a round ends more may be there than in any step. own: of every worker's step.

        Raises:
            ValueError: they are more than a node has.
        """
        if not own:
            return []
        cluster, found = self.cost.gpus.cluster, np.array(own, np.int64)
        if self.steps.model.rests_on_hosts:
            # With stages each GPU has a part of its node's, all of which are there together, each at its fullest.
            of_hosts = self.resting, self.end(self.steps.whole).memory.peak
            rests, ends = (one[self.steps.gpus[0] :].reshape(len(own), -1).sum(axis=1) for one in of_hosts)
            found = np.maximum(found + rests, ends)
        return checked_host_bytes(found.reshape(cluster.num_nodes, -1).sum(axis=1), self.steps.model, cluster)

    @cached_property
    def resting(self) -> Ints:
        """The bytes of every GPU and every worker's host memory beside the worker's step, where they are most: outer
        parameters and their momentum, and averages under way, int64 [places]."""
        moments = {tuple(self._moment(step)) for step in range(self.steps.sync.steps)}
        return self.outer + max((self._late(one) for one in sorted(moments)), key=lambda late: int(late.max()))

    @cached_property
    def outer(self) -> Ints:
        """The bytes of every GPU and every worker's host memory beside the worker's step, of outer parameters and their
        momentum, int64 [places]."""
        return self._bytes_of("pm", self.end(self.steps.whole).memory.began)

    def _moment(self, step: int) -> Collection[int]:
        """Returns the fragments whose average is under way in a step; the first round has fewer, and is told as later
        ones."""
        steps = self.steps.sync.steps
        return under_way(self.steps.sync, step % steps + steps)

    def _late(self, fragments: Collection[int]) -> Ints:
        """Returns the bytes of averages under way, int64 [places]: each is as large as what was sent, as this stays
        until it has left, and what comes is added when all of it is there."""
        leaves = SENT if self.steps.sync.delay else LATER
        sent = [self.end(self.steps.end(one, leaves).step).memory.held for one in fragments]
        return _sum([np.zeros_like(self.outer), *(self._bytes_of("d", held) for held in sent)])

    def _bytes_of(self, names: str, held: Mapping[str, Ints]) -> Ints:
        """Returns the bytes of tensors of a round's end by the letter before a parameter's name, int64 [places]. held:
        of every tensor."""
        weights = {*self.steps.parameters.of_layers, *self.steps.parameters.outside}
        found = [value for name, value in held.items() if name[0] in names and name[1:] in weights]
        return _sum([np.zeros_like(self.end(self.steps.whole).memory.peak), *found])

    def _peak_of_end(self, end: RoundEnd, fragments: Collection[int]) -> Ints:
        """Returns the bytes of every GPU at its fullest in what follows a step, int64 [GPUs]: beside it there are
        parameters and optimizer state of other fragments, and averages under way. fragments: of these before it."""
        own, whole = (self.end(step).memory for step in (self.steps.end(end.fragment, end.kind).step, self.steps.whole))
        beside = [*whole.began.values(), *(-value for value in own.began.values()), self._late(fragments)]
        return _sum([own.peak, *beside])[: self.steps.gpus[0]]

    def _ended(self, result: StepResult, end: RoundEnd) -> StepResult:
        """Returns a step's result with what follows it."""
        every, own = (self.end(self.steps.end(end.fragment, kind, False).step) for kind in (NOW, end.kind))
        phases, busy = PHASES[end.kind], every.busy["compute"]
        whole = float(busy.max())
        moving, sends, meets = every.seconds - whole, REDUCED in phases, TAKEN in phases
        busy = busy if sends and meets else own.busy["compute"]
        computing, waits_for = float(busy.max()), "waiting_rank"
        if self.steps.model.rests_on_hosts:
            on_hosts = self.end(self.steps.end(end.fragment, end.kind).step)
            computing += max(0.0, on_hosts.seconds - own.seconds)
            busy, waits_for = on_hosts.busy["compute"], "waiting_host"
        exposed = moving if end.kind == NOW else self.late.pop(end.fragment, 0.0)
        self._pass(computing + exposed)
        if end.is_late:
            self.late[end.fragment] = moving
        slowest, ranks = float(self.elapsed.max()), self.steps.gpus[1]
        waited = np.repeat(slowest - self.elapsed, ranks) * meets
        if meets:
            self.elapsed[:] = slowest
        told = moving * sends
        spent = {name: np.array(values) for name, values in result.seconds_for.items()}
        nothing = np.zeros(self.steps.gpus[0])
        parts: dict[str, Floats] = {"optimizer": busy, "waiting_gradients": exposed + nothing, "waiting_rank": waited}
        parts[waits_for] = parts.get(waits_for, nothing) + computing - busy  # a GPU without a part of norms has less
        for name, more in parts.items():
            spent[name] = spent.get(name, nothing) + more
        sent = {name: sizes for name, sizes in own.nic_tx.items() if sizes.any()}
        names = dict.fromkeys((*result.nic_tx_for, *sent))
        none = np.zeros(len(result.nic_tx_bytes), np.int64)
        nic_tx_for = {
            name: (np.array(result.nic_tx_for.get(name, none)) + sent.get(name, none)).tolist() for name in names
        }
        return replace(
            result,
            seconds=result.seconds + computing + exposed,
            communication_seconds=[one + told for one in result.communication_seconds],
            exposed_seconds=[one + exposed for one in result.exposed_seconds],
            nic_tx_bytes=(np.array(result.nic_tx_bytes) + sum(own.nic_tx.values())).tolist(),
            nic_rx_bytes=(np.array(result.nic_rx_bytes) + sum(own.nic_rx.values())).tolist(),
            phases=dict(result.phases)
            | {
                name: result.phases.get(name, 0.0) + more
                for name, more in (
                    ("round_end", computing + exposed),
                    ("average", told),
                    ("wait", float(waited.mean())),
                )
            },
            seconds_for={name: values.tolist() for name, values in spent.items() if values.any()},
            nic_tx_for=nic_tx_for,
        )


def _sum(rows: Sequence[Ints]) -> Ints:
    """Returns the sum of rows of bytes."""
    return np.asarray(np.sum(rows, axis=0), np.int64)
