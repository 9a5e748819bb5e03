"""A rank's end of a process group on which plans run: what a user's own training loop makes once.

It calls the executor's compiler, interpreter and transports (zbench.runtime); the loop, the model, its parameters and
the process groups are the caller's.
"""

from collections import OrderedDict
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from zbench.api.compiling import compiling_told, has_compiled
from zbench.api.parts import cluster_named, model_named, told
from zbench.api.yamls import Named
from zbench.cost.job import make_cost
from zbench.describe.arrays import Ints
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.strategy import MODEL_FIELDS
from zbench.describe.units import with_noun
from zbench.planned.step import StepPlans
from zbench.plans.plan import Plan
from zbench.proof.verify import verify
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES, Shape
from zbench.runtime.training.attention import programs_of
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.nccl import transport_of
from zbench.torch.agreement import Digests, agree, digests_of
from zbench.torch.patience import Patience, PatientEndpoint
from zbench.torch.planned_batch import PlannedBatch, TokenRows

COMPILING = 600.0  # seconds that ranks which compiled wait once for others that still do: a judgement
NOT_MEMBER = dist.GroupMember.NON_GROUP_MEMBER  # what new_group gives to processes that are not in the group
KEPT = 8  # steps whose programs are kept, for loops that come back to the same plans


class Runtime:
    """A rank's part of a process group that runs plans. Making one is collective: all ranks of `group` do.

    group: of torch.distributed, whose rank i runs the plans' rank i; None: all processes. Messages travel on a group of
    their own of the same ranks and backend, so that the caller's collectives cannot come between them.
    cluster, model: what plans have to be for, a name of conf/, a yaml or an object; None: what the first step names.
    device: of q, k and v; None: the current GPU where the group is nccl's, else the CPU. kernel: "auto" or a name of
    docs/runtime.md. timeout: seconds that a rank waits for another one before it raises (NCCL: ends the process).

    Raises:
        ValueError: there is no group, this process is not in it, or an argument cannot be.
        TimeoutError: a rank did not come. These ranks make no Runtime after that: torch keeps the addresses of those
            that came, where nobody listens any more.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        cluster: Named | Cluster | None = None,
        model: Named | Model | None = None,
        device: torch.device | str | None = None,
        kernel: str = "auto",
        timeout: float = 60.0,
    ) -> None:
        if group is not None and not isinstance(group, dist.ProcessGroup) and group is not NOT_MEMBER:
            raise ValueError(
                f"group is {group!r:.60}; it takes a group of torch.distributed, as new_group(ranks) makes it, or None "
                "for all processes"
            )
        if not dist.is_initialized():
            raise ValueError("there is no process group; torch.distributed.init_process_group comes before the Runtime")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < 1e9:
            raise ValueError(f"timeout is {timeout!r}; it takes seconds, above 0")
        if dist.get_rank(group) < 0:
            raise ValueError("group is one that this process is not in; only its ranks make a Runtime on it")
        with told():
            self._cluster = None if cluster is None else cluster_named(cluster)
            self._model = None if model is None else model_named(model)
        self._kernel, self.device = kernel, _device(device, dist.get_backend(group))
        self._group = _own_group(group, float(timeout))
        self.rank, self.num_ranks = self._group.rank(), self._group.size()
        self._patience = Patience(self._group.get_group_store(), self.rank, self.num_ranks, float(timeout))
        self._transport = transport_of(self._group)
        self._engine: Engine | None = None
        self._kept: OrderedDict[tuple[Digests, bool], tuple[PlannedBatch, ...]] = OrderedDict()

    def micro_batches(self, plans: StepPlans | Plan) -> tuple[PlannedBatch, ...]:
        """Returns this rank's parts of a step's micro-batches, in the order they run; of one plan, its only one.

        Proves the plans, compares them with the other ranks' and compiles them; a step that was seen lately is compiled
        already. A Plan by itself is of a packed batch of its own sequences alone, and for the Runtime's cluster and
        model. Collective.

        Raises:
            ValueError: plans are for other ranks, another cluster or model, need what is not here, or differ between
                ranks, also in their lengths; or the Runtime is closed.
            zbench.proof.verify.PlanError: a plan is wrong.
            TimeoutError: a rank did not come, or left the call with an error.
        """
        with self._patience.call("micro_batches"):
            step, is_alone = self._step(plans)
            key = digests_of(step.lengths, (step.cluster, step.model), step.plans), is_alone
            if not self._kept and has_compiled():
                self._patience.be_patient_once(COMPILING)
            with self._patience.waiting():
                agree(self._group, key[0], step.lengths, self.device)
            if key not in self._kept:
                is_first = not self._kept
                with compiling_told():
                    self._check(step)
                    self._kept[key] = self._compiled(step, is_alone)
                if is_first:
                    self._patience.board.begin("micro_batches, its plans compiled")
                    if has_compiled():
                        self._patience.be_patient_once(COMPILING)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]

    def close(self) -> None:
        """Ends threads; after a rank was lost, without waiting for anything. Any number of times; nothing can be called
        after it. The group that the Runtime made ends with the caller's destroy_process_group(): torch would give the
        next group of these ranks the name of one that ended before, and with it that one's addresses in the store."""
        if self._patience.is_closed:
            return
        if not self._patience.ended:
            self._transport.settle()
            self._transport.close()
        self._patience.close()

    # -- plans ----------------------------------------------------------------------------------------
    def _step(self, plans: StepPlans | Plan) -> tuple[StepPlans, bool]:
        """Returns the step, and whether it is one plan by itself."""
        if isinstance(plans, StepPlans):
            return plans, False
        if not isinstance(plans, Plan):
            raise ValueError(
                f"plans is of type {type(plans).__name__}; it takes what zbench.plan or zbench.load returns, or a Plan"
            )
        if self._cluster is None or self._model is None:
            missing = "cluster" if self._cluster is None else "model"
            raise ValueError(f"a Plan by itself names no {missing}; Runtime(group, cluster=..., model=...) does")
        return StepPlans((plans,), plans.lengths, self._cluster, self._model), True

    def _check(self, step: StepPlans) -> None:
        """Refuses what cannot run here, the same on all ranks."""
        for number, plan in enumerate(step.plans):
            if plan.num_ranks != self.num_ranks:
                raise ValueError(
                    f"plan {number} is for {with_noun(plan.num_ranks, 'rank')}; the group has {self.num_ranks}, so it "
                    f"takes plans for a cluster of {with_noun(self.num_ranks, 'GPU')}"
                )
            if plan.pipelines is not None or not plan.backward_mode:
                lacks, remedy = "has no backward", "attention for a model of one's own takes plans of a step"
                if plan.pipelines is not None:
                    lacks = "is of pipelines that its planner chose"
                    remedy = "zbench.plan(..., pipelines=False) makes plans of a step that run here"
                raise ValueError(f"plan {number} {lacks}; {remedy}")
        for name in ("tensor_parallel", "pipeline_parallel"):
            if getattr(step.model, name) != 1:
                raise ValueError(
                    f"parallel.{name} is {getattr(step.model, name)}; attention by itself takes plans with 1"
                )
        step.strategy.check_attention_alone({name: getattr(step.model, name) for name in MODEL_FIELDS})
        if step.model.element_bytes not in DTYPES:
            raise ValueError(f"model.element_bytes is {step.model.element_bytes}; it takes one of {sorted(DTYPES)}")
        step.check_for(self._cluster, self._model)
        for plan in step.plans:
            verify(plan, step.cost, memory=False)

    def _compiled(self, step: StepPlans, is_alone: bool) -> tuple[PlannedBatch, ...]:
        """Compiles all plans of a step, at once."""
        engine = self._engine_for(step)
        if not is_alone:
            step.verify(memory=False)
        found = []
        for number, plan in enumerate(step.plans):
            sequences: Ints = np.arange(len(plan.lengths), dtype=np.int64) if is_alone else plan.sequences
            rows = [TokenRows.of(plan, rank, step.lengths, sequences) for rank in range(self.num_ranks)]
            programs = programs_of(engine, plan, self.rank, step.cost)
            found.append(PlannedBatch(engine, programs, self._patience, rows, number, int(step.lengths.sum())))
        return tuple(found)

    def _engine_for(self, step: StepPlans) -> Engine:
        """Returns the engine of all plans; the first step says what they are for, where nobody else did."""
        if self._engine is None:
            cost = make_cost(step.cluster, step.model)
            dtype = DTYPES[step.model.element_bytes]
            kernel = choose_kernel(self._kernel, self.device, step.model.head_dim, dtype, step.model.mask, "kernel")
            post = PatientEndpoint.on(self._group, cost.cluster.node_of, self.device)
            post.patience = self._patience
            shape = Shape(step.model, self.device)
            self._engine = Engine(shape, kernel, post, self._transport, self._patience.board, is_timed=False)
            self._cluster, self._model = step.cluster, step.model
        return self._engine


