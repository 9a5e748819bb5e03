"""Reasons why a peer sends other bytes than zbench's step: bytes that follow from shapes and the peer's own sources.

Sources: torch 2.13 (torch/distributed/fsdp/_fully_shard), deepspeed 0.19.8 (deepspeed/runtime). All bytes are of all
processes together: (n - 1) S for what gathers or reduces S bytes over n processes, as zbench.correctness.peers.counting
has it, and as zbench's messages from and to homes come to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from zbench.correctness.peers.cases import GRADIENTS, PARAMETERS, Peer
from zbench.describe.model import Model

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for which a peer sends other bytes than zbench. of: PARAMETERS or GRADIENTS. bytes: more than zbench
    (less, where negative)."""

    of: str
    bytes: int
    why: str

    def __str__(self) -> str:
        return f"{self.of} {self.bytes:+,}: {self.why}"


def parameter_shapes(model: Model) -> tuple[Shapes, Shapes]:
    """Returns the shapes of all layers' parameters, and of those outside of layers, as the torch executor's network has
    them (zbench.runtime.training.transformer)."""
    c, d, f = model.hidden, model.head_dim, model.ffn_hidden
    queries, heads = model.num_heads * d, (model.num_heads + 2 * model.num_kv_heads) * d
    layer = ((c,), (heads, c), (c, queries), (c,), (2 * f, c), (c, f))
    return layer * model.num_layers, ((model.vocab, c), (c,), (model.vocab, c))


def reasons(peer: Peer, model: Model, ranks: int) -> list[Reason]:
    """Lists why a peer's bytes of a step are others than zbench's with the sharding that it is set beside."""
    found: list[Reason] = []  # DDP: none
    if peer.family == "fsdp2":
        found = _of_fsdp2(peer, *parameter_shapes(model), ranks)
    elif peer.family == "deepspeed" and peer.told("stage") == 3:
        found = _of_zero3(peer, *parameter_shapes(model), ranks)
    elif peer.family == "deepspeed":
        found = _times(ranks - 1, _of_zero12(peer, *parameter_shapes(model), ranks))
    return [Reason(one.of, one.bytes * peer.element_bytes, one.why) for one in found if one.bytes]


def sent_elements(ranks: int, group: int) -> int:
    """Returns how many elements all processes send for each one that is gathered or reduced in groups of so many."""
    return ranks // group * (group - 1)


def _of_fsdp2(peer: Peer, layers: Shapes, outside: Shapes, ranks: int) -> list[Reason]:
    """Lists reasons in elements that are sent. FSDP2 cuts dimension 0 (_fsdp_param.py, _get_dim0_padded_size)."""
    cut = int(peer.told("mesh") or ranks)
    spare = [sum(-(-shape[0] // cut) * cut * prod(shape[1:]) - prod(shape) for shape in of) for of in (layers, outside)]
    again = peer.told("reshard_after_forward")
    forward = sent_elements(ranks, cut)
    backward = sent_elements(ranks, int(again)) if type(again) is int else forward
    root = backward if again else 0
    layer = 0 if again is False else backward
    summed = forward + 2 * (ranks // cut - 1)  # and all-reduced among replicas
    padding = "rows padded to a multiple of the processes, parameter by parameter"
    return [
        Reason(PARAMETERS, spare[0] * (forward + layer) + spare[1] * (forward + root), padding),
        Reason(
            PARAMETERS,
            _elements(outside) * root,
            "embedding, last norm and head, of the root, are gathered for the backward again (its default keeps them)",
        ),
        Reason(GRADIENTS, sum(spare) * summed, padding),
    ]


def _of_zero12(peer: Peer, layers: Shapes, outside: Shapes, ranks: int) -> list[Reason]:
    """Lists reasons in elements. One flat buffer, a multiple of two elements a process (stage_1_and_2.py,
    nccl_start_alignment_factor)."""
    every = _elements(layers + outside)
    summed = every if peer.told("use_multi_rank_bucket_allreduce") is not False else 0
    return [
        Reason(PARAMETERS, _spare(every, 2 * ranks), "the flat buffer padded to two elements a process"),
        Reason(
            GRADIENTS,
            summed,
            "buckets are all-reduced, each process keeps its part (use_multi_rank_bucket_allreduce, on by default)",
        ),
    ]


def _of_zero3(peer: Peer, layers: Shapes, outside: Shapes, ranks: int) -> list[Reason]:
    """Lists reasons in elements that are sent. Every parameter is cut flat, its last part padded
    (partition_parameters.py); those under a threshold are gathered once, after the update (stage3.py,
    persistent_parameters)."""
    forward = sent_elements(ranks, ranks)
    backward = sent_elements(ranks, int(peer.told("zero_hpz_partition_size") or ranks))
    spare = sum(_spare(prod(shape), ranks) for shape in layers + outside)
    padding = "every parameter padded to a multiple of the processes"
    if peer.told("stage3_param_persistence_threshold") is None:
        kept = "parameters under 100,000 elements are gathered once, after the update, and kept (its default)"
        again = [
            Reason(PARAMETERS, -_elements(layers) * backward, kept),
            Reason(PARAMETERS, spare * forward, padding),
        ]
    else:
        root = "embedding, last norm and head, of the root, are released and gathered for the backward again"
        again = [
            Reason(PARAMETERS, _elements(outside) * backward, root),
            Reason(PARAMETERS, spare * (forward + backward), padding),
        ]
    return [*again, Reason(GRADIENTS, spare * forward, padding)]


def _times(count: int, found: Iterable[Reason]) -> list[Reason]:
    return [Reason(one.of, count * one.bytes, one.why) for one in found]


def _elements(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(map(prod, shapes))


def _spare(elements: int, unit: int) -> int:
    """Returns what is missing to a multiple of a unit."""
    return -elements % unit
