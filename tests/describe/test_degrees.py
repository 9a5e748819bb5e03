"""Degrees of sharding: read from a yaml, on so many ranks, and refused where they do not lie in one another."""

from typing import Any

import pytest

from zbench.describe.degrees import NODE, WORLD, ShardDegrees, degrees_of

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
        (ShardDegrees(4, 4, 2, 8), "sharding.degrees.weights is 4; it has to divide sharding.degrees.gradients=2"),
        (
            ShardDegrees(2, 2, WORLD, 8),
            "sharding.degrees.gradients is 32; it has to divide sharding.degrees.optimizer",
        ),
        (ShardDegrees(2, 2, 2, 6), "sharding.degrees.optimizer is 6; it has to divide the 32 ranks"),
        (ShardDegrees(8, 8, 8, 8, NODE), "sharding.degrees.updates is node, of 8 ranks; parameters cut over 8 ranks"),
    ],
)
def test_what_does_not_nest(degrees: ShardDegrees, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        degrees.of_ranks(32, 8)
