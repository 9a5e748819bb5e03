"""Seconds of a layer's linear modules, norms and activations, of a tensor-parallel group's exchanges, and of the head.

A term is matmuls at the rate that large ones reach, elementwise work through memory, and a start for each kernel
(docs/cost.md).
"""

import numpy as np

from zbench.cost.loss import moved_bytes
from zbench.cost.recompute import AGAIN_KERNELS, again_elementwise_bytes, again_flops, is_selective
from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.links import NVLINK, Domain, gathering
from zbench.describe.model import Model

LAYER_KERNELS = 20  # kernels of a layer's linear part, forward: 7 matmuls and the elementwise between them (a count)
SHOWN = 4  # tensor parallelism's gathers and reductions of a layer, either direction, that its matmuls wait for
HIDDEN = 2  # gathers of the backward that run behind matmuls


class LinearCost:
    """The part of the cost model that is of linear modules; zbench.cost.cost.Cost has the fields, and what they
    mean."""

    __slots__ = ()
    cluster: Cluster
    model: Model
    tp: int
    inner: tuple[Domain, ...]

    def linear_seconds(self, tokens: Ints | Floats, matmul_share: float = 1.0) -> Floats:
        """Returns the forward seconds of one layer's linear modules, norms and activations for `tokens` on a rank.

        matmul_share: the share of the matmuls that runs (a recomputation that is not the model's runs some again).
        """
        flops = 2 * matmul_share * self.model.layer_matmul_params
        seconds = self._module_seconds(tokens, flops, self.model.elementwise_bytes, LAYER_KERNELS)
        return seconds + self.exchange_seconds(tokens)

    def backward_linear_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the backward seconds of one layer's linear modules, without a whole forward that runs again."""
        return np.asarray(2 * self.linear_seconds(tokens) + self.again_seconds(tokens), np.float64)

    def again_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds of what selective recomputation runs again in a layer's backward, 0 without it: in a
        tensor-parallel group tokens are gathered for it before, and not behind matmuls for the weights' gradient. Where
        some layers have it, the mean over all."""
        if not is_selective(self.model):
            return np.zeros(np.shape(tokens))
        parts = again_flops(self.model), again_elementwise_bytes(self.model), AGAIN_KERNELS
        seconds = self._module_seconds(tokens, *parts) + self.group_gather_seconds(tokens)
        return np.asarray(self.model.recomputed_share * seconds, np.float64)

    def _module_seconds(self, tokens: Ints | Floats, flops: float, moved: int, kernels: int) -> Floats:
        """Returns the seconds of modules with so many FLOPs of matmuls and so many bytes through memory a token."""
        device, tokens = self.cluster.device, np.asarray(tokens, np.float64)
        curve, work = device.matmul_by_tokens.get(self.model.name), flops * tokens
        matmul = work / device.matmul_flops if curve is None else work * curve.seconds(np.maximum(tokens, 1))
        launches = np.where(tokens > 0, kernels * device.kernel_seconds, 0.0)
        return np.asarray(matmul + moved * tokens / device.copy_bandwidth + launches, np.float64)

    def group_gather_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds of one gather (or reduction) of hidden states inside a tensor-parallel group: each GPU's
        share to all others."""
        tokens, size, c = np.asarray(tokens, np.float64), self.model.hidden * self.model.element_bytes, self.cluster
        node = (c.links[NVLINK].rate / self.tp, c.nvlink_latency), self.tp
        levels = [*(((one.link.rate, one.latency), one.gpus) for one in self.inner), node]
        seconds, latency = np.zeros(tokens.shape), 0.0
        for (port, each), within, hops in gathering(levels, self.tp):
            received = tokens * size * (self.tp - within) / self.tp / within
            seconds, latency = np.maximum(seconds, received / port), latency + hops * each
        return np.asarray(seconds + latency * (tokens > 0), np.float64)

    def exchange_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds that a layer's linear modules wait for inside a tensor-parallel group, in each of a
        step's passes.

        An even share for each pass, as the backward is two times the forward to whoever plans and plays linear
        modules: a layer's sum is exact, its forward takes a little too little and its backward as much too much.
        """
        again = self.model.forwards_again
        return SHOWN * (2 + again) / (3 + again) * self.group_gather_seconds(tokens)

    def head_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds of output projection and loss, forward and backward."""
        device, model, tokens = self.cluster.device, self.model, np.asarray(tokens, np.float64)
        matmul = 6 * model.head_params * tokens / device.matmul_flops
        return np.asarray(matmul + moved_bytes(model, tokens) / device.copy_bandwidth, np.float64)
