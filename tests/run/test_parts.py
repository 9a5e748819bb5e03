"""The parts of a run: what planners of every executor are told of a device."""

import pytest
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.run.parts import Parts
from zbench.run.settings import Settings

SHAPES = ("+cluster.device.matmul_shapes=true", "+cluster.device.multiprocessors=108")


def parts(*words: str) -> Parts:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["tracker=none", *words])
    return Parts.of(config, Settings.of(config))


@pytest.mark.parametrize(
    "words",
    [
        ("executor=torch", "workload=pystdlib"),
        ("executor=torch_attention", "workload=pystdlib"),
        ("executor=desk", "cluster=desk_2x4_a800"),
        ("executor=desk_attention", "cluster=desk_2x4_a800"),
    ],
)
def test_planners_of_every_executor_may_know_matmuls_by_shape(words: tuple[str, ...]) -> None:
    """A world is of the clock alone; what a device is described as, is what all plan and predict with."""
    assert parts(*words, *SHAPES).seen.is_by_shape
    assert not parts(*words).seen.is_by_shape
