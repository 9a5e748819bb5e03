"""slime's schedule by the planner: what its docstring promises, and a step no longer than its own."""

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.adapters.interfaces import put_module
from zbench.adapters import slime
from zbench.adapters.planning import Planning
from zbench.adapters.sequence_work import fit_sequence_work

PARALLEL = {"dp_size": 4, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
LENGTHS = [min(4000, int(n) + 1) for n in np.random.default_rng(5).lognormal(6.0, 1.0, 64)]


def options(**keys: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"use_dynamic_batch_size": True, "max_tokens_per_gpu": 2048, "balance_data": True, **keys})


@pytest.fixture(scope="module")
def planning() -> Planning:
    return Planning.of("local_2x2", "tiny")


def check(found: slime.DPSchedule, lengths: list[int], kept: set[int], limit: int, multiple: int = 1) -> None:
    """Checks what slime's docstring says of build_dp_schedule."""
    rows, micro_batches, counts, _ = found
    assert all(count % multiple == 0 for count in counts)
    for row, batches in zip(rows, micro_batches, strict=True):
        assert len(batches) == sum(counts)
        assert [one for some in batches for one in some] == list(range(len(row)))
        for some in batches:
            assert some
            assert len(some) == 1 or sum(lengths[row[one]] for one in some) <= limit
    placed = [one for row in rows for one in row]
    assert len(placed) == len(set(placed))
    assert set(placed) == kept


def test_one_step(planning: Planning) -> None:
    build = slime.schedule_function(planning)
    found = build(options(), PARALLEL, LENGTHS, global_batch_size=64, rollout_indices=list(range(64)))
    check(found, LENGTHS, set(range(64)), 2048)  # the longest ones are above the limit, and alone
    assert max(LENGTHS) > 2048
    assert found[3] == [64]
    assert found == build(options(), PARALLEL, LENGTHS, global_batch_size=64, rollout_indices=list(range(64)))


def test_steps_virtual_stages_and_rollouts_of_several_samples(planning: Planning) -> None:
    build = slime.schedule_function(planning)
    parallel = {**PARALLEL, "cp_size": 2, "vpp_size": 2, "microbatch_group_size_per_vp_stage": 2}
    rollouts = [i // 3 for i in range(63)]  # 21 rollouts of 3: 2 steps of 10, the last is dropped
    found = build(options(), parallel, LENGTHS[:63], global_batch_size=10, rollout_indices=rollouts)
    check(found, LENGTHS, set(range(60)), 4096, multiple=2)
    assert found[3] == [10, 10]
    first = {
        one
        for row, batches in zip(found[0], found[1], strict=True)
        for some in batches[: found[2][0]]
        for one in (row[place] for place in some)
    }
    assert first == set(range(30))


def test_what_cannot_be(planning: Planning) -> None:
    build = slime.schedule_function(planning)
    with pytest.raises(ValueError, match="global_batch_size is 9 with 8 rollouts; it takes 1 to 8"):
        build(options(), PARALLEL, LENGTHS[:8], global_batch_size=9, rollout_indices=list(range(8)))
    with pytest.raises(ValueError, match="a step has 3 samples for 4 ranks"):
        build(options(), PARALLEL, LENGTHS[:3], global_batch_size=3, rollout_indices=list(range(3)))
    static = options(use_dynamic_batch_size=False)
    with pytest.raises(ValueError, match="use_dynamic_batch_size is off"):
        build(static, PARALLEL, LENGTHS, global_batch_size=64, rollout_indices=list(range(64)))


def test_install_keeps_slime_s_own_for_static_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_dp_schedule(args: Any, config: Any, lengths: Any, *, global_batch_size: int, rollout_indices: Any) -> str:
        return "slime's own"

    module = put_module(monkeypatch, slime.MODULE, build_dp_schedule=build_dp_schedule)
    user = put_module(monkeypatch, "slime.ray.rollout", build_dp_schedule=build_dp_schedule)
    made = slime.install(cluster="local_2x2", model="tiny")
    again = slime.install(cluster="local_2x2", model="tiny")
    assert module.build_dp_schedule is user.build_dp_schedule is again
    assert again is not made
    static: Any = again(options(use_dynamic_batch_size=False), PARALLEL, [1], global_batch_size=1, rollout_indices=[0])
    assert static == "slime's own"


def test_slime_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, slime.MODULE, None)
    with pytest.raises(ValueError, match=r"needs slime\.utils\.dp_schedule, .*github\.com/THUDM/slime"):
        slime.install(cluster="local_2x2", model="tiny")


def test_beside_slime_itself(planning: Planning) -> None:
    """With slime on the path: as few micro-batches, and less work in the slowest ranks of them together."""
    try:
        own = import_module(slime.MODULE).build_dp_schedule
    except ImportError as error:
        pytest.skip(f"slime is not on the path: {error}")
    shape = {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "vocab_size": 1000,
        "ffn_hidden_size": 512,
        "num_experts": None,
        "num_layers": 2,
        "kv_channels": 32,
    }
    args = options(balance_by_flops=False, micro_batch_size=1, **shape)
    given: dict[str, Any] = {"global_batch_size": 64, "rollout_indices": list(range(64))}
    theirs = own(args, PARALLEL, LENGTHS, **given)
    ours = slime.schedule_function(planning, own)(args, PARALLEL, LENGTHS, **given)
    check(theirs, LENGTHS, set(range(64)), 2048)
    check(ours, LENGTHS, set(range(64)), 2048)
    work = fit_sequence_work(planning.cost)
    assert slowest(ours, work) <= slowest(theirs, work)


def slowest(found: slime.DPSchedule, work: Any) -> int:
    """The work of a step whose ranks wait for one another at the end of every micro-batch."""
    total = 0
    for turn in range(sum(found[2])):
        total += max(
            sum(work(LENGTHS[row[one]]) for one in batches[turn]) for row, batches in zip(*found[:2], strict=True)
        )
    return total
