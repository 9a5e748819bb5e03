"""Keeps a Transformer's parameters, gradients and optimizer state on ranks. Not the network, nor when it runs.

Replicated: every rank holds all of them (the state too: ZeRO-1's split of it is not done). Sharded: every rank
holds 1/ranks of each parameter, with its gradient and state (torch's fully_shard). In both, parameters are
float32 (float64 under float64) and cast to the activations' dtype at use, gradients are summed in float32 over
micro-batches and ranks, and a step is

    for each micro-batch: begin(last); the network's loss.backward()
    finish(); step()

on every rank alike, with tokens or without: all of these but begin() are, or may be, collective.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from zbench.runtime.job.job import AdamW
from zbench.runtime.kernels.elementwise import wide
from zbench.runtime.training.reduction import Reduction
from zbench.runtime.training.transformer import Transformer


def build(settings: AdamW, network: nn.Module) -> torch.optim.AdamW:
    """Makes the optimizer of `network`'s parameters as they are now, its state made (zeros), in one fused kernel."""
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True
    )
    # Adam makes its state in its first step; made here, a checkpoint has the same entries at every step.
    for p in parameters:
        step = torch.zeros((), dtype=torch.float32, device=p.device)
        optimizer.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return optimizer


class Parameters(ABC):
    """The parameters as a trainer needs them, wherever they live; made from a network on any device, "meta" too.

    A network on "meta" gets its initial weights here, so that no rank ever holds more than its share of them
    and a few whole parameters.
    """

    def __init__(self, network: Transformer, optimizer: AdamW, device: torch.device) -> None:
        materialise(network, device)
        self.network, self.optimizer = network, build(optimizer, network)

    @abstractmethod
    def begin(self, last: bool) -> None:
        """Prepares a micro-batch's forward; `last`: it is the step's last one."""

    @abstractmethod
    def finish(self) -> None:
        """Ends the reduction after the last backward: gradients are the sums over all ranks (on a GPU: once its queue
        is done)."""

    @abstractmethod
    def step(self) -> None:
        """Takes one step of the optimizer, and drops gradients."""

    @abstractmethod
    def drop(self) -> None:
        """Drops gradients."""

    @abstractmethod
    def close(self) -> None:
        """Ends threads, where there are any."""

    def gradients(self) -> dict[str, Tensor]:
        """Returns, after finish(), every whole gradient by parameter name, on the CPU of every rank. Collective."""
        return {name: _whole(p.grad) for name, p in self.network.named_parameters() if p.grad is not None}

    def weights(self) -> dict[str, Tensor]:
        """Returns every whole parameter by name, a copy on the CPU of every rank. Collective."""
        return {name: _whole(p.detach()) for name, p in self.network.named_parameters()}

    def state(self) -> dict[str, Any]:
        """Returns parameters and optimizer state for torch.distributed.checkpoint to save, or to load into."""
        model, optimizer = get_state_dict(self.network, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over a state() that a checkpoint was loaded into."""
        set_state_dict(
            self.network,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


class Replicated(Parameters):
    """Parameters that are all on every rank; gradients are summed by `reduction` while the last backward goes on.

    Every gradient is a piece of one flat buffer, and parts of that are what is reduced: nothing is copied. A part is a
    layer's, or those before or after all layers; it leaves once the backward is done with it and with all behind it, in
    the same order on every rank. The sums are equal from run to run on gloo, and on NCCL where it chooses the same
    algorithm.
    """

    def __init__(
        self, network: Transformer, optimizer: AdamW, reduction: Reduction, device: torch.device | str
    ) -> None:
        super().__init__(network, optimizer, torch.device(device))
        self._reduction = reduction
        groups = _parts(network)
        rooms = [-(-sum(p.numel() for p in group) // reduction.unit) * reduction.unit for group in groups]
        self._flat = torch.zeros(sum(rooms), dtype=groups[0][0].dtype, device=device)
        self._parts = [(len(group), room) for group, room in zip(groups, self._flat.split(rooms), strict=True)]
        for at, group in enumerate(groups):
            sizes = [p.numel() for p in group]
            for p, piece in zip(group, self._parts[at][1][: sum(sizes)].split(sizes), strict=True):
                p.grad = piece.view_as(p)
                p.register_post_accumulate_grad_hook(partial(self._added, at))
        self._missing = [0] * len(groups)
        self._started = 0
        self._last = False

    def begin(self, last: bool) -> None:
        self._last = last
        self._missing = [count for count, _ in self._parts]

    def _added(self, part: int, _: Tensor) -> None:
        """Notes that the backward is done with a parameter's gradient."""
        if self._last:
            self._missing[part] -= 1
            self._reduce()

    def _reduce(self) -> None:
        """Starts what may leave by now."""
        while self._started < len(self._parts) and self._missing[self._started] == 0:
            self._reduction.start(self._parts[self._started][1])
            self._started += 1

    def finish(self) -> None:
        self._missing = [0] * len(self._parts)  # what no micro-batch used has a gradient too, of zeros
        self._reduce()
        self._reduction.finish()
        self._started = 0

    def step(self) -> None:
        self.optimizer.step()
        self.drop()

    def drop(self) -> None:
        self._flat.zero_()

    def close(self) -> None:
        self._reduction.close()


def _parts(network: Transformer) -> list[list[nn.Parameter]]:
    """Returns the parameters of each layer, and those before and after all, in the order in which a backward is done
    with them."""
    layer_of = {p: at for at, layer in enumerate(network.layers) for p in layer.parameters()}
    groups: list[list[nn.Parameter]] = []
    before: int | None = -1
    for p in network.parameters():
        if not groups or layer_of.get(p) != before:
            groups.append([])
        before = layer_of.get(p)
        groups[-1].append(p)
    return groups[::-1]


class Sharded(Parameters):
    """Parameters of which each rank of `group` has 1/ranks: torch's fully_shard, a unit a layer and one for the rest.

    A unit's parameters are gathered before its forward and before its backward (the rest's before the forward
    only). Gradients are reduced unit by unit inside the last micro-batch's backward, whose time has theirs
    in it: finish() has nothing left to do. Until then every rank holds whole gradients. Under bfloat16 a
    unit is gathered in it, and its gradient is rounded to it once a micro-batch before it is summed in float32.
    """

    def __init__(
        self, network: Transformer, optimizer: AdamW, group: dist.ProcessGroup, device: torch.device | str
    ) -> None:
        device = torch.device(device)
        mesh = DeviceMesh.from_group(group, device.type)
        policy = MixedPrecisionPolicy(network.dtype, wide(network.dtype), cast_forward_inputs=False)
        for module in (*network.layers, network):
            unit = fully_shard(module, mesh=mesh, mp_policy=policy)
            unit.set_gradient_divide_factor(1.0)  # sums: every rank's loss is divided by all tokens already
            unit.set_force_sum_reduction_for_comms(True)
        super().__init__(network, optimizer, device)
        self._root = unit

    def begin(self, last: bool) -> None:
        self._root.set_requires_gradient_sync(last)

    def finish(self) -> None:
        pass  # the last backward did it

    def step(self) -> None:
        self.optimizer.step()
        self.drop()

    def drop(self) -> None:
        self.optimizer.zero_grad()

    def close(self) -> None: ...


@torch.no_grad()
def materialise(network: Transformer, device: torch.device) -> None:
    """Brings the network to `device`; draws its initial weights, or the shards of them, where it has none yet."""
    if not any(p.is_meta for p in network.parameters()):
        network.to(device)
        return
    network.to_empty(device=device)
    for p, drawn in network.drawn():
        value = drawn.to(device, p.dtype)
        if isinstance(p, DTensor):  # every rank drew the same: each cuts its own shard out
            value = distribute_tensor(value, p.device_mesh, p.placements, src_data_rank=None)
        p.copy_(value)


def _whole(tensor: Tensor) -> Tensor:
    """Returns a copy on the CPU, gathered from all ranks where it is sharded."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to("cpu", copy=True)
