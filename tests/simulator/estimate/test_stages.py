"""Planners' estimate of jobs with stages beside the whole steps that plans become, with every stage of ZeRO and nested
degrees."""

import pytest
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.cost.memory.peak import peak_bytes
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulator.estimate.step import StepEstimate


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3", "mics", "zeropp", "three_level"])
@pytest.mark.parametrize("system", ["zeppelin", "bytescale"])
def test_estimates_are_near_whole_steps(system: str, sharding: str) -> None:
    """llama_7b, a node of a800_4x8 a stage, a batch of longtail_128k: within 4 % in seconds, no memory less than what
    is there, and no step quicker than what none can be."""
    words = [f"system={system}", f"sharding={sharding}", "parallel=pp4", "model.micro_batches=8"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", words)
    parts = Parts.of(config, Settings.of(config))
    batch = parts.workload.batch(0)
    plans = tuple(make_system(config, parts.seen).plan(batch))
    estimate, found = StepEstimate(parts.cost), parts.executor.step(batch, plans)
    seconds = estimate.compared_seconds(batch, plans)
    assert seconds == pytest.approx(found.seconds, rel=0.04)
    assert estimate.least_seconds(batch) <= seconds
    assert max(peak_bytes(plans, parts.cost)) >= max(found.peak_bytes)
    assert found.ceiling_seconds is not None
    assert found.ceiling_seconds <= found.seconds
