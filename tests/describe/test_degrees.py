"""Degrees of sharding and bits of transfers: read from a yaml, on so many ranks, and refused where they cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.describe.degrees import NODE, PLAIN, WORLD, ShardDegrees, TransferBits, degrees_of, largest_code

GIVEN = {"weights": 2, "secondary": 1, "gradients": "node", "optimizer": "world", "updates": "node"}


def test_words_become_numbers_of_ranks() -> None:
    read = ShardDegrees.of(GIVEN)
    assert read == ShardDegrees(2, 1, NODE, WORLD, NODE)
    assert read.of_ranks(32, 8) == ShardDegrees(2, 1, 8, WORLD, 8)
    assert ShardDegrees(8, 4, 8, 8).of_ranks(8, 8) == ShardDegrees(WORLD, 4, WORLD, WORLD)
    assert ShardDegrees(NODE, NODE, NODE, NODE).of_ranks(4, 8) == ShardDegrees(WORLD, WORLD, WORLD, WORLD)
    assert str(read) == "nested:2,1,node,world"
    assert degrees_of("zero2") == ShardDegrees(1, 1, WORLD, WORLD)
    assert degrees_of(read) is read


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"weights": 0},
            "sharding.degrees.weights is 0; it takes a whole number of ranks of at least 1, node or",
        ),
        ({"gradients": "pair"}, "sharding.degrees.gradients is 'pair'; it takes a whole number of ranks"),
        ({"weights": True}, "sharding.degrees.weights is True; it takes a whole number of ranks"),
        ({"updates": "pair"}, "sharding.degrees.updates is 'pair'; it takes flat or node"),
        ({"states": 2}, "sharding.degrees is .*; with sharding.strategy=nested it takes weights, secondary, gradients"),
    ],
)
def test_what_is_no_degree(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        ShardDegrees.of(GIVEN | change)


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        (ShardDegrees(4, 8, 8, 8), "sharding.degrees.secondary is 8; it has to divide sharding.degrees.weights=4"),
        (
            ShardDegrees(4, 4, 2, 8),
            "sharding.degrees.gradients is 2; it takes a multiple of weights, 4, and a divisor of optimizer, 8: 4 or 8",
        ),
        (
            ShardDegrees(2, 2, WORLD, 8),
            r"sharding\.degrees\.gradients is 32 \(world\); it has to divide sharding\.degrees\.optimizer=8",
        ),
        (
            ShardDegrees(2, 2, 2, 6),
            "sharding.degrees.optimizer is 6; it takes a multiple of gradients, 2, and a divisor of the 32 ranks: "
            "2, 4, 8, 16 or 32",
        ),
        (ShardDegrees(8, 8, 8, 8, NODE), "sharding.degrees.updates is node, of 8 ranks; parameters cut over 8 ranks"),
    ],
)
def test_what_does_not_nest(degrees: ShardDegrees, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        degrees.of_ranks(32, 8)


def test_where_degrees_count_groups_sentences_do() -> None:
    with pytest.raises(ValueError, match=r", and a divisor of the 8 tensor-parallel groups: 2, 4 or 8$"):
        ShardDegrees(2, 2, 2, 6).of_ranks(8, 2, "tensor-parallel group")


# -- bits -----------------------------------------------------------------------------------------------
WITH_HOPS = {"weights": "world", "secondary": "node", "gradients": "world", "optimizer": "world", "reductions": "node"}


def test_what_a_yaml_says() -> None:
    assert TransferBits.of(None) == TransferBits.of({}) == PLAIN
    found = ShardDegrees.of(WITH_HOPS, {"weights": 8, "gradients": 4, "updates": None, "block": 64})
    assert found == ShardDegrees(WORLD, NODE, WORLD, WORLD, WORLD, NODE, TransferBits(8, None, 4, None, 64))
    assert str(found) == "nested:world,node,world,world weights8+gradients4+block64"
    assert str(replace(found, bits=PLAIN)) == "nested:world,node,world,world"
    assert found.of_ranks(32, 8) == ShardDegrees(WORLD, 8, WORLD, WORLD, WORLD, 8, found.bits)
    assert found.of_ranks(8, 8).hop == WORLD  # one node: a hop reaches all ranks
    assert (largest_code(4), largest_code(8)) == (7, 127)


def test_bytes_of_a_value() -> None:
    bits = TransferBits(weights=8, gradients=4, block=64)
    found = [bits.value_bytes(kind, 2) for kind in ("weights", "secondary", "gradients", "updates")]
    assert found == [1 + 4 / 64, 2, 0.5 + 4 / 64, 2]


@pytest.mark.parametrize(
    ("degrees", "bits", "told"),
    [
        ({}, 8, "sharding.bits is 8; it takes null, or some of weights, secondary, gradients, updates and block"),
        ({}, {"weight": 8}, r"sharding.bits is \{'weight': 8\}; it takes null, or some of"),
        ({}, {"weights": 3}, "sharding.bits.weights is 3; it takes 4, 8, or null"),
        ({}, {"gradients": True}, "sharding.bits.gradients is True; it takes 4, 8, or null"),
        ({}, {"weights": 8, "block": 0}, "sharding.bits.block is 0; it takes a whole number from 1"),
        (
            {"secondary": 1},
            {"secondary": 8},
            "sharding.bits.secondary is 8; with sharding.degrees secondary 1 all ranks",
        ),
        (
            {"weights": 1, "secondary": 1, "gradients": 1},
            {"gradients": 4},
            "sharding.bits.gradients is 4; with sharding.degrees gradients 1 no rank has a part of them alone, so it",
        ),
        ({"weights": 1, "secondary": 1}, {"weights": 8}, "sharding.bits.weights is 8; with sharding.degrees weights 1"),
        ({}, {"updates": 8}, "sharding.bits.updates is 8; with sharding.degrees optimizer and weights alike"),
        ({"reductions": "flat"}, {"gradients": 4}, "take sharding.degrees.reductions=node with it, or what a node's"),
        ({"reductions": 2}, None, "sharding.degrees.reductions is 2; it takes flat or node"),
    ],
)
def test_bits_that_transfers_cannot_have(degrees: dict, bits: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ShardDegrees.of({**WITH_HOPS, **degrees}, bits)


def test_hops_that_do_not_lie_in_degrees() -> None:
    with pytest.raises(
        ValueError, match=r"sharding.degrees.reductions is node, of 4 ranks; gradients cut over 6 ranks"
    ):
        ShardDegrees(2, 2, 6, WORLD, WORLD, NODE).of_ranks(12, 4)
