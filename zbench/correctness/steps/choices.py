"""The choices of parallelism, memory and lengths that executed steps are combined of, and their small model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.exchanges import (
    AREA,
    ASYNC_TP,
    COMMFUSE,
    DIRECT,
    QUERY_SPLIT,
    RING,
    SLICED,
    WHOLE,
    ExchangeOverlap,
)
from zbench.describe.expert_schedule import (
    AFTER_CHUNKS,
    EXPERT_CHOICE,
    TOGETHER_AT_ONCE,
    TOKEN_CHOICE,
    ExpertChunks,
    GradientPieces,
)
from zbench.describe.layers.on_hosts import AFTER_BACKWARD
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import COSINE, SIGMOID, SOFTMAX, SOFTMAX_ALL, Model, Offload
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.passes.reverse import MODES
from zbench.step.passes.parameters.zero import STAGES
from zbench.step.passes.recompute import LEVELS
from zbench.step.passes.routing import ExpertParallel

# Small, with two queries a kv head, and all numbers of eight bytes, as they are computed with.
MODEL = Model("mini", 3, 8, 4, 2, 4, 12, 18, element_bytes=8, lse_bytes=8)
NODE = 2  # GPUs, where collectives or what goes to experts have two levels
EXPERTS = replace(MODEL, ffn_hidden=6, num_experts=4, experts_per_token=2)
# How tokens choose experts: alike, all the same two, alike beside two that all of them pass; unevenly, in all layers
# but the first, which is dense; of experts with less room than is wanted, whose rows are as many as tokens, or all that
# they have room for; of experts on several nodes, to which a row goes once, or by 2DH; by each layer's router while the
# step runs, of seats or of as many rows as it chooses; experts choose tokens, in each layer, too.
ROUTING: Mapping[str, tuple[int, ExpertParallel]] = {
    "even": (0, ExpertParallel()),
    "skewed": (0, ExpertParallel(skew=50.0)),
    "shared": (2, ExpertParallel()),
    "dense_first": (1, ExpertParallel(skew=1.0)),
    "dropped": (0, ExpertParallel(skew=1.0, capacity=0.5)),
    "padded": (1, ExpertParallel(capacity=1.25, padded=True)),
    "two_level": (1, ExpertParallel(skew=1.0, capacity=2.0, node=NODE)),
    "2dh": (1, ExpertParallel(skew=1.0, capacity=1.25, padded=True, node=NODE, inside_first=True)),
    "router": (1, ExpertParallel(capacity=0.75, padded=True, routing=TOKEN_CHOICE)),
    "counted": (0, ExpertParallel(routing=TOKEN_CHOICE)),
    "expert_choice": (0, ExpertParallel(capacity=1.25, padded=True, routing=EXPERT_CHOICE)),
}
# Those that are tried where experts are on several GPUs.
OF_SEVERAL = ("dropped", "padded", "two_level", "2dh", "router", "counted", "expert_choice")
OF_NODES = ("two_level", "2dh")  # of these, where they are on several nodes
WITH_SEATS = ("router", "expert_choice")  # and in these an expert has room for so many of all of a GPU's tokens
# By what routers make shares of their logits, as fields of a model; what they make of these by cosines is X-MoE's. The
# first one goes with every routing.
GATES: Mapping[str, Mapping[str, Any]] = {
    SOFTMAX_ALL: {"gate": SOFTMAX_ALL},
    SOFTMAX: {"gate": SOFTMAX},
    SIGMOID: {"gate": SIGMOID},
    "cosine": {"gate": SOFTMAX_ALL, "router": COSINE, "router_dim": 3, "router_temperature": 0.5},
}
# Where tokens live, and so where rows go to experts from: as whoever attends with them has them; as many on each rank;
# of sequences whose first halves were attended with elsewhere than at home, there.
PLANNED, EVEN, ATTENTION = "planned", "even", "attention"
DENSE_FIRST = "dense_first"
# How tokens go to experts: all at once; in chunks, with experts' gradients after all of these; with a layer's gradients
# between messages of the next one, each piece by itself as lina has them, or those of a place together (fsmoe, clock).
EXPERT_CHUNKS: Mapping[str, ExpertChunks] = {
    "at_once": TOGETHER_AT_ONCE,
    "chunks": ExpertChunks(3, 2, AFTER_CHUNKS),
    "pieces": ExpertChunks(2, 2, gradients=GradientPieces(4, 1, 2)),
    "shares": ExpertChunks(1, 3, gradients=GradientPieces(3, 1, 1, apart=False)),
}
# Of tensor-parallel groups; slices so many that some have no token.
EXCHANGES: Mapping[str, ExchangeOverlap] = {
    "whole": WHOLE,
    "sliced": ExchangeOverlap(SLICED, 4),
    "async_tp": ExchangeOverlap(ASYNC_TP, 1, DIRECT),
    "commfuse": ExchangeOverlap(COMMFUSE, 2, RING),
    "direct": ExchangeOverlap(COMMFUSE, 1, DIRECT),
    "query_split": ExchangeOverlap(QUERY_SPLIT, 2, RING),
    "by_area": ExchangeOverlap(QUERY_SPLIT, 1, DIRECT, AREA),
}
# In place of a stage, of an even number of data- and context-parallel ranks, of which a pair counts as a node.
DEGREES: Mapping[str, ShardDegrees] = {
    "pairs": ShardDegrees(2, 2, 2, 2),
    "hpz": ShardDegrees(WORLD, 2, WORLD, WORLD),
    "zeropp": ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4, block=16)),
    "levels": ShardDegrees(2, 1, 2, WORLD, bits=TransferBits(gradients=4, updates=8, block=7)),
}
OVER_NODES = ("hpz", "zeropp")  # of these, some of whose collectives are among several GPUs of several nodes
# Of the second some GPUs have no token; the third is under a window longer than pieces of a ring.
LENGTHS = {"uneven": (23, 1, 7, 2, 5, 3), "short": (1, 2), "windowed": (23, 1, 7, 2, 5, 3)}
MASKS = {name: Mask(window=5) if name == "windowed" else CAUSAL for name in LENGTHS}
# What layers keep: a level of recomputation, and what of it is in host memory (zbench.describe.model.Model.offload).
KEPT: Mapping[str, tuple[str, Offload]] = {
    **{level: (level, "none") for level in LEVELS},
    "full, inputs on hosts": ("full", "inputs"),
    "none, activations on hosts": ("none", "activations"),
}
# What rests in host memory, as fields of a model: nothing; optimizer state, which CPUs update as gradients come;
# parameters of the first two layers of three beside state of the last two, which they update after the backward.
HOSTS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "state": {"optimizer_layers": ALL_LAYERS},
    "parameters": {"parameter_layers": 2, "optimizer_layers": 2, "host_updates": AFTER_BACKWARD},
}
# Of what layers keep there, the same with optimizer state.
AND_STATE: Mapping[Offload, Offload] = {
    "none": "optimizer",
    "inputs": "inputs_and_optimizer",
    "activations": "activations_and_optimizer",
}
# By these the stages and degrees that go with it: each parameter has one GPU that updates it, and its share there.
CUT_FOR_HOSTS: Mapping[str, tuple[str, ...]] = {
    "nothing": (*STAGES, *DEGREES),
    "state": ("1", "2", "3", "hpz", "zeropp", "levels"),
    "parameters": ("3", "hpz", "zeropp"),
}
SHARES = (0.6, 0.0, 0.3, 1.0)  # of sequences' tokens, of which something is on hosts where it is of some
CHOICES: Mapping[str, tuple[Any, ...]] = {  # whole numbers or words, by the names of StepCombination's fields
    "tensor_parallel": (1, 2),
    "context_parallel": (1, 2, 4),
    "data_parallel": (1, 2),
    "heads_exchanged": (1, 2),
    "expert_parallel": (0, 1, 2, 4),
    "expert_tensor_parallel": (1, 2),
    "routing": tuple(ROUTING),
    "stages": (1, 2, 3),
    "levels": (1, 2),
    "gate": tuple(GATES),
    "homes": (PLANNED, EVEN, ATTENTION),
    "exchanges": tuple(EXCHANGES),
    "head": ("own", "tied"),
    "zero": (*STAGES, *DEGREES),
    "hosts": tuple(HOSTS),
    "chunk_tokens": (0, 3),
    "expert_chunks": tuple(EXPERT_CHUNKS),
    "recompute": tuple(KEPT),
    "micro_batches": (1, 2, 3),
    "backward": MODES,
    "lengths": tuple(LENGTHS),
}
# The first ones say what GPUs a step takes. With these the others can be whatever each of them can be by itself, but
# for those that are told together.
LAID_OUT = list(CHOICES).index("gate")
CHOSEN_TOGETHER = (("zero", "hosts"),)
