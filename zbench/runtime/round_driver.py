"""The driver's side of training in rounds: workers' steps are sent to the ranks of each, and after a round what it ends
with to all. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number, is_whole
from zbench.plans.plan import Plan
from zbench.runtime.checkpoints.folder import Hold, check_files, check_free, checkpoint_description
from zbench.runtime.checkpoints.same_run import check_same
from zbench.runtime.checkpoints.whole_steps import resting_then
from zbench.runtime.job.step_job import UNTOLD, Sizes, StepJob, StepReport
from zbench.runtime.measured_steps import RanPart
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.steps.device_seconds import DeviceSeconds, Seconds
from zbench.runtime.steps.tokens import TokenParts, tokens_of
from zbench.runtime.worker_clocks import StepClock, WorkerClocks
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.passes.rounds.order import round_ends, under_way
from zbench.step.passes.rounds.worker_steps import FragmentEnd, WorkerStep, WorkerSteps
from zbench.step.template import Step

RANK = "zbench.runtime.stepping.round_rank:RoundRank"


def check_checkpoints(job: StepJob, every: int | None, path: str, resume: str | None) -> None:
    """Refuses checkpoints that cannot be written, or gone on from.

    Raises:
        ValueError: the message names the setting.
    """
    check_whole_number("executor.checkpoint_every", every, 1, or_null=True)
    if every is not None:
        check_free(path)
        Hold.of(path).end()  # told now, and not when the baseline has run
    if resume is not None:
        if not job.sync.in_rounds:
            resting_then(resume)  # whose it is at all
        check_same(resume, job.told(), UNTOLD)
        check_files(resume)


@dataclass
class RoundDriver:
    """The rounds of a run. modelled: seconds of computes on paced devices, of a worker's step and of a round's end.
    clocks: of workers on such devices; else None. labels: of every fragment, those of each worker that counted
    since its last average left."""

    steps: WorkerSteps
    fleet: Fleet
    modelled: tuple[DeviceSeconds, DeviceSeconds] = (DeviceSeconds(), DeviceSeconds())
    clocks: WorkerClocks | None = None
    labels: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.labels = [[0] * self.steps.workers for _ in range(self.steps.sync.fragments)]
        self.fleet.call("begin", self.steps.whole)

    def save(self, path: str, job: StepJob, next_step: int) -> None:
        """Has all ranks write a checkpoint, which goes on with a step, in the midst of a round, too."""
        meta = {"next_step": next_step, "run": job.told(), "round_tokens": self.labels}
        self.fleet.call("save", path, self.steps.whole, self._late(next_step), meta)

    def load(self, path: str) -> None:
        """Has all ranks take over a checkpoint.

        Raises:
            ValueError: it is none of a run in rounds.
        """
        told = checkpoint_description(path)
        labels = told.get("round_tokens")
        of = np.array(labels if isinstance(labels, list) else [], object)  # of lists of unequal lengths these
        if of.shape != np.shape(self.labels) or not all(map(is_whole, of.flat)):
            raise ValueError(f"resume is {path!r}; it takes the checkpoint of a run in rounds of as many workers")
        self.labels = [[int(one) for one in row] for row in of]
        self.fleet.call("load", path, self.steps.whole, self._late(told["next_step"]))

    def _late(self, step: int) -> list[FragmentEnd]:
        """Returns what the averages arrive with that are under way before a step."""
        return [self.steps.end(*one) for one in under_way(self.steps.sync, step).items()]

    def warm_up(self, batch: Batch, plans: Sequence[Plan]) -> None:
        """Runs every worker's step without its updates."""
        self._local(batch, self.steps.of(batch, plans), False, False)

    def step(self, batch: Batch, plans: Sequence[Plan], noted: bool) -> "RanStep":
        """Runs a step of every worker, and the round's end where it is the last of its round. noted: whether ranks tell
        part by part what they did."""
        found = self.steps.of(batch, plans)
        reports, ended, each = self._local(batch, found, True, noted), 0.0, self.steps.gpus[1]
        ran = [
            RanPart(one.step, worker * each, reports[worker * each :][:each])
            for worker, one in enumerate(found)
            if one is not None
        ]
        clock = None if self.clocks is None else self.clocks.step(reports)
        stated = [
            dict(one) for at, worker in enumerate(found) for one in self._stated(worker, reports[at * each :][:each])
        ]
        for labels, (worker, one) in product(self.labels, enumerate(found)):
            labels[worker] += 0 if one is None else one.labels
        late = set(under_way(self.steps.sync, batch.step))
        for what in round_ends(self.steps.sync, batch.step):
            end, labels = self.steps.end(what.fragment, what.kind), self.labels[what.fragment]
            shares = [count / sum(labels) for count in labels] if what.begins_anew else []
            late = late | {what.fragment} if what.is_late else late - {what.fragment}
            ends = self._end(end, shares, bool(late), noted)
            ran.append(RanPart(end.step, 0, ends, end.layers))
            reports = [_together(one, more) for one, more in zip(reports, ends, strict=True)]
            for mine, other in zip(stated, stated_bytes(end.step), strict=True):
                mine |= {queue: _sum(mine.get(queue, (0, 0)), pair) for queue, pair in other.items()}
            if self.clocks is None or clock is None:
                ended += max(one.seconds for one in ends)
            else:
                met = self.clocks.met(ends)
                ended, clock = ended + met.seconds, clock.followed_by(met)
            if what.begins_anew:
                labels[:] = [0] * len(labels)
        return RanStep(reports, stated, ended, clock, ran, found)

    def _end(self, end: FragmentEnd, shares: Sequence[float], late: bool, noted: bool) -> list[StepReport]:
        """Runs what a fragment's round ends with, which ranks come to when their workers' clocks say so."""
        later = [0.0] * self.steps.gpus[0] if self.clocks is None else self.clocks.later
        seconds = self.modelled[1].of(end.step)
        reports: list[StepReport] = self.fleet.call("end_round", end, shares, late, seconds, noted, per_rank=later)
        return reports

    def _local(self, batch: Batch, found: Sequence[WorkerStep | None], train: bool, noted: bool) -> list[StepReport]:
        each = self.steps.gpus[1]
        own = [None if one is None else self._own(batch, one) for one in found]
        per_rank = [one for one in own for _ in range(each)]
        reports: list[StepReport] = self.fleet.call("local_step", batch, train, noted, per_rank=per_rank)
        return reports

    def _own(self, batch: Batch, one: WorkerStep) -> tuple[Step, tuple[TokenParts, ...], Seconds]:
        """Returns what the ranks of a worker are told of its step."""
        seconds = self.modelled[0].of(one.step, one.plans)
        return one.step, tokens_of(one.chosen.steps.parts(batch, one.plans)), seconds

    def _stated(self, worker: WorkerStep | None, reports: Sequence[StepReport]) -> list[dict[str, Sizes]]:
        """Returns the bytes of a worker's GPUs, by queue. reports: of these, what its routers chose among them."""
        if worker is None:
            return [{}] * self.steps.gpus[1]
        return stated_bytes(worker.step, chosen_rows(one.rows for one in reports) or None)


