"""The adapter of PyTorch: a load balancer for its context parallelism that knows the documents of a pack.

    from zbench.adapters.torch_context_parallel import load_balancer
    balancer = load_balancer([70000, 5000, 300], 8, cluster="h200_4x8", model="llama_7b", num_nodes=1, device="cuda")
    buffers = _context_parallel_shard(mesh, [tokens, labels, positions], [1, 1, 1], load_balancer=balancer)

Every rank owns as many tokens as the others, of about equal area under the document mask. Keys and values are gathered
from all ranks whatever the balancer, so what it gains is the imbalance of areas and nothing else. PyTorch's interface
is private and may change; this is that of 2.13 (torch/distributed/tensor/experimental/_context_parallel).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zbench.adapters.frameworks import framework_module
from zbench.adapters.planning import Planning
from zbench.api.yamls import Named
from zbench.contracts.schedule import TokenPermutation
from zbench.describe.arrays import Ints
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model

MODULE = "torch.distributed.tensor.experimental._context_parallel._load_balancer"
_INSTALL = "pip install 'torch>=2.13'"


def load_balancer(
    lengths: Sequence[int],
    world_size: int,
    *,
    cluster: Named | Cluster,
    model: Named | Model,
    mask: str | None = None,
    num_nodes: int | None = None,
    device: Any = "cpu",
) -> Any:
    """Returns a load balancer of PyTorch's for a pack of documents. lengths: tokens of each, in the pack's order; their
    sum is a multiple of world_size. cluster, model, mask, num_nodes: as of Planning.of, a cluster of world_size ranks.

    Raises:
        ValueError: PyTorch has no such interface, the tokens cannot be shared evenly, or a name cannot be.
    """
    return load_balancer_of(Planning.of(cluster, model, mask, num_nodes).tokens(lengths, world_size), device)


def load_balancer_of(permutation: TokenPermutation, device: Any = "cpu") -> Any:
    """Returns a load balancer of PyTorch's that puts tokens in the order of a permutation.

    Raises:
        ValueError: PyTorch is not there, or has no such interface.
    """
    base: Any = framework_module(MODULE, "zbench.adapters.torch_context_parallel", _INSTALL)._LoadBalancer
    import torch

    class PlannedLoadBalancer(base):  # type: ignore[misc]
        """A load balancer whose order zbench planned."""

        def _generate_indices(self, restore: bool = False) -> torch.Tensor:
            """Returns int32 [1, tokens]: the order of the tokens, or with `restore` the way back."""
            order = torch.tensor(permutation.order, dtype=torch.int32, device=device)
            return (torch.argsort(order).to(torch.int32) if restore else order)[None]

    return PlannedLoadBalancer()


def areas(permutation: TokenPermutation) -> Ints:
    """Returns int64 [ranks]: the visible pairs of every rank's queries under the causal mask of documents.

    The largest over the mean is what a step's attention loses to imbalance.
    """
    lengths = np.array(permutation.lengths, np.int64)
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray((place[permutation.order] + 1).reshape(permutation.ranks, -1).sum(1), np.int64)
