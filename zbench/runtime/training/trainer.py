"""One rank of a training run: its share of the network's work in every step. Collective: every rank runs the same.

A step: the plans become programs, every micro-batch runs forward and backward, gradients are summed over ranks
once, the optimizer steps. Its seconds are counted from a barrier on, with all of that in them; reading the
tokens comes before.
"""

import math
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.console.heap import keep_freed_memory
from zbench.describe.batch import Batch
from zbench.plans.plan import ATTENTIONS, Plan
from zbench.record.fingerprint import versions
from zbench.runtime.clocks.events import OPTIMIZER, REDUCE
from zbench.runtime.clocks.moments import Moments
from zbench.runtime.clocks.pace import Paced, Pacer, Unpaced
from zbench.runtime.job.job import Job, RankSetup, Report
from zbench.runtime.kernels.span import named_span
from zbench.runtime.network.lateness import Lateness
from zbench.runtime.network.sampler import Sampler
from zbench.runtime.processes.host import cpu_name, measured_peak_bytes, memory_bytes
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.program.preload import preload
from zbench.runtime.training import checkpoint
from zbench.runtime.training.check import worst_difference
from zbench.runtime.training.deepspeed import Attend
from zbench.runtime.training.passes import Passes
from zbench.runtime.training.setup import engine_of, parameters_of
from zbench.runtime.training.text import Text, is_real, rank_tokens
from zbench.runtime.transport.transport import Traffic