def _own_group(group: dist.ProcessGroup | None, timeout: float) -> dist.ProcessGroup:
    """Makes a group of the same ranks and backend. Collective.

    Raises:
        TimeoutError: a rank did not come.
    """
    ranks = dist.get_process_group_ranks(group)
    patience = timedelta(seconds=timeout)
    try:
        made = dist.new_group(ranks, patience, dist.get_backend(group), use_local_synchronization=True)
    except RuntimeError as error:
        if "timed out" not in str(error).lower() and "timeout" not in str(error).lower():
            raise
        raise TimeoutError(
            f"rank {dist.get_rank(group)} waited {timeout:g} s for the others to make their Runtime, and not all "
            f"{with_noun(len(ranks), 'rank')} of the group did"
        ) from error
    assert isinstance(made, dist.ProcessGroup), "this process is in it"
    return made


def _device(given: torch.device | str | None, backend: str) -> torch.device:
    """Returns the device of q, k and v.

    Raises:
        ValueError: there is none of that name, or it is a GPU's and this process has no such GPU.
    """
    if given is None:
        given = "cuda" if backend == "nccl" else "cpu"
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {given!r}; it takes a name of torch.device, as in 'cpu' or 'cuda:0'") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(device)!r}; plans run on 'cpu' and on GPUs that torch calls 'cuda'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {str(device)!r}; torch sees {with_noun(torch.cuda.device_count(), 'GPU')} here")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
