"""A process that trains as torch's post-local SGD does, and one of zbench's rounds that tells its parameters."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zbench.describe.model import Model
from zbench.runtime.job.job import AdamW
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.stepping.comparison import Piece, state_pieces
from zbench.runtime.stepping.dense import dense_gradients
from zbench.runtime.stepping.round_rank import RoundRank

MATRICES = ("wq", "wkv", "wo", "wz", "wd", "we", "wh")  # that weights decay in


class PostLocalRank:
    """A worker: torch's AdamW, and its optimizer that averages parameters by torch's averager. argument: the model,
    parameters, AdamW's settings, the steps of a round, and of every step the sequences of every worker."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        self.rank, self.argument = rank, argument
        rendezvous.open("cpu")

    @staticmethod
    def prepare() -> None:
        """Loads, before processes are forked, what each would load: with its optimizers comes torch's compiler."""
        torch.empty_like(torch.empty(1, device="meta"), device="cpu")
        from torch.distributed.optim import PostLocalSGDOptimizer  # noqa: F401

    def train(self) -> tuple[list[float], dict[str, Tensor]]:
        """Trains; returns the sum of tokens' losses of every step, and the parameters after the last."""
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        model: Model
        model, weights, settings, steps, parts = self.argument
        of, losses = AdamW(**settings), []
        leaves = {name: torch.nn.Parameter(value.clone()) for name, value in weights.items()}
        groups = [
            {"params": [one for name, one in leaves.items() if (name in MATRICES) == decays], "weight_decay": decay}
            for decays, decay in ((True, of.weight_decay), (False, 0.0))
        ]
        local = torch.optim.AdamW(groups, lr=of.lr, betas=(of.beta1, of.beta2), eps=of.epsilon)
        # It averages after the steps warmup_steps, warmup_steps + period, ..., counted from 0.
        optimizer = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=steps, warmup_steps=steps - 1))
        for step in parts:
            mine = [np.array(one, np.int64) for one in step[self.rank]]
            found = dense_gradients(model, {name: one.detach() for name, one in leaves.items()}, mine, ())
            for name, leaf in leaves.items():
                leaf.grad = found.gradients[name] / sum(map(len, mine))
            optimizer.step()
            losses.append(found.loss)
        return losses, {name: one.detach() for name, one in leaves.items()}


class TellingRank(RoundRank):
    """A rank of a run in rounds that tells the parameters it has."""

    def pieces(self) -> list[Piece]:
        """Returns the cells of parameters on this rank."""
        assert self.resting is not None, "it has trained"
        return state_pieces(self.resting, self.runner.stores)