class Trainer:
    """A rank's network, optimizer and engine; made and called by a fleet (zbench.runtime.processes.fleet)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: Job) -> None:
        self.rank, self.job, self.board = rank, job, rendezvous.board
        self.rendezvous = rendezvous
        self.pace: Pacer = Paced() if job.is_paced else Unpaced()
        self.board.say("opening torch.distributed")
        self.device = rendezvous.open(job.device)
        self.sharing = rendezvous.sharing(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.capacity_bytes = memory_bytes(self.device, job.cost.cluster.device.memory_bytes) // self.sharing
        self.board.say("making the network")
        self.parameters = parameters_of(job, rank, self.device, self.sharing, self.board.say)
        self.engine = engine_of(job, self.device, self.board, self.pace)
        is_first = rank % job.cost.cluster.gpus_per_node == 0
        self.nics = Sampler.of_node(is_first, rendezvous.place, job.nic_interval)
        self.lateness = Lateness() if job.is_paced else None
        self.passes = Passes(job, rank, self.engine, self.parameters, self.device)

    @staticmethod
    def prepare() -> None:
        """Loads, before ranks are forked, what each would load in its first step, more than a second of a core."""
        import torch._dynamo  # noqa: F401 - torch's optimizers do

        preload()

    def about(self) -> RankSetup:
        """Returns what the rank found out about how it runs."""
        cuda = self.device.type == "cuda"
        return RankSetup(
            device=torch.cuda.get_device_name(self.device) if cuda else cpu_name(),
            kernel=self.engine.kernel.name,
            backend=dist.get_backend(),
            torch=str(torch.__version__),  # to unpickle its own type, the driver would import torch
            tokens="text" if is_real(self.job.workload) else "made",
            elementwise=self.parameters.network.fused.name,
            memory_bytes=self.capacity_bytes,
            packages=versions(name for name in ATTENTIONS if name),
            sharing=self.sharing,
            staged=self.engine.post.through_host,
        )

    def step(
        self, batch: Batch, plans: tuple[Plan, ...], train: bool, noted: bool = False, recompute: str | None = None
    ) -> Report:
        """Runs a step; without `train` gradients are dropped, as in a warm-up, and so if the loss is not finite.

        noted: the report has what this rank did, event by event.
        recompute: of zbench.runtime.job.footprint.LEVELS, the same on all ranks; None: as the model says.
        """
        where = f"step {batch.step}"
        self.parameters.network.recompute = recompute or self.job.cost.model.recompute
        texts = self._tokens(batch, plans, where)
        attends, compiling = self._programs(plans, where)
        began = self._begin(batch.step, where, train, noted)
        loss = self._run(texts, attends, batch, where)
        ran = self._now()
        self._reduce(loss, where)
        reduced = self._now()
        self.engine.post.events.span(REDUCE, ran)
        self.board.say(f"{where}, optimizer")
        value = loss.item()
        worst = self._check(batch, value, where) if self.job.exact and train else None
        checked = perf_counter()
        self._update(train and math.isfinite(value))
        ended = self._now()
        self.engine.post.events.span(OPTIMIZER, checked)
        return self._report(value, worst, Moments(compiling, began, ran, reduced, checked, ended), noted)

    def _tokens(self, batch: Batch, plans: tuple[Plan, ...], where: str) -> list[Text]:
        """Returns this rank's tokens of every micro-batch."""
        self.board.say(f"{where}, reading tokens")
        vocab = self.job.cost.model.vocab
        return [rank_tokens(plan, self.rank, self.job.workload, batch, vocab) for plan in plans]

    def _programs(self, plans: tuple[Plan, ...], where: str) -> tuple[list[Attend], float]:
        """Returns how attention runs, of every plan, and the seconds that finding out took: ahead of the step, like
        planning.

        Collective where a package is opened.
        """
        self.passes.open(plans)
        began = perf_counter()
        return self.passes.attends(plans, where), perf_counter() - began

    def _begin(self, step: int, where: str, train: bool, noted: bool) -> float:
        """Meets all ranks, and lets everything that measures begin; the moment it did. Collective."""
        self.engine.times.clear()
        self.engine.post.traffic = Traffic()
        self.board.wait(f"{where}, barrier before it")
        dist.barrier()
        self.nics.begin()
        self.engine.post.events.begin(noted)
        self.engine.post.named.begin()
        if train:
            self._fail(step)
        began = self._now()
        self.pace.begin()
        if self.lateness is not None:
            self.lateness.begin()
        return began

    def _run(self, texts: list[Text], attends: list[Attend], batch: Batch, where: str) -> Tensor:
        """Runs forward and backward of every micro-batch; returns this rank's share of the loss, float64 []."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, (one, attend) in enumerate(zip(texts, attends, strict=True)):
            self.parameters.begin(last=number == len(texts) - 1)
            loss += self.passes.run(one, attend, batch.counted_labels, f"{where}, micro-batch {number}")
        return loss

    def _reduce(self, loss: Tensor, where: str) -> None:
        """Makes gradients and loss sums over all ranks. Collective."""
        self.board.wait(f"{where}, gradient reduction")
        self.parameters.finish()
        self.engine.transport.settle()
        dist.all_reduce(loss)

    def _update(self, wanted: bool) -> None:
        """Takes the optimizer's step; without `wanted`, gradients are dropped."""
        self.pace.came()
        with named_span(OPTIMIZER):
            if wanted:
                self.parameters.step()
            else:
                self.parameters.drop()
        self.pace.spend(self.job.cost.optimizer_seconds())

    def _report(self, loss: float, worst: tuple[float, str] | None, moments: Moments, noted: bool) -> Report:
        times, traffic = self.engine.times, self.engine.post.traffic
        late = {"overrun": self.pace.overrun, "late": self.lateness.seconds()} if self.lateness else {}
        return Report(
            loss=loss,
            seconds=moments.seconds,
            attention_seconds=times.kernel,
            linear_seconds=max(0.0, moments.running - times.total),
            communication_seconds=times.under_way + moments.reduction,
            exposed_seconds=times.waiting + times.repacking + moments.reduction,
            inside=(traffic.inside_tx, traffic.inside_rx),
            across=(traffic.across_tx, traffic.across_rx),
            peak_bytes=measured_peak_bytes(self.device),
            capacity_bytes=self.capacity_bytes,
            phases={
                "compile": moments.compiling,
                "attention": times.total,
                "interpreter": times.total - times.kernel - times.repacking - times.waiting,
                "reduction": moments.reduction,
                "optimizer": moments.optimizer,
                **late,
            },
            worst=worst,
            nic=self.nics.end(),
            nic_series=self.nics.series(),
            began=moments.began,
            events=self.engine.post.events if noted else None,
            repacking_seconds=times.repacking,
            named=self.engine.post.named.end(),
        )

    def burst(self, plan: Plan) -> tuple[float, float]:
        """Times a plan's work as zbench.runtime.training.passes.Passes.burst does, and drops the gradients."""
        found = self.passes.burst(plan)
        self.parameters.drop()
        return found

    def save(self, path: str, step: int) -> None:
        """Writes a checkpoint. step: the first one that is not in the checkpoint."""
        self.board.say(f"checkpoint after step {step - 1}")
        checkpoint.save_checkpoint(path, self.parameters, {"next_step": step, "run": self.job.told()})

    def load(self, path: str) -> None:
        """Takes over the checkpoint `path`."""
        self.board.say(f"loading the checkpoint {path}")
        checkpoint.load_checkpoint(path, self.parameters)

    def close(self) -> None:
        """Ends threads, the transport and the group of ranks."""
        self.parameters.close()
        self.engine.transport.close()
        self.rendezvous.close()

    def _now(self) -> float:
        """Returns the time, once the device has done all that it was given."""
        if self.device.type == "cuda":
            self.board.wait()  # work on the device waits for other ranks, and this for it
            torch.cuda.synchronize(self.device)
            self.board.resume()
        return perf_counter()

    def _fail(self, step: int) -> None:
        """Begins what is to be tried in this step, on the first rank of the NIC's node."""
        fault, place, cluster = self.job.fault, self.rendezvous.place, self.job.cost.cluster
        if fault is None or place is None or fault.step != step:
            return
        if self.rank == fault.nic // cluster.nics_per_node * cluster.gpus_per_node:
            fault.begin(cluster, place)

    def _check(self, batch: Batch, loss: float, where: str) -> tuple[float, str] | None:
        """Compares a step with the dense model. Collective; the answer is rank 0's, and the others wait for it at the
        next collective."""
        self.board.wait(f"{where}, gathering gradients")
        weights, gradients = self.parameters.weights(), self.parameters.gradients()
        if self.rank != 0:
            return None
        return worst_difference(
            self.job, batch, loss, weights, gradients, lambda place: self.board.say(f"{where}, {place}")
        )
