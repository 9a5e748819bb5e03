"""The planner as megatron-core's scheduler, and the checker of the scheduler that the release ships."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.adapters.interfaces import put_megatron
from zbench.adapters.frameworks import framework_module
from zbench.adapters.megatron_core import DEVELOPMENT, RELEASED, check_groups, check_released, install
from zbench.contracts.schedule import ContractError


def development(monkeypatch: pytest.MonkeyPatch, which: str) -> ModuleType:
    """The real module where the development branch is on the path, or one of its interface."""
    if which == "interface":
        return put_megatron(monkeypatch)
    files = (Path(folder, *DEVELOPMENT.split(".")).with_suffix(".py") for folder in sys.path)
    first = next((file for file in files if file.exists()), None)
    if first is None or "default_dynamic_cp" not in first.read_text():
        pytest.skip("megatron-core's development branch is not on the path")
    module = framework_module(DEVELOPMENT, "the test", "install the development branch")
    monkeypatch.setattr(module, "scheduler_map", dict(module.scheduler_map))
    return module


@pytest.mark.parametrize("which", ["interface", "package"])
@pytest.mark.parametrize("multiple", [None, 2])
def test_planned_groups_keep_the_contract(monkeypatch: pytest.MonkeyPatch, which: str, multiple: int | None) -> None:
    module = development(monkeypatch, which)
    made = install(cluster="local_2x2", model="tiny")
    assert module.scheduler_map["default_dynamic_cp"] is made
    assert issubclass(made, module.DefaultDynamicCPScheduler)
    scheduler = made(512, 2, 2, multiple, max_num_seqs=None, min_cp_size=1)
    samples = [(10 + i, int(n)) for i, n in enumerate(np.random.default_rng(0).integers(8, 1500, 14))]
    groups = scheduler.get_groups_and_subsamples(samples)
    check_groups(groups, samples, 4, max_tokens=512)
    assert len(groups) % (multiple or 1) == 0
    assert groups == made(512, 2, 2, multiple).get_groups_and_subsamples(samples)  # the same on every rank


def test_lengths_that_fit_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    put_megatron(monkeypatch)
    made = install(cluster="local_2x2", model="tiny")
    with pytest.raises(ContractError, match="5,000"):
        made(512, 2, 2, None).get_groups_and_subsamples([(0, 5000), (1, 3), (2, 4), (3, 5)])
    with pytest.raises(ValueError, match="the job has 8 ranks that share a batch and the cluster local_2x2 has 4"):
        made(512, 4, 2, None).get_groups_and_subsamples([(i, 8) for i in range(8)])


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, DEVELOPMENT, None)
    with pytest.raises(ValueError, match=r"needs megatron\.core\.datasets\.data_schedule, .*pip install git"):
        install(cluster="local_2x2", model="tiny")
    put_megatron(monkeypatch)
    monkeypatch.delattr(sys.modules[DEVELOPMENT], "DefaultDynamicCPScheduler")
    with pytest.raises(ValueError, match="which the installed megatron-core does not have"):
        install(cluster="local_2x2", model="tiny")


class Ranks:
    def __init__(self, count: int) -> None:
        self.count = count

    def size(self) -> int:
        return self.count


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = framework_module(RELEASED, "the test", "install the extra peers")
    scheduler = module.BalancedCPScheduler
    monkeypatch.setattr(scheduler, "get_groups_and_subsamples", scheduler.get_groups_and_subsamples)
    return scheduler


def test_the_release_s_scheduler_is_checked(released: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    own = released.get_groups_and_subsamples
    check_released()
    check_released()  # once is enough
    assert released.get_groups_and_subsamples.__wrapped__ is own
    for ranks in (2, 4, 8, 16, 32):
        for limit in (256, 8192):
            samples = [(i, int(n)) for i, n in enumerate(random.integers(1, limit * ranks // 2, 3 * ranks))]
            _, groups = released(limit, Ranks(ranks)).get_groups_and_subsamples(samples, None)
            assert len(groups[0]) == ranks


def test_a_schedule_that_would_hang_is_told(released: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any, samples: Any, config: Any) -> Any:
        return None, [[[0], [0], [1], [1]]]

    monkeypatch.setattr(released, "get_groups_and_subsamples", forgetful)
    check_released()
    with pytest.raises(ContractError, match="sample 2 is in no micro-batch"):
        released(256, Ranks(4)).get_groups_and_subsamples([(0, 5), (1, 6), (2, 7)], None)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([[[0], [0], [1], []]], "micro-batch 0, rank 3 has no sample"),
        ([[[0], [1], [1], [2]]], "has to begin at a multiple of 2"),
        ([[[0], [0], [1], [2]], [[0], [0], [0], [0]]], "which micro-batch 0, rank 0 has too"),
        ([[[0], [0], [1], [1, 2]]], "rank 3 has sample 1 together with rank 2"),
        ([[[0], [0], [1], [7]]], "sample 7, which is none of the batch's"),
    ],
)
def test_groups_that_no_engine_runs(groups: list[list[list[int]]], told: str) -> None:
    with pytest.raises(ContractError, match=told):
        check_groups(groups, [(0, 10), (1, 20), (2, 30)], 4)


@pytest.mark.parametrize(
    ("samples", "told"),
    [(5, "samples is 5; it takes a list"), ([(0, "x")], "sample 0 has 'x' tokens"), (None, "a list")],
)
def test_what_are_no_samples_is_one_sentence(samples: Any, told: str) -> None:
    with pytest.raises(ContractError, match=told):
        check_groups([[[0], [0]]], samples, 2)
