"""The peers as they are used: a network wrapped by each, its backward, its update, and what it has by name.

Every loss is of a process's own tokens, over the mean number of tokens of a process: what averages gradients over
processes, as all of these do, then has that of the mean over all tokens.
"""

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from zbench.correctness.peers.cases import RATE, Peer
from zbench.runtime.training.deepspeed import start_deepspeed
from zbench.runtime.training.transformer import Transformer


class PeerTrainer(Protocol):
    """A network in a peer's hands. module: to be called; all else is collective."""

    module: Callable[..., Tensor]

    def backward(self, loss: Tensor) -> None:
        """Computes gradients, and averages them over processes."""

    def gradients(self) -> dict[str, Tensor]:
        """Returns whole gradients by parameter name, between backward and update."""

    def update(self) -> None:
        """Takes a step of SGD, and drops gradients."""

    def weights(self) -> dict[str, Tensor]:
        """Returns whole parameters by name, after an update."""


class TorchTrainer:
    """Torch's own: DDP, and FSDP2 with a unit for each layer and one for the rest."""

    def __init__(self, peer: Peer, network: Transformer) -> None:
        self.network: nn.Module = network
        self.module: Callable[..., Tensor] = network
        if peer.family == "ddp":
            self.module = DistributedDataParallel(network)
            return
        mesh = _mesh(peer.told("mesh"))
        for unit in (*network.layers, network):
            fully_shard(unit, mesh=mesh, reshard_after_forward=peer.told("reshard_after_forward"))

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def gradients(self) -> dict[str, Tensor]:
        return {name: _whole(p.grad) for name, p in self.network.named_parameters() if p.grad is not None}

    @torch.no_grad()
    def update(self) -> None:
        """Takes a step of SGD, written out: torch's class would take seconds to import torch's compiler."""
        for p in self.network.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=RATE)
                p.grad = None

    def weights(self) -> dict[str, Tensor]:
        return {name: _whole(p.detach()) for name, p in self.network.named_parameters()}


def _mesh(inner: int | None) -> DeviceMesh:
    """Returns a mesh of all processes; inner: how many are in the inner of two dimensions, over which FSDP2 cuts."""
    every = torch.arange(dist.get_world_size())
    if inner is None:
        return DeviceMesh("cpu", every)
    return DeviceMesh("cpu", every.view(-1, inner), mesh_dim_names=("replicate", "shard"))


class DeepSpeedTrainer:
    """DeepSpeed's engine with torch's SGD: none of its own optimizers, which it would compile."""

    def __init__(self, peer: Peer, network: Transformer) -> None:
        import deepspeed

        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,  # it clips at a norm of 1 where it is not told to leave that
            "zero_allow_untested_optimizer": True,  # it tests some of torch's and its own
            "zero_optimization": dict(peer.settings),
        }
        self.network = network
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
        self.module: Any = deepspeed.initialize(model=network, optimizer=optimizer, config=config)[0]

    def backward(self, loss: Tensor) -> None:
        self.module.backward(loss)

    def gradients(self) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(p) for name, p in self.network.named_parameters()}

    def update(self) -> None:
        self.module.step()

    def weights(self) -> dict[str, Tensor]:
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self.network.parameters())):  # as they are where none is cut
            return {name: p.detach().clone() for name, p in self.network.named_parameters()}


def open_trainer(peer: Peer, network: Transformer) -> PeerTrainer:
    """Hands a network to a peer, which may change it. Collective."""
    if peer.family != "deepspeed":
        return TorchTrainer(peer, network)
    warnings.simplefilter("ignore")  # it calls names of torch that are deprecated
    os.environ["LOCAL_RANK"] = str(dist.get_rank())  # which it asks for
    start_deepspeed()
    return DeepSpeedTrainer(peer, network)


def load_deepspeed() -> None:
    """Imports DeepSpeed for processors, whatever the machine has: it chooses when it is imported, by the environment.

    With it comes what it would import in its first step: torch's compiler, for an optimizer that is not used.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it warns of optimizers that it has not tested


def _whole(tensor: Tensor) -> Tensor:
    """Returns a copy, gathered from all processes where it is sharded."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()
