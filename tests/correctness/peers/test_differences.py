"""Reasons for other bytes: the shapes are the network's, and paddings what arithmetic by hand says."""

import pytest

from zbench.correctness.peers.cases import GRADIENTS, PARAMETERS, PEERS, Peer
from zbench.correctness.peers.differences import parameter_shapes, reasons
from zbench.correctness.steps.choices import MODEL
from zbench.runtime.training.transformer import Transformer

NAMED = {str(peer): peer for peer in PEERS}


def test_shapes_are_the_networks() -> None:
    found = [tuple(p.shape) for p in Transformer(MODEL, seed=0, device="meta").parameters()]
    layers, outside = parameter_shapes(MODEL)
    assert sorted(found) == sorted(layers + outside)


@pytest.mark.parametrize(
    ("peer", "ranks", "elements"),
    [
        ("ddp", 3, []),
        ("fsdp2", 2, []),
        # rows of 18 to 20: two of 8 elements, in the embedding and the head
        ("fsdp2", 4, [(PARAMETERS, 32), (GRADIENTS, 32)]),
        ("fsdp2 reshard_after_forward=True", 4, [(PARAMETERS, 64), (PARAMETERS, 296), (GRADIENTS, 32)]),
        # over pairs no row is missing; with reshard_after_forward=2 the forward sends an element to three others, the
        # backward two of four processes one each
        ("fsdp2 mesh=2", 4, []),
        (
            "fsdp2 reshard_after_forward=2",
            4,
            [(PARAMETERS, 32 + 32 * 2 / 3), (PARAMETERS, 296 * 2 / 3), (GRADIENTS, 32)],
        ),
        ("deepspeed stage=1", 3, [(PARAMETERS, 4), (GRADIENTS, 2360)]),  # 2,360 to 2,364, a multiple of 6
        ("deepspeed stage=2, use_multi_rank_bucket_allreduce=False", 4, []),
        # over 3 processes a layer's 8, 8 and 2 x 128 elements have one more each, 256 two; outside 8 has one
        ("deepspeed stage=3", 3, [(PARAMETERS, -2064), (PARAMETERS, 16), (GRADIENTS, 16)]),
    ],
)
def test_reasons_by_hand(peer: str, ranks: int, elements: list[tuple[str, float]]) -> None:
    of: Peer = NAMED[peer]
    each = (ranks - 1) * of.element_bytes
    assert [(one.of, one.bytes) for one in reasons(of, MODEL, ranks)] == [
        (what, round(size * each)) for what, size in elements
    ]
