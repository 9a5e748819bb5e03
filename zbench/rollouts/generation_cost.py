"""The cost model of generation on a replica: tensor-parallel groups, which are the stages of a pipeline.

A pass reads all weights once, whatever it computes, and takes the longer of reading and computing; so does attention
with keys and values. Terms: Seesaw (arXiv 2503.06433), appendix A, with this project's rates of a device; causal
attention is half of its prefill. Launches of kernels, sampling and what a host does between passes are not in it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.gathers import run_seconds
from zbench.describe.arrays import Ints
from zbench.describe.checks import is_whole
from zbench.describe.model import CUT_BY_SLICES
from zbench.describe.units import with_noun

MEMORY_SHARE = 0.9  # vLLM's default of gpu_memory_utilization


class GenerationPass(NamedTuple):
    """The seconds of a pass. stage: of every stage but the last one; last: of that, which makes words; send: of a
    message to the next stage, which may take up its next pass meanwhile."""

    stage: float
    last: float
    send: float

    def alone(self, stages: int) -> float:
        """Returns the seconds of the pass where no other one is under way."""
        return (stages - 1) * (self.stage + self.send) + self.last


class _Rates(NamedTuple):
    """The seconds of a pass of a stage: to read its weights and those of the head; of a token's matmuls, and of a
    word's; of exchanges in its group and of a message to the next stage, by token and without any."""

    read: float
    token: float
    read_head: float
    word: float
    exchanged: float
    exchanges: float
    sent: float
    sends: float


