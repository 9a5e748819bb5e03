"""The job of ranks that train by whole steps, and the reports that they answer with. Imports no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from zbench.cost.cost import Cost
from zbench.cost.job import worker_gpus
from zbench.describe.expert_schedule import USUAL_EXPERTS, Experts
from zbench.describe.sync import EVERY, RoundSync
from zbench.interfaces.protocols import Workload
from zbench.runtime.clocks.named import NamedMessages
from zbench.runtime.clocks.step_notes import RankNotes
from zbench.runtime.job.job import AdamW

if TYPE_CHECKING:
    from zbench.runtime.network.fault import Fault

_FREE = ("name", "lse_bytes", "recompute", "recompute_layers", "kernels")  # of a model: how it is computed
_LAW = ("skew", "popularity", "drift", "capacity", "padded")  # of experts
Sizes = tuple[int, int]  # bytes sent, bytes received


@dataclass(frozen=True, slots=True)
class StepJob:
    """The job of a run's ranks, each a GPU of the cluster. cost: of the cluster and the model. seed: of the initial
    weights. workload: its tokens are read by every rank. kernel, optimizer, device: of zbench.runtime.job.job. exact:
    compare each step with the dense model. sync: when workers come together. nic_counters: read what the NICs of every
    node carry. is_paced, nic_interval, fault: as of zbench.runtime.job.job.Job. experts: how tokens choose them;
    expert_gpus: the degrees of expert parallelism and of the tensor parallelism of experts. is_weighed: whether on CPUs
    the most bytes of a rank's tensors are counted, which takes some of the processors' time."""

    cost: Cost
    workload: Workload
    seed: int
    kernel: str
    optimizer: AdamW
    exact: bool
    device: str = "auto"
    sync: RoundSync = EVERY
    is_paced: bool = False
    is_weighed: bool = True
    nic_counters: bool = False
    nic_interval: float | None = None
    fault: "Fault | None" = None
    experts: Experts = USUAL_EXPERTS
    expert_gpus: tuple[int, int] = (1, 1)

    @property
    def worker_gpus(self) -> int:
        """The GPUs of a worker, where workers train apart."""
        return worker_gpus(self.cost, self.sync)

    def told(self) -> dict[str, Any]:
        """Returns the facts that a run which goes on from a checkpoint has to have in common with the one that wrote
        it."""
        model = self.cost.gpus.model
        return {
            "GPUs": self.cost.gpus.cluster.num_ranks,  # first, as the workload's tokens hang on it
            **{name: value for name, value in asdict(model).items() if name not in _FREE},
            "mask": str(model.mask),
            **asdict(self.optimizer),
            "seed": self.seed,
            "workload": repr(self.workload),
            "GPUs of a worker": self.worker_gpus,
            **{f"sync.{name}": value for name, value in asdict(self.sync).items()},
            **_of_experts(self.experts, self.expert_gpus),
        }


def _of_experts(experts: Experts, gpus: tuple[int, int]) -> dict[str, Any]:
    """Returns the facts of experts that runs have in common: where their columns are, and what chooses them."""
    law = {f"experts.{name}": getattr(experts, name) for name in _LAW}
    return {"parallel.expert_parallel": gpus[0], "parallel.expert_tensor_parallel": gpus[1], **law}


# What checkpoints have that were written before they told of experts.
UNTOLD: Mapping[str, Any] = _of_experts(USUAL_EXPERTS, (1, 1))


@dataclass(frozen=True, slots=True)
class StepReport:
    """One rank's raw measurements of a whole step.

    loss: of the whole batch, None where it is another rank's. seconds: from the barrier to the end. spent: what they
    went to, by parts of zbench.interfaces.result.SECONDS_FOR, which sum to them. under_way: in which a message was to
    come. inside, across: bytes of messages inside the node and between nodes, by queue
    (zbench.step.operations.QUEUES) or zbench.interfaces.result.SWITCH. compiling: seconds before the step in which it
    became instructions.
    worst: the largest relative difference to the dense model and where, where it was asked for. began, nic, nic_series:
    as of zbench.runtime.job.job.Report. notes: of what it did, None where they were not asked for. paced: of a paced
    device the seconds that were "modelled", that processors "worked" on this rank, by which real work came late
    ("overrun") and by which messages did ("late"); else {}. switching: of its seconds, those in which parameters and
    optimizer state moved, as its strategy is another one than that of the step before. seats: that experts have for
    tokens of this rank, of all layers, and how many of these have none, where a router chooses; rows: of seats with a
    token, as zbench.step.byte_law.Chosen, where they are counted; swapped: of the whole step, those that the dense
    model would have chosen otherwise, of equals but for rounding. named: its messages by the machine's clock.
    store_bytes: the most bytes of the step's tensors and logits on this rank at a time, None where they were not
    weighed.
    """

    loss: float | None
    seconds: float
    spent: Mapping[str, float]
    under_way: float
    inside: Mapping[str, Sizes]
    across: Mapping[str, Sizes]
    peak_bytes: int
    capacity_bytes: int
    compiling: float
    worst: tuple[float, str] | None = None
    began: float = 0.0
    notes: RankNotes | None = None
    nic: Mapping[str, Sizes] = field(default_factory=dict)
    nic_series: dict[str, Any] = field(default_factory=dict)
    paced: Mapping[str, float] = field(default_factory=dict)
    switching: float = 0.0
    seats: tuple[int, int] = (0, 0)
    rows: Mapping[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)
    swapped: int = 0
    store_bytes: int | None = None
    named: NamedMessages = field(default_factory=NamedMessages)

    def total(self) -> dict[str, Sizes]:
        """Returns the bytes (sent, received) by queue, of the queues that had messages."""
        found = {}
        for queue in self.inside.keys() | self.across.keys():
            pair = [self.inside.get(queue, (0, 0)), self.across.get(queue, (0, 0))]
            found[queue] = (pair[0][0] + pair[1][0], pair[0][1] + pair[1][1])
        return found
