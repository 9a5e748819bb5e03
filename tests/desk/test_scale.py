"""What shrinks keeps its proportions."""

from dataclasses import replace

import pytest

from zbench.anchors.presets import cluster
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.desk.scale import Scale

LARGE = Model("large", 32, 4096, 32, 32, 128, 11008, 32000)
SMALL = Model("small", 2, 128, 8, 8, 16, 344, 256, element_bytes=4)
SCALE = Scale(32, 1e9, 2, 4, 2)


def test_proportions_are_kept() -> None:
    big = cluster("a800_4x8")
    small = SCALE.cluster(big, LARGE, SMALL)
    assert SCALE.tokens(big) == 512
    ratios = []
    for one, model, length in ((big, LARGE, 131072), (small, SMALL, 4096)):
        device = one.device
        linear = 6 * model.layer_matmul_params / device.matmul_flops
        attention = 14 * length / 2 * model.num_heads * model.head_dim / device.attention_forward_flops
        kv = 2 * model.num_kv_heads * model.head_dim * model.element_bytes
        nic = kv / (one.nic_bandwidth * one.nic_efficiency) * one.gpus_per_node / one.nics_per_node
        nvlink = kv / (one.nvlink_bandwidth * one.nvlink_efficiency)
        memory = model.hidden * model.element_bytes / device.copy_bandwidth
        ratios.append([attention / linear, nic / linear, nvlink / linear, memory / linear])
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-12)


def test_channels_stay() -> None:
    """A channel's share of a link is no rate."""
    desk = SCALE.cluster(replace(cluster("h200_4x8"), nvlink_channels=3), LARGE, SMALL)
    assert (desk.nic_channels, desk.nvlink_channels) == (2, 3)


def test_matmuls_have_one_rate() -> None:
    """Matmuls of a desk's model would fill no wave of a GPU's multiprocessors, so a scaled desk has no shapes."""
    big = cluster("a800_4x8")
    shaped = replace(big, device=replace(big.device, matmul_shapes=True))
    assert SCALE.cluster(shaped, LARGE, SMALL) == SCALE.cluster(big, LARGE, SMALL)


def test_latencies_grow_as_a_rank_s_linear_seconds() -> None:
    big = cluster("a800_4x8")
    small = SCALE.cluster(big, LARGE, SMALL)
    before, after = (
        2 * model.layer_matmul_params * tokens / one.device.matmul_flops
        for one, model, tokens in ((big, LARGE, 4096), (small, SMALL, 512))
    )
    assert small.nic_latency / big.nic_latency == pytest.approx(after / before, rel=1e-12)


@pytest.mark.parametrize("name", ["desk_2x4_a800", "desk_2x4_h200", "desk_4x2"])
def test_presets_are_what_the_command_prints(name: str) -> None:
    preset = cluster(name)
    source = {"desk_2x4_h200": "h200_4x8"}.get(name, "a800_4x8")
    shape = (preset.num_nodes, preset.gpus_per_node, preset.nics_per_node)
    given = replace(cluster(source), nic_efficiency=0.8, nic_channels=1)  # as their commands say
    made = Scale(32, 7e8, *shape).cluster(given, LARGE, SMALL)
    for field in ("nic_bandwidth", "nic_latency", "nvlink_bandwidth", "nvlink_latency", "nic_channels"):
        assert getattr(preset, field) == pytest.approx(getattr(made, field), rel=0.01)
    assert Cost(preset, SMALL).cluster.device.tile == 1