@dataclass(frozen=True)
class GenerationCost:
    """The cost model of a replica of `pipeline` stages of `tensor` GPUs each. cost: of GPUs. memory_share: of a GPU's
    memory, for weights and keys and values. tensor_key: what a user sets the degree by, for sentences."""

    cost: Cost
    tensor: int
    memory_share: float
    tensor_key: str = "tensor"
    pipeline: int = 1

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
        if model.num_layers % self.pipeline:
            gpus = with_noun(self.tensor, "GPU")
            raise ValueError(
                f"a layout has {self.pipeline} stages of {gpus}; stages have to divide num_layers={model.num_layers}"
            )
        if not (isinstance(self.memory_share, float) or is_whole(self.memory_share)) or not 0 < self.memory_share <= 1:
            raise ValueError(f"{self.share_key} is {self.memory_share!r}; it takes more than 0 and at most 1")
        if self.kv_tokens < self.pipeline:
            stages = f" and {self.pipeline} stages" if self.pipeline > 1 else ""
            told = f"replicas of {self.tensor_key}={self.tensor}{stages} have no room for keys and values beside"
            raise ValueError(f"model {model.name} does not fit: {told} weights in {self.share_key}={self.memory_share}")

    @property
    def share_key(self) -> str:
        """The key by which a user sets the share of memory, for sentences."""
        return "job.memory_share" if self.tensor_key.startswith("job.") else "memory_share"

    @property
    def num_gpus(self) -> int:
        """The GPUs of a replica."""
        return self.tensor * self.pipeline

    @property
    def layers(self) -> int:
        """The layers of a stage."""
        return self.cost.model.num_layers // self.pipeline

    @property
    def stage_weights(self) -> int:
        """The bytes of weights of the stage that has most of them: the first has the embedding, the last the head."""
        model = self.cost.model
        outer = model.total_params - model.num_layers * model.layer_params
        most = outer if self.pipeline == 1 else model.head_params + model.hidden
        return model.element_bytes * (self.layers * model.layer_params + most)

    @cached_property
    def kv_tokens(self) -> int:
        """The tokens whose keys and values a replica has room for beside its weights: of its fullest stage."""
        memory = self.memory_share * self.tensor * self.cost.cluster.device.memory_bytes
        return int((memory - self.stage_weights) // (self.layers * self.kv_bytes))

    @property
    def batch_tokens(self) -> int:
        """The tokens that each micro-batch has room for: there are as many as stages, with even shares."""
        return self.kv_tokens // self.pipeline

    @property
    def kv_bytes(self) -> int:
        """The bytes of a token's keys and values in a layer."""
        model = self.cost.model
        return 2 * model.num_kv_heads * model.head_dim * model.element_bytes

    def prefill_seconds(self, prompts: Ints) -> float:
        """Returns the seconds of a pass alone that reads prompts, int64 [sequences]."""
        return self.prefill(prompts).alone(self.pipeline)

    def prefill(self, prompts: Ints) -> GenerationPass:
        """Returns the seconds of a pass that reads prompts, int64 [sequences], each of which gets a word."""
        return self.mixed(0, 0, np.zeros_like(prompts), prompts, len(prompts))

    def decode_seconds(self, sequences: int, context: int, steps: int) -> float:
        """Returns the seconds of passes that decode, one after another. context: tokens that the sequences have
        together before the first pass, each of which adds one to every sequence."""
        seen = context * steps + sequences * steps * (steps - 1) // 2
        return steps * self._pass(sequences, sequences, 0.0).alone(self.pipeline) + seen * (
            self.pipeline * self.seen_token
        )

    def decode(self, sequences: int, context: int) -> GenerationPass:
        """Returns the seconds of a pass that decodes, as decode_seconds."""
        return self._pass(sequences, sequences, context * self.seen_token)

    def mixed(self, sequences: int, context: int, begins: Ints, ends: Ints, whole: int) -> GenerationPass:
        """Returns the seconds of a pass that decodes, as `decode`, and reads tokens [begins, ends) of prompts, int64
        [prompts], `whole` of them to the end."""
        model, device = self.cost.model, self.cost.cluster.device
        tokens, heads = int((ends - begins).sum()), model.num_heads * model.head_dim
        moved = tokens * heads * model.element_bytes + int(ends.sum()) * self.kv_bytes
        squares = float((ends.astype(np.float64) ** 2 - begins.astype(np.float64) ** 2).sum())
        computed = 2.0 * heads * squares / device.attention_forward_flops
        prompts = self.layers * max(moved / device.copy_bandwidth, computed) / self.tensor
        seen = context * self.seen_token if sequences else 0.0
        return self._pass(sequences + tokens, sequences + whole, prompts + seen)

    @cached_property
    def seen_token(self) -> float:
        """The seconds of attending to one token of context, in all layers of a stage."""
        model, device = self.cost.model, self.cost.cluster.device
        moved = self.kv_bytes / device.copy_bandwidth
        computed = 4 * model.num_heads * model.head_dim / device.attention_forward_flops
        return self.layers * max(moved, computed) / self.tensor

    def _pass(self, tokens: int, words: int, attention: float) -> GenerationPass:
        """Returns the seconds of a pass of so many tokens that makes words. attention: of a stage."""
        own = self._rates
        stage = max(own.read, own.token * tokens) + own.exchanged * tokens + own.exchanges + attention
        head = max(own.read_head, own.word * words) if words else 0.0
        return GenerationPass(stage, stage + head, own.sent * tokens + own.sends)

    @cached_property
    def _rates(self) -> "_Rates":
        model, device, each = self.cost.model, self.cost.cluster.device, self.tensor
        linear, unit = self.layers * model.layer_matmul_params, model.element_bytes
        row, gathers = model.hidden * unit, 4 * self.layers  # two all-reduces a layer, each a scatter and a gather
        exchange, send = self._exchange if each > 1 else (0.0, 0.0), self._send if self.pipeline > 1 else (0.0, 0.0)
        return _Rates(
            read=unit * linear / device.copy_bandwidth / each,
            token=2 * linear / device.matmul_flops / each,
            read_head=unit * model.head_params / device.copy_bandwidth / each,
            word=2 * model.head_params / device.matmul_flops / each,
            exchanged=gathers * exchange[0] * row,
            exchanges=gathers * exchange[1],
            sent=send[0] * row,
            sends=send[1],
        )

    @cached_property
    def _exchange(self) -> tuple[float, float]:
        """The seconds of a gather in a tensor-parallel group: of each byte, and of none."""
        none = run_seconds(self.cost, 0.0, self.tensor)
        return (run_seconds(self.cost, 1e9, self.tensor) - none) / 1e9, none

    @cached_property
    def _send(self) -> tuple[float, float]:
        """The seconds of a message between two stages, of which each GPU sends an even share to its peer: of each byte,
        and of none. The farthest two stages' count."""
        cluster = self.cost.cluster
        first = self.tensor * np.arange(self.pipeline)
        classes = np.unique(cluster.link_of(first[:-1], first[1:]))
        rates = [float(self.cost.message_seconds(np.array(1e9), int(one))) / 1e9 / self.tensor for one in classes]
        return max(rates), max(cluster.links[int(one)].latency for one in classes)
