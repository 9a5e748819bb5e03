"""Seconds of a layer's linear modules, norms and activations, of a tensor-parallel group's exchanges, and of the head.

A term is matmuls at the rate that large ones reach, elementwise work through memory, and a start for each kernel
(docs/cost.md). Where a device has `matmul_shapes`, matmuls take what those of a whole step with as many tokens take.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from zbench.cost.loss import moved_bytes
from zbench.cost.matmul import WeightMatmuls, again_matmuls, head_matmuls, layer_matmuls
from zbench.cost.recompute import AGAIN_KERNELS, again_elementwise_bytes, again_flops, is_selective
from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
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
    expert_gpus: int
    expert_cut: int

    def linear_seconds(self, tokens: Ints | Floats, matmul_share: float = 1.0, slices: int = 1) -> Floats:
        """Returns the forward seconds of one layer's linear modules, norms and activations for `tokens` on a rank.

        matmul_share: the share of the matmuls that runs (a recomputation that is not the model's runs some again).
        slices: ranks that have so many tokens each and cut the matmuls of all of these among them, evenly, as pipelines
            that a planner chooses do.
        """
        flops = 2 * matmul_share * self.model.layer_matmul_params
        seconds = self._module_seconds(
            tokens,
            flops,
            self.model.elementwise_bytes,
            LAYER_KERNELS,
            lambda own: matmul_share * self._matmuls(slices).forward(own * slices),
        )
        return seconds + self.exchange_seconds(tokens)

    def gradient_seconds(self, tokens: Ints | Floats, slices: int = 1) -> Floats:
        """Returns the backward seconds of one layer's linear modules, without anything that is made again: twice the
        forward's, but for matmuls by shape. slices: as of `linear_seconds`."""
        if not self.is_by_shape:
            return 2 * self.linear_seconds(tokens, slices=slices)
        tokens, moved = np.asarray(tokens, np.float64), self.model.elementwise_bytes
        beside = self._module_seconds(tokens, 0.0, moved, LAYER_KERNELS, np.zeros_like) + self.exchange_seconds(tokens)
        return np.asarray(2 * beside + self._matmuls(slices).backward(tokens * slices), np.float64)

    def backward_linear_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the backward seconds of one layer's linear modules, without a whole forward that runs again."""
        return np.asarray(self.gradient_seconds(tokens) + self.again_seconds(tokens), np.float64)

    def again_seconds(self, tokens: Ints | Floats, slices: int = 1) -> Floats:
        """Returns the seconds of what selective recomputation runs again in a layer's backward, 0 without it: in a
        tensor-parallel group tokens are gathered for it before, and not behind matmuls for the weights' gradient. Where
        some layers have it, the mean over all. slices: as of `linear_seconds`."""
        if not is_selective(self.model):
            return np.zeros(np.shape(tokens))
        parts = again_flops(self.model), again_elementwise_bytes(self.model), AGAIN_KERNELS
        seconds = self._module_seconds(
            tokens, *parts, lambda own: self.feed_forward_again(slices).forward(own * slices)
        )
        return np.asarray(self.model.recomputed_share * (seconds + self.group_gather_seconds(tokens)), np.float64)

    @property
    def is_by_shape(self) -> bool:
        """Whether a layer's matmuls have the rate of their shape. Where a device has a curve of a model, that
        counts."""
        device = self.cluster.device
        return device.matmul_shapes and self.model.name not in device.matmul_by_tokens

    @property
    def large_rate(self) -> float:
        """FLOP/s of a rank in a layer's matmuls, both passes, with very many tokens, where these have the rate of their
        shape."""
        return self.tp * self._matmuls(1).large_rate

    def best_rate(self, passes: float) -> float:
        """Returns the FLOP/s that a rank reaches at most in a layer's matmuls by their shape, whatever its tokens: the
        mean over so many passes, of which, but for a single one, a backward is two."""
        return self.tp * self._matmuls(1).best_rate(passes)

    def _matmuls(self, slices: int) -> WeightMatmuls:
        return layer_matmuls(self.model, self._gpu, self.tp * slices, self.expert_gpus, self.expert_cut)

    def feed_forward_again(self, slices: int = 1) -> WeightMatmuls:
        """Returns the matmuls of a layer's feed-forward up to its activation, by the tokens of `slices` ranks together,
        as of `linear_seconds`."""
        return again_matmuls(self.model, self._gpu, self.tp * slices, self.expert_gpus, self.expert_cut)

    @property
    def _gpu(self) -> Device:
        """One of a rank's GPUs, as far as matmuls ask."""
        return self.cluster.device if self.tp == 1 else _one_of(self.cluster.device, self.tp)

    def _module_seconds(
        self, tokens: Ints | Floats, flops: float, moved: int, kernels: int, by_shape: Callable[[Floats], Floats]
    ) -> Floats:
        """Returns the seconds of modules with so many FLOPs of matmuls and so many bytes through memory a token.
        by_shape: the seconds of their matmuls where these have the rate of their shape, by tokens."""
        device, tokens = self.cluster.device, np.asarray(tokens, np.float64)
        curve, work = device.matmul_by_tokens.get(self.model.name), flops * tokens
        if curve is not None:
            matmul = work * curve.seconds(np.maximum(tokens, 1))
        else:
            matmul = by_shape(tokens) if device.matmul_shapes else work / device.matmul_flops
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

    def head_seconds(self, tokens: Ints | Floats, slices: int = 1) -> Floats:
        """Returns the seconds of output projection and loss, forward and backward. slices: as of `linear_seconds`."""
        device, model, tokens = self.cluster.device, self.model, np.asarray(tokens, np.float64)
        if device.matmul_shapes:  # curves are of layers
            matmul = head_matmuls(model, self._gpu, self.tp * slices).of_head(tokens * slices)
        else:
            matmul = 6 * model.head_params * tokens / device.matmul_flops
        return np.asarray(matmul + moved_bytes(model, tokens) / device.copy_bandwidth, np.float64)


@lru_cache(maxsize=16)
def _one_of(device: Device, tp: int) -> Device:
    """Returns one of the GPUs that `device` is a group of, with its own rates of matmuls and copies."""
    return replace(device, matmul_flops=device.matmul_flops / tp, copy_bandwidth=device.copy_bandwidth / tp)
