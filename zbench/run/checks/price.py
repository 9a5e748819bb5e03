"""Estimates what a job takes of this machine, before anything large is made: memory of plans, room for the record.

Pure. The estimate is a floor, so that what works is never refused. Systems with a method `size` say what their plans
have at least: ring, allgather and ulysses. All others are priced by sequences and ranks only, a piece and a few bytes
of each sequence, however large their plans are. What it cannot say is how long a planner takes. Constants:
`python tests/bench/sizes.py` prints, for several systems and sizes, the memory that a step really took, and what
this estimate says of it.
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.cluster import MOST_RANKS
from zbench.describe.units import with_noun
from zbench.interfaces.abilities import DrawsLengths, HasContextLimit, HasOperationBytes, HasSize
from zbench.interfaces.dealt import undealt
from zbench.interfaces.protocols import Executor, Size, System, Workload
from zbench.plans.plan import Ints
from zbench.run.checks.contract import gives

# A hundred times the largest published batches (64M).
MOST_TOKENS = 2**32
# Floors, in bytes. An operation is the columns of zbench.plans.columns.TYPES, in a plan's two lists; a piece five
# columns of int64. A sequence is drawn and held by batch and plan, a rank has its queues, links and results.
OPERATION, PIECE, SEQUENCE, RANK = 25, 40, 128, 1024
# A step's line in the record: whatever is not per rank, and six numbers of at least four characters a rank.
LINE, LINE_RANK = 500, 24
_SAMPLE = 4096  # documents that are drawn to know a batch's number of sequences


@dataclass(frozen=True, slots=True)
class Price:
    """The size of a job, from which its price is estimated. sequences: of a batch, about. size: of a step's plans, at
    least. ranks: of the cluster. played: bytes that the executor needs for each operation, beside the plan's own."""

    sequences: int
    size: Size
    ranks: int
    played: int = 0

    @property
    def memory_bytes(self) -> int:
        """The bytes that planning, proving and playing a step needs at least."""
        held = (OPERATION + self.played) * self.size.operations + PIECE * self.size.pieces
        return held + SEQUENCE * self.sequences + RANK * self.ranks

    @property
    def words(self) -> str:
        """The size in words."""
        return (
            f"{with_noun(self.sequences, 'sequence')} on {with_noun(self.ranks, 'rank')}, in plans of at least "
            f"{self.size.operations:,} operations and {with_noun(self.size.pieces, 'piece')} of sequences"
        )


def check_size(num_nodes: int, gpus_per_node: int, tokens_per_gpu: int) -> None:
    """Refuses clusters and batches beyond all that zbench is made for, whatever the machine.

    Raises:
        ValueError: one of the keys is too large; the message says which, and how large it may be.
    """
    ranks = num_nodes * gpus_per_node
    if ranks > MOST_RANKS:
        raise ValueError(
            f"cluster.num_nodes x cluster.gpus_per_node is {num_nodes:,} x {gpus_per_node:,}; zbench takes at most "
            f"{MOST_RANKS:,} GPUs"
        )
    if ranks * tokens_per_gpu > MOST_TOKENS:
        raise ValueError(
            f"tokens_per_gpu is {tokens_per_gpu:,}; with {with_noun(ranks, 'GPU')} it may be at most "
            f"{MOST_TOKENS // ranks:,}, for batches of {MOST_TOKENS:,} tokens"
        )


def priced(system: System, workload: Workload, tokens: int, ranks: int, executor: Executor | None = None) -> Price:
    """Prices a step of `system`. ranks: of its plans. executor: the one that is to run it.

    Raises:
        zbench.run.checks.contract.PlugInError: the system's size() failed, or gave no Size.
    """
    lengths = drawn(workload, tokens)
    sequences = max(1, round(tokens / float(lengths.mean())))
    whole = undealt(system)
    played = executor.operation_bytes if isinstance(executor, HasOperationBytes) else 0
    if not isinstance(whole, HasSize):
        return Price(sequences, Size(operations=2, pieces=sequences), ranks, played)  # an attend, forward and backward
    size = gives(whole, ".size", "lengths and a number of sequences", Size, lambda: whole.size(lengths, sequences))
    return Price(sequences, size, ranks, played)


def drawn(workload: Workload, tokens: int) -> Ints:
    """Draws lengths like those of the workload's batches: some documents of one that draws them, else one of all
    tokens."""
    if not isinstance(workload, DrawsLengths) or not type(workload).__module__.startswith("zbench."):
        return np.array([tokens], np.int64)
    lengths = np.asarray(workload.draw(np.random.default_rng(0), _SAMPLE), np.int64)
    limit = workload.context_limit if isinstance(workload, HasContextLimit) else tokens
    return np.minimum(lengths, min(tokens, limit))


def check_memory_here(
    price: Price, free_bytes: int, key: str, cluster: str, tokens: str, may_group: bool = False
) -> None:
    """Refuses a step that this machine has no memory to plan and play.

    key: what chose the system, as in system=ring. cluster, tokens: the keys that make the job smaller, as they are.
    may_group: whether GPUs could be tensor-parallel groups, each of which is one rank of the plans.

    Raises:
        ValueError: it needs more than `free_bytes`; the message says how much, of what, and what to change.
    """
    if price.memory_bytes > free_bytes:
        leave = " (or baseline=null)" if key.startswith("baseline") else " (or another system)"
        if may_group:
            leave += ", or parallel.tensor_parallel above 1, as a group of GPUs is one rank of plans"
        raise ValueError(
            f"{key} needs an estimated {price.memory_bytes / 2**30:,.1f} GiB of this machine's memory at least, for "
            f"{price.words}, and {free_bytes / 2**30:,.1f} GiB are free: use less than {cluster} or {tokens}{leave}"
        )


def check_record(steps: int, runs: int, ranks: int, out: str, free_bytes: int | None) -> None:
    """Refuses more steps than the record has room for.

    Raises:
        ValueError: the steps of `runs` runs need more than `free_bytes`.
    """
    needed = steps * runs * (LINE + LINE_RANK * ranks)
    if free_bytes is not None and needed > free_bytes:
        raise ValueError(
            f"out is {out!r}, which can grow by {free_bytes / 1e9:,.1f} GB; the record of steps={steps:,} takes an "
            f"estimated {needed / 1e9:,.1f} GB at least: use fewer steps or another file"
        )
