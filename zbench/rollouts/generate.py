"""The clock of generation: every sequence until it ends, by continuous batching on replicas of a tensor-parallel group.

A pass reads all weights once, whatever it computes, and takes the longer of reading and computing; so does attention
with keys and values. Terms: Seesaw (arXiv 2503.06433), appendix A, with this project's rates of a device; causal
attention is half of its prefill. Launches of kernels, sampling and what a host does between passes are not in it.
"""

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.cost.collective import run_seconds
from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.checks import is_whole
from zbench.describe.model import CUT_BY_SLICES

MEMORY_SHARE = 0.9  # vLLM's default of gpu_memory_utilization


@dataclass(frozen=True)
class Generation:
    """The seconds of generation, simulated, float64 [replicas], with passes that decode and the most sequences at once,
    int64 [replicas]. tokens: of all prompts and responses. ends: when each sequence has ended, float64 [sequences]."""

    seconds: Floats
    decodes: Ints
    most: Ints
    tokens: int
    ends: Floats


@dataclass(frozen=True)
class GenerationCost:
    """The cost model of a replica of `tensor` GPUs. cost: of GPUs. memory_share: of a GPU's memory, for weights and
    keys and values. tensor_key: what a user sets it by, for sentences."""

    cost: Cost
    tensor: int
    memory_share: float
    tensor_key: str = "tensor"

    def __post_init__(self) -> None:
        model, cluster = self.cost.model, self.cost.cluster
        if model.num_experts > 1:
            raise ValueError(f"model {model.name} has num_experts={model.num_experts}; generation takes one without")
        for name, size in (
            *((name, getattr(model, name)) for name in CUT_BY_SLICES),
            ("cluster.gpus_per_node", cluster.gpus_per_node),
        ):
            if size % self.tensor:
                raise ValueError(f"{self.tensor_key} is {self.tensor}; it has to divide {name}={size}")
        if not (isinstance(self.memory_share, float) or is_whole(self.memory_share)) or not 0 < self.memory_share <= 1:
            raise ValueError(f"memory_share is {self.memory_share!r}; it takes more than 0 and at most 1")
        if self.kv_tokens < 1:
            told = f"replicas of {self.tensor_key}={self.tensor} have no room for keys and values beside weights"
            raise ValueError(f"model {model.name} does not fit: {told} in memory_share={self.memory_share}")

    @property
    def kv_tokens(self) -> int:
        """The tokens whose keys and values a replica has room for beside its weights."""
        model = self.cost.model
        memory = self.memory_share * self.tensor * self.cost.cluster.device.memory_bytes
        left = memory - model.element_bytes * model.total_params
        return int(left // (model.num_layers * self._kv_bytes))

    @property
    def _kv_bytes(self) -> int:
        model = self.cost.model
        return 2 * model.num_kv_heads * model.head_dim * model.element_bytes

    def prefill_seconds(self, prompts: Ints) -> float:
        """Returns the seconds of a pass that reads prompts, int64 [sequences]."""
        model, device = self.cost.model, self.cost.cluster.device
        tokens, heads = int(prompts.sum()), model.num_heads * model.head_dim
        moved = tokens * (heads * model.element_bytes + self._kv_bytes) / device.copy_bandwidth
        computed = 2.0 * heads * float((prompts.astype(np.float64) ** 2).sum()) / device.attention_forward_flops
        return self._pass(tokens, len(prompts)) + model.num_layers * max(moved, computed) / self.tensor

    def decode_seconds(self, sequences: int, context: int, steps: int) -> float:
        """Returns the seconds of passes that decode. context: tokens that the sequences have together before the first
        pass, each of which adds one to every sequence."""
        seen = context * steps + sequences * steps * (steps - 1) // 2
        return steps * self._pass(sequences, sequences) + seen * self._seen_token

    @cached_property
    def _seen_token(self) -> float:
        """The seconds of attending to one token of context, in all layers."""
        model, device = self.cost.model, self.cost.cluster.device
        moved = self._kv_bytes / device.copy_bandwidth
        computed = 4 * model.num_heads * model.head_dim / device.attention_forward_flops
        return model.num_layers * max(moved, computed) / self.tensor

    def _pass(self, tokens: int, sequences: int) -> float:
        """Returns the seconds of a pass but for attention. Each of its sequences gets one word."""
        model, each = self.cost.model, self.tensor
        layers = model.num_layers * model.layer_matmul_params
        linear = _roofline(layers, tokens, model.element_bytes, self.cost) / each
        head = _roofline(model.head_params, sequences, model.element_bytes, self.cost) / each
        size = tokens * model.hidden * model.element_bytes
        gathers = 4 * model.num_layers  # two all-reduces a layer, each a reduce-scatter and a gather
        return linear + head + gathers * run_seconds(self.cost, size, each)


def _roofline(params: int, tokens: int, unit: int, cost: Cost) -> float:
    device = cost.cluster.device
    return max(unit * params / device.copy_bandwidth, 2 * params * tokens / device.matmul_flops)


def generate(prompts: Ints, responses: Ints, of: GenerationCost, replicas: int) -> Generation:
    """Plays generation. prompts, responses: int64 [sequences], tokens of each, at least 1; replicas have even shares of
    them, in their order. A sequence begins when a replica has room for all that it will have, in order; its prompt is
    read in a pass before others go on, which makes its first word.

    Raises:
        ValueError: a sequence is longer than a replica ever has room for.
    """
    whole = prompts + responses
    if len(whole) and (longest := int(whole.max())) > of.kv_tokens:
        raise ValueError(f"a sequence has {longest} tokens; a replica has room for {of.kv_tokens}")
    shares = np.array_split(np.arange(len(prompts)), replicas)
    ends = np.zeros(len(whole))
    found = [_replica(prompts[share], responses[share], of, ends[share[0] :]) if len(share) else (0.0, 0, 0)
             for share in shares]  # fmt: skip
    seconds, decodes, most = (np.array(column) for column in zip(*found, strict=True))
    return Generation(seconds, decodes, most, int(whole.sum()), ends)


def _replica(prompts: Ints, responses: Ints, of: GenerationCost, ends: Floats) -> tuple[float, int, int]:
    """Returns (seconds, passes that decode, the most sequences at once) of a replica. ends: of its sequences and those
    behind them, which are written."""
    room, seconds, decoded, most, next_one, context = of.kv_tokens, 0.0, 0, 0, 0, 0
    running: list[tuple[int, int]] = []  # (passes that decode until the end of it, of all; sequence)
    while next_one < len(prompts) or running:
        first = next_one
        while next_one < len(prompts) and prompts[next_one] + responses[next_one] <= room:
            room -= int(prompts[next_one] + responses[next_one])
            context += int(prompts[next_one])
            heapq.heappush(running, (decoded + int(responses[next_one]) - 1, next_one))
            next_one += 1
        if next_one > first:
            seconds += of.prefill_seconds(prompts[first:next_one])
            most = max(most, len(running))
        steps = running[0][0] - decoded
        seconds += of.decode_seconds(len(running), context + len(running), steps) if steps else 0.0
        context += steps * len(running)
        decoded += steps
        while running and running[0][0] == decoded:
            _, one = heapq.heappop(running)
            ends[one] = seconds
            room += int(prompts[one] + responses[one])
            context -= int(prompts[one] + responses[one]) - 1
    return seconds, decoded, most
