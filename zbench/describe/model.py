"""A transformer as the cost model sees it: shapes, parameters, message sizes.

Not the network that trains (that is the torch executor's); this is its arithmetic.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.checks import (
    MOST,
    check_boolean,
    check_choice,
    check_chunk,
    check_experts,
    check_name,
    check_offload_layers,
    check_offload_tokens,
    check_on_hosts,
    check_recompute_layers,
    check_stage_layers,
    check_whole_number,
)
from zbench.describe.degrees import ShardDegrees
from zbench.describe.layers.expert_layers import ExpertLayers
from zbench.describe.layers.model_parameters import HEADS, VALUE, ModelParameters
from zbench.describe.layers.on_hosts import AS_GRADIENTS_COME, NOWHERE
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN, StagedLayers, bracketed

Tensor = int
RecomputeLevel = Literal["none", "selective", "chunked", "full"]
Offload = Literal["none", "inputs", "activations", "optimizer", "inputs_and_optimizer", "activations_and_optimizer"]
Q, KV, O, DO, DQ, DKV = range(6)  # noqa: E741 - what a transfer may carry, named as in the papers; see zbench.plans.plan
TENSOR_NAMES = ("q", "kv", "o", "do", "dq", "dkv")
RECOMPUTE = ("none", "selective", "chunked", "full")
NONE, INPUTS, ACTIVATIONS, OPTIMIZER, *_ = OFFLOAD = (
    "none", "inputs", "activations", "optimizer", "inputs_and_optimizer", "activations_and_optimizer"
)  # fmt: skip
WITH_INPUTS, WITH_ACTIVATIONS, WITH_OPTIMIZER = (
    tuple(one for one in OFFLOAD if what in one.split("_and_")) for what in (INPUTS, ACTIVATIONS, OPTIMIZER)
)
SOFTMAX, SOFTMAX_ALL, SIGMOID = GATES = ("softmax", "softmax_all", "sigmoid")
LINEAR, COSINE = ROUTERS = ("linear", "cosine")
WHOLE, AUTO = "whole", "auto"  # in place of a number of tokens: all at once; as zbench.cost.loss has them
SHARDING = ("none", "zero1", "zero2", "zero3")
CUT_BY_SLICES = ("num_heads", "num_kv_heads", "ffn_hidden", "vocab")  # what tensor parallelism divides


@dataclass(frozen=True, slots=True)
class Model(StagedLayers, ModelParameters, ExpertLayers):
    """A Llama-like decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU, optionally mixture of experts.

    shared_experts: experts that every token passes beside those that it chooses (DeepSeekMoE, arXiv 2401.06066), each
        with as many columns; together they are one feed-forward. 0: none.
    dense_layers, dense_ffn_hidden: how many layers, the first ones, are dense where the others have experts, and the
        columns of their feed-forward (first_k_dense_replace and intermediate_size of DeepSeek's configurations). 0 and
        0: all layers are alike.
    gate: what makes shares of a token's router logits: "softmax" (of the chosen experts, which add up to 1),
        "softmax_all" (of all experts; the chosen ones' do not) or "sigmoid" (of each, over the chosen ones' sum).
    router: what makes the logits: "linear" (a matmul with a row for each expert) or "cosine" (X-MoE, Chi et al. 2022,
        arXiv 2204.09179): of a token's projection to `router_dim` and a row for each expert, over the temperature.
    head: what is made of a token behind the layers: scores of all "words" of the vocabulary, or one number, its
        "value", as a critic has it, and a reward model for a response's last token.
    element_bytes: bytes of an activation or parameter (2 for bf16); lse_bytes: of a log-sum-exp.
    recompute: "none", "selective" (a layer's feed-forward runs again in its backward: zbench.cost.recompute), "chunked"
        (so it does, each chunk of tokens where its gradients are made) or "full" (every layer's forward does).
    recompute_layers: how many layers of each stage are recomputed, its first ones: a number for all stages, or one for
        each; or "all".
    sharding: "none" (parameters, gradients and optimizer state on every rank: plain data parallelism), "zero1"
        (parameters and gradients on every rank, optimizer state split over all ranks), "zero2" (parameters on every
        rank, the rest split over all ranks), "zero3" (parameters, gradients and optimizer state split over all
        ranks; also FSDP) or degrees, over which each is split.
    kernels: elementwise work "fused" (Transformer Engine, torch.compile) or "eager" (one kernel an operation).
    mlp_chunk_tokens: tokens that the feed-forward is computed for at a time, or "whole".
    loss_chunk_tokens: tokens whose logits there are at a time; "whole": all; "auto": as many as the torch executor has
        (zbench.cost.loss).
    tensor_parallel: GPUs of a node that are one rank of a plan (zbench.cost.ranks_of_gpus).
    pipeline_parallel: stages that the layers are divided over (zbench.cost.ranks_of_gpus). micro_batches: parts of
        equal tokens in which a batch with stages is planned, by systems that do not choose a number of their own.
    stage_layers: how many layers each stage has, or "even".
    offload: what is in the host memory of a GPU's node: "none", "inputs" of layers, from their forward to their
        backward, where these are all that they keep, "activations", all that layers keep, "optimizer", its state, which
        CPUs update, or that and one of the others.
    optimizer_layers: whose state that is: of "all" layers, of so many last ones and the head, or "auto".
        host_updates: when CPUs update it (zbench.describe.layers.on_hosts). carried_layers: across steps, of how many
        of these gradients are for the next step, spread evenly: "all", a number, or "auto".
    parameter_layers: whose parameters rest in host memory: "none", "all", so many first layers', or "auto".
    offload_layers: whose inputs or activations these are: of "all" layers, of so many first ones of every stage, or
        "auto": of as few first ones of each micro-batch as it fits with; planners plan as if of all. The activations of
        a stage's last layer stay, as its backward is next, or next but for forwards of other micro-batches.
    offload_tokens: and of which tokens of these layers: of "all", of a share of each sequence's, or "auto": of as large
        ones as each micro-batch needs to fit, by what each sequence hides (zbench.simulated.offloading); planners plan
        as if of all.
    Of these, recompute, its layers, sharding, both numbers of tokens, what is on hosts, both degrees and stages' layers
    are no properties of a model: a run sets them from groups of their own (zbench.describe.strategy).
    mask: what a query sees of its sequence, in every layer; a run sets it (its key `mask`).
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    tied_embeddings: bool = False
    num_experts: int = 1
    experts_per_token: int = 1
    shared_experts: int = 0
    dense_layers: int = 0
    dense_ffn_hidden: int = 0
    gate: Literal["softmax", "softmax_all", "sigmoid"] = "softmax"
    router: Literal["linear", "cosine"] = "linear"
    router_dim: int = 0
    router_temperature: float = 0.0
    head: Literal["words", "value"] = "words"
    element_bytes: int = 2
    lse_bytes: int = 4
    recompute: RecomputeLevel = "none"
    recompute_layers: int | str | tuple[int, ...] = ALL_LAYERS
    sharding: Literal["none", "zero1", "zero2", "zero3"] | ShardDegrees = "zero1"
    kernels: Literal["fused", "eager"] = "fused"
    mlp_chunk_tokens: int | str = WHOLE
    loss_chunk_tokens: int | str = WHOLE
    offload: Offload = "none"
    offload_layers: int | str = ALL_LAYERS
    offload_tokens: float | str = ALL_LAYERS
    optimizer_layers: int | str = ALL_LAYERS
    parameter_layers: int | str = NOWHERE
    host_updates: str = AS_GRADIENTS_COME
    carried_layers: int | str = ALL_LAYERS
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    micro_batches: int = 1
    mask: Mask = CAUSAL
    stage_layers: str | tuple[int, ...] = EVEN

    def __post_init__(self) -> None:
        check_name("model.name", self.name)
        for field in ("recompute_layers", "stage_layers"):  # records and yamls have lists, and a model is hashed
            if isinstance(value := getattr(self, field), list):
                object.__setattr__(self, field, tuple(value))
        for field in (
            "num_layers",
            "hidden",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "ffn_hidden",
            "vocab",
            "num_experts",
            "experts_per_token",
            "element_bytes",
            "lse_bytes",
            "tensor_parallel",
            "pipeline_parallel",
            "micro_batches",
        ):
            check_whole_number(f"model.{field}", getattr(self, field), 1, MOST)
        check_experts(self)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"model.num_kv_heads is {self.num_kv_heads}; it has to divide num_heads={self.num_heads}")
        for field, choices in (
            ("recompute", RECOMPUTE),
            ("sharding", SHARDING),
            ("kernels", ("fused", "eager")),
            ("offload", OFFLOAD),
            ("gate", GATES),
            ("router", ROUTERS),
            ("head", HEADS),
        ):
            if not isinstance(getattr(self, field), ShardDegrees):
                check_choice(f"model.{field}", getattr(self, field), choices)
        if self.recompute_layers != ALL_LAYERS:
            self._check_recompute_layers()
        check_stage_layers(self.stage_layers)
        check_offload_layers(self.offload_layers, self.layers_on_hosts)
        check_offload_tokens(self.offload_tokens, self.offload_layers, self.layers_on_hosts)
        updates = self.host_updates, self.carried_layers
        check_on_hosts(self.optimizer_layers, self.parameter_layers, updates, self.optimizer_on_hosts)
        check_chunk("mlp_chunk_tokens", self.mlp_chunk_tokens, (WHOLE,))
        check_chunk("loss_chunk_tokens", self.loss_chunk_tokens, (WHOLE, AUTO))
        if not isinstance(self.mask, Mask):
            raise ValueError(f"model.mask is {self.mask!r}; it is a key of the run, as in mask=window:4096")
        check_boolean("model.tied_embeddings", self.tied_embeddings)
        if self.tied_embeddings and self.head == VALUE:
            raise ValueError(
                "model.head is value; with tied_embeddings the head is the table of words, so it takes words"
            )

    def _check_recompute_layers(self) -> None:
        check_recompute_layers(self.recompute_layers)
        layers = bracketed(self.recompute_layers)
        if self.recompute == NONE:
            raise ValueError(
                f"recompute.layers is {layers}; with recompute.granularity {NONE} it takes {ALL_LAYERS}, and a number "
                "with selective, chunked or full"
            )
        if self.offload in WITH_INPUTS:
            raise ValueError(
                f"recompute.layers is {layers}; with memory.offload {self.offload} layers keep nothing but their "
                f"input, so it takes {ALL_LAYERS}, or memory.offload={self.offload.replace(INPUTS, ACTIVATIONS)}"
            )

    @property
    def keeping_all(self) -> "Model":
        """The model without recomputation."""
        return replace(self, recompute="none", recompute_layers=ALL_LAYERS)

    def with_stages(self, stages: int) -> "Model":
        """Returns the model in so many stages: as it is, or, where it has another number, in even ones that are alike
        in what they recompute."""
        if self.pipeline_parallel == stages:
            return self
        again = self.recompute_layers if isinstance(self.recompute_layers, int | str) else ALL_LAYERS
        return replace(self, pipeline_parallel=stages, stage_layers=EVEN, recompute_layers=again)

    def offloading(self, layers: int) -> "Model":
        """Returns the model of whose stages' layers so many first ones have in host memory what waits there of some."""
        if layers:
            return replace(self, offload_layers=layers)
        here: Literal["none", "optimizer"] = "optimizer" if self.optimizer_on_hosts else "none"
        return replace(self, offload=here, offload_layers=ALL_LAYERS, offload_tokens=ALL_LAYERS)

    # -- parameters -------------------------------------------------------------------------------
    @property
    def dense_layer(self) -> "Model":
        """A dense model whose layers are all as the first ones."""
        return replace(
            self,
            dense_layers=0,
            dense_ffn_hidden=0,
            ffn_hidden=self.dense_ffn_hidden,
            num_experts=1,
            experts_per_token=1,
            shared_experts=0,
            gate="softmax",
            router="linear",
            router_dim=0,
            router_temperature=0.0,
        )

    @property
    def elementwise_bytes(self) -> int:
        """Bytes per token that one layer's norms, RoPE, residuals and activation read and write in the forward.

        Fused: two norms (read and write hidden each), two residual additions (two reads, a write), RoPE
        on q and k (read, write), SwiGLU (gate and up in, product out). Eager, operation by operation with
        float32 inside: a norm passes 28 bytes an element, RoPE 24, SwiGLU 10 in all, an addition 6.
        """
        rope, ffn = self.head_dim * (self.num_heads + self.num_kv_heads), self.active_ffn
        if self.kernels == "eager":
            return 68 * self.hidden + 24 * rope + 10 * ffn
        return self.element_bytes * (10 * self.hidden + 2 * rope + 3 * ffn)

    # -- messages ---------------------------------------------------------------------------------
    def message_bytes_per_token(self, tensor: Tensor, head_lo: int, head_hi: int) -> int:
        """Returns the bytes of one token's `tensor` for query heads [head_lo, head_hi).

        kv and dkv hold the kv heads that those query heads read (grouped-query attention), k and v;
        o travels with its log-sum-exp; do with the log-sum-exp and the row sum of do * o that the
        flash-attention backward needs.
        """
        one = self.message_bytes(*(np.array([value]) for value in (tensor, head_lo, head_hi)))
        return int(one[0])

    def message_bytes(self, tensor: Ints, head_lo: Ints, head_hi: Ints) -> Ints:
        """Returns the bytes of many messages, [n], as `message_bytes_per_token` has them; 0 where tensor is -1."""
        sizes: Ints = np.asarray(message_size(tensor, head_lo, head_hi, *self.message_rows()), np.int64)
        return sizes

    def message_rows(self) -> tuple[Ints, Ints, int]:
        """Returns a token's bytes for message_size: (bytes by tensor a query head, bytes a kv head, query heads to a kv
        head)."""
        row = self.head_dim * self.element_bytes
        per_head, per_kv_head = np.zeros((2, len(TENSOR_NAMES) + 1), np.int64)  # the last one is tensor -1
        per_head[[Q, O, DO, DQ]] = row, row + self.lse_bytes, row + 2 * self.lse_bytes, row
        per_kv_head[[KV, DKV]] = 2 * row
        return per_head, per_kv_head, self.num_heads // self.num_kv_heads


def message_size(tensor, lo, hi, per_head, per_kv_head, group):  # type: ignore[no-untyped-def]
    """Returns the bytes of a token's messages: of arrays of them, or of one in a compiled loop."""
    kv_heads = -(-hi // group) - lo // group
    return per_head[tensor] * (hi - lo) + per_kv_head[tensor] * kv_heads
