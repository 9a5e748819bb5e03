"""One process of those that train by a peer, or by zbench's executor, and compare that with a dense one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.peers.cases import RATE, STEPS, PeerCase, Trained
from zbench.correctness.peers.counting import CountedCollectives
from zbench.correctness.peers.trainers import PeerTrainer, load_deepspeed, open_trainer
from zbench.correctness.steps.cases import Executed, ProcessOptions, StepCase
from zbench.correctness.steps.dense import drawn_weights
from zbench.correctness.steps.rank import StepRank
from zbench.describe.arrays import Ints
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.stepping.weights import network_weights
from zbench.runtime.training.dense import attention, dense_loss
from zbench.runtime.training.transformer import COMPUTE, Transformer


class PeerRank:
    """A process, on the CPU. argument: None."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.steps = StepRank(rank, num_ranks, rendezvous, ProcessOptions(device="cpu"))

    @staticmethod
    def prepare() -> None:
        """Loads, before processes are forked, what each would load in its first step: DDP asks torch's compiler about
        itself."""
        StepRank.prepare()
        import torch._dynamo  # noqa: F401

    def run(self, case: StepCase) -> Executed:
        """Executes a step of zbench's and compares it with one dense process. Collective."""
        return self.steps.run(case)

    def train(self, case: PeerCase) -> Trained:
        """Has a peer train for STEPS steps and compares it, step by step, with one dense process. Collective."""
        dtype = COMPUTE[case.model.element_bytes]
        whole = network_weights(case.model, drawn_weights(case.model, case.seed))
        wanted = {name: value.to(dtype).double() for name, value in whole.items()}
        network = Transformer(case.model.keeping_all, seed=0)
        network.load_state_dict(wanted)
        trainer = open_trainer(case.peer, network)
        losses, gradients, sent = 0.0, 0.0, []
        for _ in range(STEPS):
            loss, found, counted = self._step(trainer, case.words)
            want_loss, want = dense_loss(replace(case.model, element_bytes=8), wanted, _every(case.words))
            losses, gradients = max(losses, abs(loss / want_loss - 1)), max(gradients, _off(found, want))
            wanted = {name: value - RATE * want[name] for name, value in wanted.items()}
            sent.append(counted)
        return Trained(losses, gradients, _off(trainer.weights(), wanted), tuple(sent))

    def _step(
        self, trainer: PeerTrainer, words: tuple[tuple[Ints, ...], ...]
    ) -> tuple[float, dict[str, Tensor], Mapping[str, int]]:
        """Trains for a step; returns the loss of all processes, whole gradients and what was sent."""
        mine = words[self.rank]
        sizes = [len(one) for one in mine]
        tokens = torch.from_numpy(np.concatenate(mine))
        targets = torch.from_numpy(np.concatenate([np.append(one[1:], 0) for one in mine]))
        positions = torch.cat([torch.arange(size) for size in sizes])
        mean = sum(len(one) for one in _every(words)) / self.num_ranks
        with (counted := CountedCollectives(self.num_ranks)):
            loss = trainer.module(tokens, positions, targets, partial(_attend, sizes), mean)
            trainer.backward(loss)
        gradients, total = trainer.gradients(), loss.detach().double()
        dist.all_reduce(total)
        counted.backward = False
        with counted:
            trainer.update()
        return float(total) / self.num_ranks, gradients, dict(counted.sent)


class DeepSpeedRank(PeerRank):
    """A process in which DeepSpeed trains, too."""

    @staticmethod
    def prepare() -> None:
        """Loads what PeerRank does, and DeepSpeed."""
        PeerRank.prepare()
        load_deepspeed()


def _every(words: tuple[tuple[Ints, ...], ...]) -> list[Ints]:
    return [one for mine in words for one in mine]


def _attend(sizes: list[int], layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns the causal attention of sequences that lie one after another, each by its definition."""
    return torch.cat([attention(layer, *one) for one in zip(*(x.split(sizes) for x in (q, k, v)), strict=True)])


def _off(found: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> float:
    """Returns the largest difference, each over the largest element of the whole; infinite if there are not the same
    names."""
    if found.keys() != want.keys():
        return float("inf")
    return float(np.max([float((found[name] - want[name]).abs().max() / want[name].abs().max()) for name in want]))
