"""One rank of a training run: its share of the network's work in every step. Collective: every rank runs the same.

A step: the plans become programs, every micro-batch runs forward and backward, gradients are summed over ranks
once, the optimizer steps. Its seconds are counted from a barrier on, with all of that in them; reading the
tokens comes before.
"""

import math
import resource
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.batch import Batch
from zbench.fingerprint import versions
from zbench.plan import Plan
from zbench.runtime import checkpoint
from zbench.runtime.attention import Attention
from zbench.runtime.check import worst_difference
from zbench.runtime.compiler import Compiler
from zbench.runtime.deepspeed import Attend, DeepSpeed
from zbench.runtime.interpreter import Engine
from zbench.runtime.job import ATTENTIONS, About, Job, Report
from zbench.runtime.kernels import choose
from zbench.runtime.memory import DTYPES, Shape, keep_freed_memory
from zbench.runtime.nic import Counters
from zbench.runtime.pace import Pace, Paced, Unpaced
from zbench.runtime.parameters import Parameters, Replicated, Sharded
from zbench.runtime.reduction import Flat, TwoLevel
from zbench.runtime.rendezvous import Rendezvous
from zbench.runtime.sampler import Sampler
from zbench.runtime.text import Text, is_real, text
from zbench.runtime.transformer import Transformer
from zbench.runtime.transport import Post, Traffic
from zbench.runtime.transport_phases import transport_of

BURSTS = 3  # the first warms up


