"""Sets up the parts of a rank's trainer, as its job and its device have it. Collective: every rank makes the same."""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from zbench.runtime.clocks.pace import Pacer
from zbench.runtime.job.job import Job
from zbench.runtime.kernels.elementwise import choose_elementwise
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES, Shape
from zbench.runtime.processes.board import Board
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.training.parameters import Parameters, Replicated, Sharded
from zbench.runtime.training.reduction import Flat, TwoLevel
from zbench.runtime.training.transformer import Transformer
from zbench.runtime.transport.nccl import transport_of
from zbench.runtime.transport.transport import Endpoint


def parameters_of(job: Job, rank: int, device: torch.device, sharing: int, say: Callable[[str], None]) -> Parameters:
    """Makes the network with its first weights, and its optimizer. sharing: ranks on this rank's GPU.

    Raises:
        ValueError: sharded parameters on a GPU that ranks share.
    """
    model = job.cost.model
    fused = choose_elementwise(job.compile, device)
    if fused.lacks and rank == 0:
        print(f"zbench: norms, RoPE and SwiGLU are {fused.name}", file=sys.stderr)
    parameters = _placed(job, Transformer(model, job.seed, "meta", fused), device, sharing)
    if fused.is_compiled:
        fused.warm(model, DTYPES[model.element_bytes], device, say)
    return parameters


def _placed(job: Job, network: Transformer, device: torch.device, sharing: int) -> Parameters:
    optimizer, everyone, cluster = job.optimizer, dist.group.WORLD, job.cost.cluster
    assert everyone is not None, "rendezvous.open() made it"
    if job.parameters == "sharded":
        if sharing > 1:
            raise ValueError(
                f"executor.parameters is 'sharded'; {sharing} ranks share a GPU here, where fully_shard "
                "has no collectives (NCCL refuses them): it takes replicated"
            )
        return Sharded(network, optimizer, everyone, device)
    if device.type == "cpu" and cluster.num_nodes > 1 and cluster.gpus_per_node > 1:
        return Replicated(network, optimizer, TwoLevel(cluster.num_nodes, cluster.gpus_per_node), device)
    return Replicated(network, optimizer, Flat(everyone), device)


def engine_of(job: Job, device: torch.device, board: Board, pace: Pacer) -> Engine:
    """Makes the engine that runs plans: the kernel, and messages on a group of their own, so that collectives cannot
    come between."""
    model = job.cost.model
    post = Endpoint.on(dist.new_group(), job.cost.cluster.node_of, device)
    kernel = choose_kernel(job.kernel, device, model.head_dim, DTYPES[model.element_bytes], model.mask)
    return Engine(Shape(model, device), kernel, post, transport_of(post.group), board, pace)
