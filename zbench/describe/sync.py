"""The rounds in which workers train apart, as a run chooses them: of how many steps, and what is done with the average.

Pure data: conf/sync sets it, zbench.step.passes.rounds builds what a round ends with, zbench.step.outer_update has its
arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zbench.describe.checks import check_choice, check_whole_number
from zbench.describe.cluster import Cluster

EVERY_STEP, LOCAL_SGD, SLOWMO, CO2, DILOCO, STREAMING_DILOCO = METHODS = (
    "every_step",
    "local_sgd",
    "slowmo",
    "co2",
    "diloco",
    "streaming_diloco",
)
RANK, NODE = WORKERS = ("rank", "node")
NO_PENALTY, CONSTANT, GAP_AWARE = PENALTIES = ("none", "constant", "gap_aware")
MOST_STEPS = 10_000  # of a round: published ones have up to 1,000 or so
_AT_ONCE: Mapping[str, Any] = {"fragments": 1, "delay": 0, "mixing": 0.0}
_PLAIN: Mapping[str, Any] = {"penalty": NO_PENALTY, "clip": None}
# By method, what its keys take where it leaves no choice.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    EVERY_STEP: {"steps": 1, "lr": 1.0, "momentum": 0.0, **_PLAIN, **_AT_ONCE},
    LOCAL_SGD: {"lr": 1.0, "momentum": 0.0, **_PLAIN, **_AT_ONCE},
    SLOWMO: {**_PLAIN, **_AT_ONCE},
    CO2: _AT_ONCE,
    DILOCO: {**_PLAIN, **_AT_ONCE},
    STREAMING_DILOCO: _PLAIN,
}


@dataclass(frozen=True, slots=True)
class RoundSync:
    """The way in which workers come together: in every step, or after rounds of local steps.

    method: every_step, gradients are reduced in each; local_sgd, parameters are averaged after a round; slowmo, the
        average's difference goes through a momentum; co2, so does that of the round before, while the average of this
        one is under way; diloco, through Nesterov's momentum; streaming_diloco, so do those of some layers at a time.
    steps: of a round. worker: whose parameters are one model, a rank (a GPU, or a tensor-parallel group of them) or a
        node (with stages as many nodes as there are); plans, gradients and shards are inside.
    lr, momentum: of the outer update. penalty: what co2 divides a difference by that is a round old: `constant`, by
        penalty_constant, or `gap_aware`, by how far the model has moved since. clip: the most that an element of co2's
        momentum may be, or null. fragments: of streaming_diloco, parts of the model's layers, averaged one after
        another, each once a round. delay: the local steps that an average is under way. mixing: the share that a worker
        keeps of its own parameters when an average comes.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    method: str = EVERY_STEP
    steps: int = 1
    worker: str = NODE
    lr: float = 1.0
    momentum: float = 0.0
    penalty: str = NO_PENALTY
    clip: float | None = None
    penalty_constant: float = 1.0
    fragments: int = 1
    delay: int = 0
    mixing: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in (("method", METHODS), ("worker", WORKERS), ("penalty", PENALTIES)):
            check_choice(f"sync.{name}", getattr(self, name), choices)
        check_whole_number("sync.steps", self.steps, 1, MOST_STEPS)
        for name, value, least, most in (
            ("lr", self.lr, 0.0, 10.0),
            ("momentum", self.momentum, 0.0, 1.0),
            ("penalty_constant", self.penalty_constant, 1.0, 1e6),
            ("mixing", self.mixing, 0.0, 1.0),
        ):
            known = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not known or not least <= value < most or (name == "lr" and value == 0):
                least_word = "above 0" if name == "lr" else f"of at least {least:g}"
                raise ValueError(f"sync.{name} is {value!r}; it takes a number {least_word} and below {most:g}")
        clip = self.clip
        if clip is not None and not (isinstance(clip, (int, float)) and not isinstance(clip, bool) and clip > 0):
            raise ValueError(f"sync.clip is {clip!r}; it takes a number above 0, or null")
        if self.method == CO2 and self.penalty == NO_PENALTY:
            raise ValueError(f"sync.penalty is {self.penalty}; sync=co2 takes {CONSTANT} or {GAP_AWARE}")
        if self.penalty_constant != 1 and self.penalty != CONSTANT:
            raise ValueError(
                f"sync.penalty_constant is {self.penalty_constant}; with sync.penalty={self.penalty} it takes 1"
            )
        for name, fixed in _FIXED[self.method].items():
            if getattr(self, name) != fixed:
                told = "null" if fixed is None else fixed
                raise ValueError(f"sync.{name} is {getattr(self, name)}; sync={self.method} takes {told}")
        # at most one fragment after a step, which is there before the next one is sent
        for name, least, most in (("fragments", 1, self.steps), ("delay", 0, self.steps - 1)):
            check_whole_number(f"sync.{name}", given := getattr(self, name), least)
            if given > most:
                takes = f"{least}" if most == least else f"a whole number from {least} to {most}"
                raise ValueError(f"sync.{name} is {given}; with sync.steps={self.steps} it takes {takes}")

    @property
    def in_rounds(self) -> bool:
        """Whether workers train apart in rounds."""
        return self.method != EVERY_STEP

    @property
    def age(self) -> int:
        """The rounds by which an average is old when it is used."""
        return 1 if self.method == CO2 else 0

    @property
    def under_way(self) -> float:
        """The share of fragments whose averages are under way at once, the most."""
        if self.age:
            return 1.0
        offsets = [self.offset(fragment) for fragment in range(self.fragments)]
        every = [sum((step - one) % self.steps < self.delay for one in offsets) for step in range(self.steps)]
        return max(every) / self.fragments

    def offset(self, fragment: int) -> int:
        """Returns the steps by which a fragment is averaged after the first one, and so after a round's begin."""
        return fragment * self.steps // self.fragments

    def worker_gpus(self, gpus_per_node: int, group: int = 1, stages: int = 1) -> int:
        """Returns the GPUs of a worker. group: of each rank, with tensor parallelism several. stages: of a pipeline,
        each on a node of the worker.

        Raises:
            ValueError: a rank has several stages.
        """
        self._check_stages(stages)
        return gpus_per_node * stages if self.worker == NODE else group

    def worker_cluster(self, cluster: Cluster, group: int = 1, stages: int = 1) -> Cluster:
        """Returns one worker's part of a cluster of GPUs, a cluster of its own: a node, or one for every stage, or a
        rank's `group` GPUs with their NICs and their share of the node's host memory and of what this is updated at.

        Raises:
            as `worker_gpus`.
        """
        self._check_stages(stages)
        if self.worker == NODE:
            return replace(cluster, num_nodes=stages)
        room, rate = (
            None if given is None else given * group / cluster.gpus_per_node
            for given in (cluster.host_memory, cluster.host_adam_bandwidth)
        )
        nics = max(1, cluster.nics_per_node * group // cluster.gpus_per_node)
        own = replace(cluster, num_nodes=1, gpus_per_node=group, nics_per_node=nics)
        return replace(own, host_memory=room, host_adam_bandwidth=rate)

    def _check_stages(self, stages: int) -> None:
        if stages > 1 and self.worker == RANK:
            raise ValueError(
                f"sync.worker is {RANK}; with parallel.pipeline_parallel={stages} every stage of a worker is on a node "
                f"of its own, so it takes {NODE}"
            )

    def is_last(self, step: int) -> bool:
        """Returns whether a step, counted from 0, is the last one of its round."""
        return (step + 1) % self.steps == 0

    def check_run(self, steps: int) -> None:
        """Refuses a run that ends within a round, whose seconds and loss would be those of no whole round.

        Raises:
            ValueError: it does.
        """
        if self.in_rounds and steps % self.steps:
            told = "is longer than the run" if self.steps > steps else "does not divide it"
            raise ValueError(
                f"sync.steps is {self.steps}, a round that {told}; with steps={steps} it takes a number that divides "
                f"{steps}"
            )


EVERY = RoundSync()
