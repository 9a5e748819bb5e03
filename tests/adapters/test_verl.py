"""verl's balancing by the cost model's work, within its token limit; and its dynamic context parallelism."""

import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.adapters.interfaces import put_megatron, put_module, put_verl, verl_batch
from zbench.adapters import verl
from zbench.adapters.frameworks import framework_module
from zbench.adapters.partitions import balanced_partitions, fewest_sets
from zbench.adapters.planning import Planning
from zbench.adapters.sequence_work import alone_seconds, fit_sequence_work
from zbench.systems.common.differencing import balanced_sets

LENGTHS = [min(20_000, int(n) + 1) for n in np.random.default_rng(3).lognormal(7.5, 1.2, 96)]
LIMIT = 20_480


def balancing(monkeypatch: pytest.MonkeyPatch, which: str) -> ModuleType:
    """The real module where verl is on the path, or one of its interface; what is replaced in it is put back."""
    if which == "interface":
        return put_verl(monkeypatch)[0]
    try:
        module = framework_module(verl.BALANCING, "the test", "install verl")
    except ValueError as error:
        pytest.skip(str(error))
    for name in ("calculate_workload", "get_seqlen_balanced_partitions", "rearrange_micro_batches"):
        monkeypatch.setattr(module, name, getattr(module, name))
    return module


def test_the_work_is_the_cost_model_s() -> None:
    cost = Planning.of("a800_4x8", "llama_7b").cost
    work = fit_sequence_work(cost)
    lengths = np.array([200, 3000, 70_000, 250_000])
    assert work.worst < 0.01
    assert work.unit * work(lengths) == pytest.approx(alone_seconds(lengths, cost), rel=0.01)
    tensor = torch.tensor(lengths)
    assert torch.equal(work(tensor), torch.from_numpy(work(lengths)))
    assert work(tensor).dtype == torch.int64
    assert work(2**20) * 1_000 < 2**63  # whole numbers that can be added up


def test_the_error_of_a_fit_is_told() -> None:
    """Under a window the work grows with the square up to it only, which the form cannot say."""
    assert fit_sequence_work(Planning.of("a800_4x8", "llama_7b", "full").cost).worst < 0.01
    assert fit_sequence_work(Planning.of("a800_4x8", "llama_7b", "window:65536").cost).worst > 0.3
    with pytest.raises(ValueError, match=r"mask window:1 on .* has no work of the form a L\^2 \+ b L"):
        fit_sequence_work(Planning.of("a800_4x8", "llama_7b", "window:1").cost)


@pytest.mark.parametrize("which", ["interface", "package"])
@pytest.mark.parametrize("each", [1, 4])
def test_micro_batches_keep_the_limit(monkeypatch: pytest.MonkeyPatch, which: str, each: int) -> None:
    module = balancing(monkeypatch, which)
    work = verl.install(cluster="a800_2x8", model="llama_7b")
    lengths = LENGTHS if each == 1 else [n // 4 + 1 for n in LENGTHS]
    _, indices = module.rearrange_micro_batches(as_given(which, lengths), LIMIT, force_group_size=each)
    assert sorted(one for some in indices for one in some) == list(range(len(lengths)))
    assert all(sum(lengths[one] for one in some) <= LIMIT for some in indices)
    items = [sum(lengths[at : at + each]) for at in range(0, len(lengths), each)]
    assert len(indices) == fewest_sets(items, LIMIT)
    assert all(some[at] % each == 0 for some in indices for at in range(0, len(some), each))
    assert module.calculate_workload is work
    assert sorted(module.get_seqlen_balanced_partitions([5, 1, 4, 3], 2, True)) == [[0, 1], [2, 3]]  # without a limit


def as_given(which: str, lengths: list[int]) -> object:
    if which == "interface":
        return verl_batch(lengths)
    return import_module("tensordict").TensorDict(verl_batch(lengths), batch_size=len(lengths))


def test_install_reaches_modules_that_have_the_functions_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module, trainer = put_verl(monkeypatch)
    other = put_module(monkeypatch, "verlike.trainer", calculate_workload=module.calculate_workload)
    work = verl.install(cluster="a800_2x8", model="llama_7b")
    again = verl.install(cluster="a800_2x8", model="llama_3b")  # a second time replaces the first
    assert trainer.calculate_workload is again
    assert again != work
    assert trainer.get_seqlen_balanced_partitions is verl.get_seqlen_balanced_partitions
    assert other.calculate_workload is not again  # another package's
    module.rearrange_micro_batches(verl_batch(LENGTHS), LIMIT)


def test_verl_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, verl.BALANCING, None)
    with pytest.raises(ValueError, match=r"needs verl\.utils\.seqlen_balancing, .*pip install 'verl>=0\.9'"):
        verl.install(cluster="a800_2x8", model="llama_7b")


def test_dynamic_cp_takes_the_planned_class(monkeypatch: pytest.MonkeyPatch) -> None:
    put_megatron(monkeypatch)
    module = put_module(monkeypatch, verl.DYNAMIC_CP, get_megatron_dynamic_cp_scheduler_cls=lambda: None)
    made = verl.install_dynamic_cp(cluster="local_2x2", model="tiny")
    assert module.get_megatron_dynamic_cp_scheduler_cls() is made
    scheduler = made(
        max_seqlen_per_dp_cp_rank=512, cp_size=2, dp_size=2, microbatch_group_size_per_vp_stage=None
    )  # as verl makes it
    groups = scheduler.get_groups_and_subsamples(list(enumerate([700, 30, 60, 20, 500])))
    assert {one for ranks in groups for some in ranks for one in some} == set(range(5))


def heaviest(sets: list[list[int]], works: list[int]) -> int:
    return max(sum(works[one] for one in some) for some in sets)


@pytest.mark.parametrize(("count", "equal"), [(8, True), (32, True), (8, False), (13, False)])
def test_sets_are_no_worse_than_the_differencing_method_s(count: int, equal: bool) -> None:
    works = [24576 * n + n * n for n in LENGTHS]
    sets, usual = balanced_partitions(works, count, equal), balanced_sets(works, count, equal)
    assert sorted(one for some in sets for one in some) == list(range(len(works)))
    assert all(some == sorted(some) and some for some in sets)
    assert not equal or {len(some) for some in sets} == {len(works) // count}
    assert heaviest(sets, works) <= heaviest(usual, works)


def test_sets_under_random_limits() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        lengths = random.integers(1, 100, random.integers(1, 40)).tolist()
        limit = int(random.integers(max(lengths), 3 * max(lengths)))
        count = fewest_sets(lengths, limit)
        sets = balanced_partitions([n * n for n in lengths], count, False, lengths, limit)
        assert sorted(one for some in sets for one in some) == list(range(len(lengths)))
        assert max(sum(lengths[one] for one in some) for some in sets) <= limit
        assert all(sets)


def test_sets_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="3 items for 4 sets; it takes at least an item"):
        balanced_partitions([1, 2, 3], 4, False)
    with pytest.raises(ValueError, match="3 items for 2 sets of as many each; it takes a multiple of 2"):
        balanced_partitions([1, 2, 3], 2, True)
    over = balanced_partitions([9, 9, 9], 2, False, [9, 9, 9], 10)  # no way: verl looks, and asks for more
    assert sorted(len(some) for some in over) == [1, 2]
