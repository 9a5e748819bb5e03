"""The peers, what they and zbench's executor train, and what a process came to. No torch: the driver is without."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import MODEL
from zbench.describe.arrays import Ints
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import Model
from zbench.passes.reverse import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.step.passes.build import whole_step

LENGTHS = (23, 1, 7, 2, 5, 3)  # of sequences, again and again
STEPS = 3  # that a peer trains; bytes are the last one's: DDP and DeepSpeed agree on an order in their first two
RATE = 0.1  # of the peers' optimizer, SGD
# Of differences over the largest element of a gradient or parameter, by bytes of an element. In float32 torch's own DDP
# comes to 9e-6 in three steps; a process left out is above 0.1 (tests/correctness/peers/test_cases.py).
LIMITS = {8: 1e-12, 4: 1e-4}
PARAMETERS, GRADIENTS, OTHER = "parameters", "gradients", "other"  # what messages are of
FAMILIES = {"ddp": "torch", "fsdp2": "torch", "deepspeed": "deepspeed"}  # peers, and the packages that have them


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer with its settings. family: of FAMILIES. sharding: zbench's ZeRO stage that is set beside it, or one of
    DEGREES. settings: what it is told, by its own names; mesh: how many processes are in the inner of two dimensions of
    an FSDP2's. element_bytes: of parameters and gradients."""

    family: str
    sharding: str
    settings: tuple[tuple[str, bool | int], ...]
    element_bytes: int

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.settings)
        return f"{self.family}{f' {told}' if told else ''}"

    def told(self, name: str) -> bool | int | None:
        """Returns a setting, None where it is left to the peer."""
        return dict(self.settings).get(name)


# DeepSpeed's gradients travel in float32 at most (deepspeed/runtime/config.py, get_communication_data_type), so all of
# it is float32. Of a model as small as this one its defaults for stage 3 would release nothing: they keep parameters
# under 100,000 elements, what is needed again within a billion, and what is prefetched, 50 million ahead.
RELEASED = (
    ("stage3_param_persistence_threshold", 0),
    ("stage3_max_reuse_distance", 0),
    ("stage3_prefetch_bucket_size", 0),
)
PAIR = 2
DEGREES: Mapping[str, ShardDegrees] = {  # of more than two processes, an even number
    "3 in pairs": ShardDegrees(PAIR, PAIR, PAIR, PAIR),
    "3, backward in pairs": ShardDegrees(WORLD, PAIR, WORLD, WORLD),
}
PEERS = (
    Peer("ddp", "none", (), 8),
    Peer("fsdp2", "2", (("reshard_after_forward", False),), 8),
    Peer("fsdp2", "3", (), 8),
    Peer("fsdp2", "3", (("reshard_after_forward", True),), 8),
    Peer("fsdp2", "3 in pairs", (("mesh", PAIR),), 8),
    Peer("fsdp2", "3, backward in pairs", (("reshard_after_forward", PAIR),), 8),
    Peer("deepspeed", "1", (("stage", 1),), 4),
    Peer("deepspeed", "2", (("stage", 2),), 4),
    Peer("deepspeed", "2", (("stage", 2), ("use_multi_rank_bucket_allreduce", False)), 4),
    Peer("deepspeed", "3", (("stage", 3),), 4),
    Peer("deepspeed", "3", (("stage", 3), *RELEASED), 4),
    Peer("deepspeed", "3, backward in pairs", (("stage", 3), ("zero_hpz_partition_size", PAIR), *RELEASED), 4),
)


@dataclass(frozen=True)
class PeerCase:
    """A peer's training. model: with the peer's element_bytes. words: token ids of every rank's sequences. seed: of
    the parameters."""

    peer: Peer
    model: Model
    words: tuple[tuple[Ints, ...], ...]
    seed: int


@dataclass(frozen=True)
class Trained:
    """The outcome of a process: the largest differences to one dense process, over the largest element, of the losses,
    of the gradients of every step, and of the parameters after the last. sent: of every step, bytes that all processes
    send together, by PARAMETERS, GRADIENTS and OTHER."""

    loss: float
    gradients: float
    parameters: float
    sent: tuple[Mapping[str, int], ...]


def step_of(sharding: str, element_bytes: int, ranks: int, seed: int) -> StepCase:
    """Returns zbench's step of data parallelism over `ranks` GPUs: different sequences on each, two on most."""
    model = replace(MODEL, element_bytes=element_bytes, lse_bytes=element_bytes)
    every = np.arange(2 * ranks - 1)
    lengths = np.array(LENGTHS, np.int64)[every % len(LENGTHS)]
    builder = Builder(lengths, ranks, model.num_heads, sequences=every)
    ulysses_ring(builder, every, every % ranks, np.arange(ranks).reshape(ranks, 1, 1))
    plan = reverse(builder.build(), "keep")
    return StepCase.of(whole_step(model, [plan], 1, DEGREES.get(sharding, sharding)), model, [plan], 1, seed)


def training_of(peer: Peer, ranks: int, seed: int) -> PeerCase:
    """Returns what a peer trains: the same parameters, and on every rank the same sequences, as zbench's step has."""
    case = step_of(peer.sharding, peer.element_bytes, ranks, seed)
    words = tuple(tuple(case.sequences[one] for one in sorted(case.sequences)[rank::ranks]) for rank in range(ranks))
    return PeerCase(peer, case.model, words, seed)
