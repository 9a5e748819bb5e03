"""Seconds of computes on paced devices: those that the clock plays."""

import numpy as np
import pytest

from tests.runtime.steps.test_compiler import programs_of
from tests.runtime.test_step_executor import WORKLOAD, cost_of
from zbench.runtime.steps.device_seconds import DeviceSeconds
from zbench.runtime.steps.instructions import Compute
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import play_step
from zbench.systems.zeppelin.planner import Zeppelin

COST = cost_of(2, 2, sharding="zero1", tensor_parallel=2)


def test_the_instructions_of_a_process_take_as_long_as_its_gpu_is_busy_when_played() -> None:
    batch = WORKLOAD.batch(0)
    plans = Zeppelin(COST).plan(batch)
    step = Simulated(COST).built(batch, plans)
    seconds = DeviceSeconds(COST.gpus).of(step, plans)
    busy = play_step(step, plans, COST.gpus).busy
    for process in range(step.num_gpus):
        programs, total = programs_of(step, process, seconds), 0.0
        for instance in step.order:
            for _ in instance.layers:
                (program,) = [one for (number, _), one in programs.items() if number == instance.template]
                total += sum(one.seconds for one in program.instructions if isinstance(one, Compute))
        wanted = sum(busy[name][process] for name in ("attend", "optimizer", "compute"))
        assert total == pytest.approx(wanted)
        assert total > 0


def test_without_a_device_nothing_is_paced() -> None:
    batch = WORKLOAD.batch(0)
    plans = Zeppelin(COST).plan(batch)
    step = Simulated(COST).built(batch, plans)
    assert DeviceSeconds().of(step, plans) == ()
    programs = programs_of(step, 0)
    computes = [one for program in programs.values() for one in program.instructions if isinstance(one, Compute)]
    assert np.sum([one.seconds for one in computes]) == 0