@dataclass(frozen=True)
class RanStep:
    """A step of a run in rounds. reports: of all ranks. stated: the bytes (sent, received) by queue that the steps say
    of each. ended: the seconds of the round's end. clock: of paced devices, the step's time on their workers' clocks;
    None: all wait for each other before each step. parts: what was run, the workers' steps and the round's ends.
    workers: their own parts of the batch."""

    reports: list[StepReport]
    stated: list[dict[str, Sizes]]
    ended: float
    clock: StepClock | None
    parts: list[RanPart]
    workers: list[WorkerStep | None]


def _sum(one: Sizes, other: Sizes) -> Sizes:
    return one[0] + other[0], one[1] + other[1]


def _together(one: StepReport, end: StepReport) -> StepReport:
    """Returns what a rank measured of a step and of the round's end that followed it."""
    spent = {name: one.spent.get(name, 0.0) + end.spent.get(name, 0.0) for name in one.spent.keys() | end.spent.keys()}
    inside, across = (
        {name: _sum(mine.get(name, (0, 0)), more.get(name, (0, 0))) for name in mine.keys() | more.keys()}
        for mine, more in ((one.inside, end.inside), (one.across, end.across))
    )
    return replace(
        one,
        seconds=one.seconds + end.seconds,
        spent=spent,
        under_way=one.under_way + end.under_way,
        inside=inside,
        across=across,
        peak_bytes=max(one.peak_bytes, end.peak_bytes),
        store_bytes=max(one.store_bytes, end.store_bytes) if one.store_bytes and end.store_bytes else None,
        compiling=one.compiling + end.compiling,
        nic={name: _sum(pair, end.nic[name]) for name, pair in one.nic.items()},
        nic_series=_series_together(one.nic_series, end.nic_series),
        paced={name: value + end.paced[name] for name, value in one.paced.items()},
    )


def _series_together(one: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the curves of NICs in a step and in what followed it, one after the other."""
    return {
        name: value if name == "interval" else [[*first, *then] for first, then in zip(value, end[name], strict=True)]
        for name, value in one.items()
    }
