"""Seconds of linear modules as planners believe them: by one rate, or by the shapes that tokens have on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.strategies import costs
from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.ranks_of_gpus import grouped
from zbench.cost.stage import Stage
from zbench.describe.cluster import Cluster
from zbench.describe.curve import Curve
from zbench.describe.device import Device
from zbench.describe.model import Model

DEVICE = Device("a100", 3.12e14, 80e9, 1.4e12, 3e11, 2.5e14, 2e14, 1.5e14, 3e-6, 3e-5, multiprocessors=108)
MODEL = Model("m", 4, 4096, 32, 8, 128, 11008, 32000)
TOKENS = np.array([0, 1, 100, 1000, 5000, 8192, 100_000])


def cost(shapes: bool = True) -> Cost:
    device = replace(DEVICE, matmul_shapes=shapes)
    return Cost(Cluster("c", 1, 8, 8, 25e9, 0.8, 0.0, 2e11, 0.6, 0.0, device), MODEL)


@examples(50)
@given(costs(), st.lists(st.integers(0, 100_000), min_size=1, max_size=5))
def test_without_shapes_a_backward_is_two_forwards(drawn: Cost, tokens: list[int]) -> None:
    many = np.array(tokens)
    forward = drawn.linear_seconds(many)
    assert (drawn.gradient_seconds(many) == 2 * forward).all()
    assert (forward + drawn.gradient_seconds(many) == 3 * forward).all()
    assert of_parts(drawn) is drawn


def test_shapes_take_no_less_than_one_rate() -> None:
    shaped, flat = cost(), cost(False)
    for name in ("linear_seconds", "gradient_seconds", "head_seconds"):
        by_shape, plain = (getattr(of, name)(TOKENS) for of in (shaped, flat))
        assert (by_shape >= plain * (1 - 1e-12)).all()
        assert by_shape[0] == plain[0]
        assert by_shape[-1] < 1.1 * plain[-1]


def test_few_tokens_read_a_layer_s_parameters() -> None:
    read = MODEL.element_bytes * MODEL.layer_matmul_params / DEVICE.copy_bandwidth
    assert (cost().linear_seconds(np.array([1]))[0] - cost(False).linear_seconds(np.array([1]))[0]) > 0.95 * read


def test_parts_have_the_rate_of_many_tokens_and_nothing_of_their_own() -> None:
    whole, part = cost(), of_parts(cost())
    many = np.array([1 << 20])
    for name in ("linear_seconds", "backward_linear_seconds"):
        assert getattr(part, name)(many)[0] == pytest.approx(getattr(whole, name)(many)[0], rel=0.02)
    both = [(of.linear_seconds(many) + of.backward_linear_seconds(many))[0] for of in (part, whole)]
    assert both[0] == pytest.approx(both[1], rel=1e-3)
    few = part.linear_seconds(np.array([1, 2, 101]))
    assert few[2] - few[0] == pytest.approx(100 * (few[1] - few[0]))
    assert not part.is_by_shape
    assert of_parts(part) is part


def test_a_curve_counts_before_shapes() -> None:
    one, flat = cost(), cost(False)
    device = replace(one.cluster.device, matmul_by_tokens={"m": Curve((1024.0, 8192.0), (1e14, 2e14))})
    curved = replace(one, cluster=replace(one.cluster, device=device))
    plain = replace(flat, cluster=replace(flat.cluster, device=replace(device, matmul_shapes=False)))
    assert not curved.is_by_shape
    for name in ("linear_seconds", "gradient_seconds"):
        assert (getattr(curved, name)(TOKENS) == getattr(plain, name)(TOKENS)).all()


@pytest.mark.parametrize("tp", [2, 4])
def test_a_group_and_a_pipeline_s_stage_cut_the_same_matmuls(tp: int) -> None:
    """A GPU of a tensor-parallel group and one of a stage take as long for its linear modules, without exchanges."""
    tokens = tp * np.array([100, 1000, 5000])
    group, stage = grouped(cost(), tp), Stage.of(cost(), tp, 1)
    shown = group.exchange_seconds(tokens)
    assert stage.linear_seconds(tokens) == pytest.approx(group.linear_seconds(tokens) - shown)
    assert stage.gradient_seconds(tokens) == pytest.approx(group.gradient_seconds(tokens) - 2 * shown)
    assert stage.head_seconds(tokens) == pytest.approx(group.head_seconds(tokens))
    # Columns that are cut fill tiles and waves no better than whole ones.
    assert (tp * stage.linear_seconds(tokens) >= cost().linear_seconds(tokens)).all()
