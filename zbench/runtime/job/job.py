"""The job that every rank of a run is told before its first step, and the reports that it answers with after each.
Imports no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from zbench.cost.cost import Cost
from zbench.interfaces.protocols import Workload
from zbench.runtime.clocks.events import Events
from zbench.runtime.clocks.named import NamedMessages

if TYPE_CHECKING:
    from zbench.runtime.network.fault import Fault

CUDA_KERNELS = ("cudnn", "torch-flash-cuda", "flash-attn-2", "flash-attn-3")
KERNELS = ("auto", "matmul", "torch-flash-cpu", *CUDA_KERNELS)
PARAMETERS = ("replicated", "sharded")
DEVICES = ("auto", "cpu", "cuda")  # auto: a GPU if there is one
_FREE = ("name", "element_bytes", "lse_bytes", "recompute", "sharding", "kernels")  # of a model: how it is computed


@dataclass(frozen=True, slots=True)
class AdamW:
    """The optimizer AdamW (arXiv 1711.05101) with a constant learning rate; only matrices decay, norms do not.

    The defaults are LLaMA 7B's (arXiv 2302.13971, section 2.3 and table 2), epsilon torch's; there is neither
    a schedule nor gradient clipping.
    """

    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        for name, most in (("lr", None), ("epsilon", None), ("weight_decay", None), ("beta1", 1), ("beta2", 1)):
            value = getattr(self, name)
            known = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not known or not 0 <= value < (most or float("inf")):
                bound = "below 1" if most else "finite"
                raise ValueError(f"executor.optimizer.{name} is {value!r}; it takes a number of at least 0 and {bound}")


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a run's ranks. cost: the cluster (whose nodes and NICs plans route over) and the model. seed: of the
    initial weights.

    kernel: one of KERNELS. parameters: one of PARAMETERS. device: one of DEVICES. exact: compare each step with the
    dense model.
    is_paced: work takes as long as on the cluster's device (zbench.runtime.clocks.pace).
    nic_interval: seconds between looks at the NICs' counters while a step runs; None: before and after only.
    fault: of an emulated NIC, to be tried.
    compile: whether elementwise work is compiled; None: on a GPU, where there is a compiler.
    """

    cost: Cost
    workload: Workload
    seed: int
    kernel: str
    parameters: str
    optimizer: AdamW
    exact: bool
    is_paced: bool = False
    nic_interval: float | None = None
    fault: "Fault | None" = None
    device: str = "auto"
    compile: bool | None = None

    def told(self) -> dict[str, Any]:
        """Returns the facts that a run which goes on from a checkpoint has to have in common with the one that wrote
        it."""
        model = {name: value for name, value in asdict(self.cost.model).items() if name not in _FREE}
        return {
            **model,
            "mask": str(self.cost.model.mask),
            **asdict(self.optimizer),
            "seed": self.seed,
            "workload": repr(self.workload),
        }


def relays_shares(backend: str, staged: bool) -> bool:
    """Returns whether ranks pass on shares of others' transfers over the NICs of a node: over gloo, which has no routes
    of its own, and where messages need not come through host memory first. backend, staged: as of RankSetup."""
    return backend == "gloo" and not staged


@dataclass(frozen=True, slots=True)
class RankSetup:
    """A rank's findings about how it runs. device: its name; kernel: the one chosen; backend: gloo or nccl.

    sharing: ranks on its GPU. staged: whether messages go through host memory, as gloo takes no other.
    elementwise: how that work is computed. memory_bytes: what the rank may use of its device, at most.

    packages: versions of those installed that compute attention where a plan says so.
    """

    device: str
    kernel: str
    backend: str
    torch: str
    tokens: str
    elementwise: str
    memory_bytes: int
    packages: Mapping[str, str | None]
    sharing: int
    staged: bool


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's raw measurements of a step; seconds and bytes as in zbench.interfaces.result.StepResult.

    loss: of the whole batch. inside, across: bytes (sent, received) of attention's messages, inside the node and
    between nodes. worst: largest relative difference to the dense model and where, on rank 0 where asked for.
    nic: per NIC of the node the bytes (sent, received). nic_series: zbench.runtime.network.sampler.Sampler.series, of
    the first rank of a node. began: moment (zbench.runtime.clocks.events). events: None where they were not asked for.
    repacking_seconds: of exposed_seconds, copies of heads. named: attention's messages by the machine's clock.
    """

    loss: float
    seconds: float
    attention_seconds: float
    linear_seconds: float
    communication_seconds: float
    exposed_seconds: float
    inside: tuple[int, int]
    across: tuple[int, int]
    peak_bytes: int
    capacity_bytes: int
    phases: dict[str, float] = field(default_factory=dict)
    worst: tuple[float, str] | None = None
    nic: dict[str, Any] = field(default_factory=dict)
    nic_series: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    events: Events | None = None
    repacking_seconds: float = 0.0
    named: NamedMessages = field(default_factory=NamedMessages)