class Trainer:
    """A rank's network, optimizer and engine; made and called by a fleet (zbench.runtime.fleet)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: Job) -> None:
        self.rank, self.job, self.board = rank, job, rendezvous.board
        self.rendezvous = rendezvous
        self.board.say("opening torch.distributed")
        self.device = rendezvous.open()
        if self.device.type == "cpu":
            keep_freed_memory()
        model, cluster = job.cost.model, job.cost.cluster
        self.board.say("making the network")
        self.parameters = self._parameters(Transformer(model, job.seed, "meta"))
        node = cluster.node_of
        elsewhere = [bool(node[other] != node[rank]) for other in range(num_ranks)]
        post = Post(dist.new_group(), elsewhere)  # messages on a group of their own: collectives cannot come between
        kernel = choose(job.kernel, self.device, model.head_dim, DTYPES[model.element_bytes])
        self.pace: Pace = Paced() if job.is_paced else Unpaced()
        self.engine = Engine(Shape(model, self.device), kernel, post, transport_of(post.group), self.board, self.pace)
        counters = Counters.of() if rendezvous.place is None else rendezvous.place.counters()
        is_first = rank % cluster.gpus_per_node == 0  # of its node
        self.nics = Sampler(counters, job.nic_interval if is_first else None)
        self.deepspeed: DeepSpeed | None = None

    def about(self) -> About:
        cuda = self.device.type == "cuda"
        return About(
            device=torch.cuda.get_device_name(self.device) if cuda else _cpu_name(),
            kernel=self.engine.kernel.name,
            backend=dist.get_backend(),
            torch=torch.__version__,
            tokens="text" if is_real(self.job.workload) else "made",
            packages=versions(name for name in ATTENTIONS if name),
        )

    def step(self, batch: Batch, plans: tuple[Plan, ...], train: bool, noted: bool = False) -> Report:
        """Runs a step; without `train` gradients are dropped, as in a warm-up, and so if the loss is not finite.

        noted: the report has what this rank did, event by event.
        """
        where = f"step {batch.step}"
        self.board.say(f"{where}, reading tokens")
        vocab = self.job.cost.model.vocab
        texts = [text(plan, self.rank, self.job.workload, batch, vocab) for plan in plans]
        self._open(plans)
        self.engine.times.clear()
        self.engine.post.traffic = Traffic()
        self.board.wait(f"{where}, barrier before it")
        dist.barrier()
        self.nics.begin()
        self.engine.post.events.begin(noted)
        if train:
            self._fail(batch.step)
        began = self._now()
        self.pace.begin()
        attends = self._attends(plans, where)
        compiled = perf_counter()
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, (one, attend) in enumerate(zip(texts, attends, strict=True)):
            self.parameters.begin(last=number == len(plans) - 1)
            part = self._forward(one, attend, batch.num_tokens, f"{where}, micro-batch {number}")
            self.pace.spend(self._head_seconds(one))
            part.backward()
            loss += part.detach()
        ran = self._now()
        self.board.wait(f"{where}, gradient reduction")
        self.parameters.finish()
        self.engine.transport.settle()
        dist.all_reduce(loss)
        reduced = self._now()
        self.board.say(f"{where}, optimizer")
        value = loss.item()
        worst = self._check(batch, value, where) if self.job.exact and train else None
        checked = perf_counter()
        self.pace.came()
        if train and math.isfinite(value):
            self.parameters.step()
        else:
            self.parameters.drop()
        self.pace.spend(self.job.cost.optimizer_seconds())
        ended = self._now()
        times, traffic = self.engine.times, self.engine.post.traffic
        reduction, optimizer = reduced - ran, ended - checked
        return Report(
            loss=value,
            seconds=ended - began - (checked - reduced),
            attention_seconds=times.kernel,
            linear_seconds=max(0.0, ran - compiled - times.total),
            communication_seconds=times.under_way + reduction,
            exposed_seconds=times.waiting + reduction,
            inside=(traffic.inside_tx, traffic.inside_rx),
            across=(traffic.across_tx, traffic.across_rx),
            peak_bytes=_peak_bytes(self.device),
            capacity_bytes=int(self.job.cost.cluster.device.memory_bytes),
            phases={
                "compile": compiled - began,
                "attention": times.total,
                "interpreter": times.total - times.kernel - times.waiting,
                "reduction": reduction,
                "optimizer": optimizer,
                **({"overrun": self.pace.overrun} if self.job.is_paced else {}),
            },
            worst=worst,
            nic=self.nics.end(),
            nic_series=self.nics.series(),
            began=began,
            events=self.engine.post.events if noted else None,
        )

    def burst(self, plan: Plan) -> tuple[float, float]:
        """(seconds that this rank's work takes here, all ranks at it at once; seconds that it takes its device).

        plan: without messages; a sequence a rank.
        """
        nothing = np.zeros(int(plan.tokens_per_rank[self.rank]), np.int64)
        one = Text(nothing, np.arange(len(nothing)), nothing)
        (attend,) = self._attends((plan,), "burst")
        taken = []
        for _ in range(BURSTS):
            self.board.wait("burst, barrier before it")
            dist.barrier()
            self.pace.begin(hurries=True)
            began = self._now()
            self.parameters.begin(last=False)
            part = self._forward(one, attend, len(nothing), "burst")
            self.pace.spend(self._head_seconds(one))
            part.backward()
            taken.append(self._now() - began)
        self.parameters.drop()
        return min(taken[1:]), self.pace.modelled

    def save(self, path: str, step: int) -> None:
        """step: the first one that is not in the checkpoint."""
        self.board.say(f"checkpoint after step {step - 1}")
        checkpoint.save(path, self.parameters, {"next_step": step, "run": self.job.told()})

    def load(self, path: str) -> None:
        self.board.say(f"loading the checkpoint {path}")
        checkpoint.load(path, self.parameters)

    def close(self) -> None:
        self.parameters.close()
        self.engine.transport.close()
        self.rendezvous.close()

    def _parameters(self, network: Transformer) -> Parameters:
        optimizer, everyone, cluster = self.job.optimizer, dist.group.WORLD, self.job.cost.cluster
        assert everyone is not None, "rendezvous.open() made it"
        if self.job.parameters == "sharded":
            return Sharded(network, optimizer, everyone, self.device)
        if self.device.type == "cpu" and cluster.num_nodes > 1 and cluster.gpus_per_node > 1:
            return Replicated(network, optimizer, TwoLevel(cluster.num_nodes, cluster.gpus_per_node), self.device)
        return Replicated(network, optimizer, Flat(everyone), self.device)

    def _now(self) -> float:
        """The time, once the device has done all that it was given."""
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

    def _open(self, plans: tuple[Plan, ...]) -> None:
        """Opens the package that plans ask for. Collective, and once: it takes seconds, which are not the step's."""
        if self.deepspeed is None and any(plan.attention for plan in plans):
            self.board.say("opening deepspeed")
            self.deepspeed = DeepSpeed(self.rank, dist.get_world_size(), self.engine)

    def _attends(self, plans: tuple[Plan, ...], where: str) -> list[Attend]:
        """How attention runs, of every plan."""
        self.board.say(f"{where}, compiling plans")
        return [self._attend(plan) for plan in plans]

    def _attend(self, plan: Plan) -> Attend:
        if plan.attention:
            assert self.deepspeed is not None
            return self.deepspeed.attend(plan)
        index, cut = partial(_index, self.device), self.engine.kernel.cut
        pair = Compiler(plan, self.rank, self.job.cost, index, cut, self.job.is_paced).compile()
        pair = self.engine.transport.prepare(plan, self.job.cost, pair)
        return lambda q, k, v, where: Attention.apply(q, k, v, self.engine, pair, where)

    def _forward(self, one: Text, run: Attend, num_tokens: int, where: str) -> Tensor:
        """The rank's part of the loss."""
        tokens, positions, targets = (
            torch.from_numpy(x).to(self.device) for x in (one.tokens, one.positions, one.targets)
        )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            o = run(q, k, v, f"{where}, layer {layer}")
            self.board.say(f"{where}, layer {layer}")
            return o

        self.board.say(where)
        part: Tensor = self.parameters.network(tokens, positions, targets, attend, num_tokens)
        return part

    def _head_seconds(self, one: Text) -> float:
        """Modelled, of the output projection and the loss."""
        return float(self.job.cost.head_seconds(np.array([len(one.tokens)]))[0])

    def _check(self, batch: Batch, loss: float, where: str) -> tuple[float, str] | None:
        """Collective; the answer is rank 0's, and the others wait for it at the next collective."""
        self.board.wait(f"{where}, gathering gradients")
        weights, gradients = self.parameters.weights(), self.parameters.gradients()
        if self.rank != 0:
            return None
        return worst_difference(
            self.job, batch, loss, weights, gradients, lambda place: self.board.say(f"{where}, {place}")
        )


def _index(device: torch.device, rows: object) -> Tensor:
    return torch.from_numpy(rows).to(device)


def _peak_bytes(device: torch.device) -> int:
    """Most memory in use so far: of the GPU's allocator, else of the process (its resident set)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_name() -> str:
    """As Linux tells it; a processor without a model name is just a CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
