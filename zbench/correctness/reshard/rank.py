"""One process of those that bring weights from training to generation: it moves them, and tells what it has."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.reshard.cases import NOTHING, Reshard, ReshardedGpu, values
from zbench.correctness.steps.choices import MODEL
from zbench.describe.arrays import Flags
from zbench.rollouts.gathers import ReshardedWeights, WeightParts
from zbench.rollouts.weights import Weight
from zbench.runtime.handlers.formats import Format
from zbench.runtime.handlers.machine import StepMachine
from zbench.runtime.handlers.messages import bytes_by_queue, open_messages
from zbench.runtime.handlers.optimizer import NoUpdate
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.store import Key, Slab
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.memory import WeightStore

_Held = tuple[WeightParts, Key, Format]


class ReshardRank:
    """A process. argument: how messages travel, "single" or "batched"."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        self.rank, self.num_ranks, self.board = rank, num_ranks, rendezvous.board
        self.device = rendezvous.open("cpu")
        self.group, self.way = dist.new_group(), argument

    def run(self, case: Reshard, made: ReshardedWeights, seed: int) -> ReshardedGpu:
        """Brings weights to generation and back; returns what was here. Collective."""
        node_of = np.zeros(self.num_ranks, np.int64)
        messages = open_messages(self.group, node_of, self.device, self.way == "batched")
        kernel = choose_kernel("auto", self.device, MODEL.head_dim, DTYPES[MODEL.element_bytes], MODEL.mask)
        runner = StepRunner(StepMachine(MODEL, self.device, kernel, messages, NoUpdate()), self.board)
        prepared = PreparedStep.of(made.step, self.rank, runner.machine, (), ())
        store, faults = WeightStore(self.device), list[str]()
        runner.stores = dict.fromkeys(prepared.places, store)
        mine = list(self._mine(made, prepared)) if runner.stores else []
        for one, key, of in mine:
            parts = tuple(np.flatnonzero(one.trained[self.rank]).tolist())
            if parts:
                begin, end = case.trained(self.rank, one.weight)
                own = torch.from_numpy(values(one.weight, seed)[begin:end].copy())
                store.put(key, Slab.of(of, parts, (0,), (own,)))
        for one, key, of in mine:
            store.make_room(key, of, (one.trained[self.rank], one.generated[self.rank], one.there[self.rank]))
        runner.run(prepared)
        peak, inside, generating = store.num_bytes(), list[bool](), 0
        for one, key, of in mine:
            store.drop_passing(key)
            if key in store.generated:
                found = store.generated[key].memory
                generating += found.nbytes
                faults += self._differs(
                    "generates with", one.weight, found, case.generated(self.rank, one.weight), seed
                )
            shard = _shard(store, key, of, one.trained[self.rank])
            if shard is not None:
                inside.append(store.is_inside(key, shard))
                faults += self._differs("trains with", one.weight, shard, case.trained(self.rank, one.weight), seed)
        kept = store.num_bytes()
        for one, key, of in mine:
            store.end_generation(key, of, one.trained[self.rank])
            shard = _shard(store, key, of, one.trained[self.rank])
            if shard is not None:
                faults += self._differs("has again", one.weight, shard, case.trained(self.rank, one.weight), seed)
        (_, received) = bytes_by_queue(messages.ends).get("parameters", (0, 0))
        return ReshardedGpu(received, peak, generating, kept, store.num_bytes(), tuple(inside), "".join(faults[:1]))

    def _mine(self, made: ReshardedWeights, prepared: PreparedStep) -> Iterator[_Held]:
        """Yields every weight that this GPU has some of, with its key and its format in stores."""
        parts = prepared.batches[0]
        for tensor, (one, number) in enumerate(made.tensors):
            if made.members[number][self.rank] and (one.there[self.rank].any() or one.trained[self.rank].any()):
                yield one, parts.key(tensor, 0), parts.formats[tensor]

    def _differs(self, what: str, weight: Weight, found: Tensor, span: tuple[int, int], seed: int) -> Iterator[str]:
        """Yields a sentence where values are not those of the whole weight, to the bit."""
        want = values(weight, seed)[span[0] : span[1]]
        if span == NOTHING or found.numpy().tobytes() != want.tobytes():
            yield f"what GPU {self.rank} {what} of {weight.name} is not [{span[0]}, {span[1]}) of it"


def _shard(store: WeightStore, key: Key, of: Format, trained: Flags) -> Tensor | None:
    """Returns what training has of a weight, None of nothing."""
    parts = tuple(np.flatnonzero(trained).tolist())
    return store.read(key, of, parts, (0,))[0] if parts else None
