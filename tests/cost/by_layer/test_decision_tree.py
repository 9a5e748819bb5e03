"""The decision tree: the published numbers of its leaves' strategies, and what a strategy means."""

import pytest

from zbench.cost.by_layer.decision_tree import DATA, SHARDED, TENSOR, LayerStrategy, TreeLevel, decision_tree


@pytest.mark.parametrize(
    ("recompute", "mixed", "published"), [(("none",), True, 34), (("none",), False, 22), (("none", "full"), False, 44)]
)
def test_eight_gpus_have_the_published_number_of_strategies(
    recompute: tuple[str, ...], mixed: bool, published: int
) -> None:
    """Of 1, 2, 4 and 8 stages together (arXiv 2211.13878, section 3.2; 2307.02031, section 3.2)."""
    assert sum(len(decision_tree(8 // stages, recompute, mixed)) for stages in (1, 2, 4, 8)) == published


def test_every_strategy_is_there_once_and_uses_all_gpus() -> None:
    found = decision_tree(16)
    assert len(set(found)) == len(found)
    assert {one.tensor * one.groups for one in found} == {16}
    assert not any(one.degree(DATA) > 1 and one.degree(SHARDED) > 1 for one in found)


def test_the_last_level_is_of_consecutive_gpus() -> None:
    one = LayerStrategy((TreeLevel(SHARDED, 4), TreeLevel(TENSOR, 2)), "full")
    assert (one.stride(TENSOR), one.stride(DATA, SHARDED)) == (1, 2)
    assert (one.tensor, one.groups, one.is_sharded) == (2, 4, True)
    assert str(one) == "sharded 4 x tensor 2, recompute full"


def test_one_gpu_has_no_parallelism() -> None:
    (one,) = decision_tree(1, ("none",))
    assert (one.tensor, one.groups, one.is_sharded, str(one)) == (1, 1, False, "alone")
