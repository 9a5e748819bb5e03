"""What a job is estimated to take: never more than it takes, and enough to refuse what no machine can do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import MOST_RANKS
from zbench.interfaces.protocols import Size
from zbench.passes.reverse import Mode
from zbench.plans.plan import Plan
from zbench.run.checks.price import (
    MOST_TOKENS,
    OPERATION,
    PIECE,
    Price,
    check_memory_here,
    check_record,
    check_size,
    drawn,
    priced,
)
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.systems.allgather import AllGather
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses
from zbench.workloads.fixed import Fixed

GIB = 2**30


def composed(*overrides: str) -> tuple[Parts, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["tracker=none", *overrides])
    parts = Parts.of(config, Settings.of(config))
    return parts, make_system(config, parts.cost)


def held(plan: Plan) -> Size:
    return Size(len(plan.forward) + len(plan.backward), len(plan.blocks.seq))


@pytest.mark.parametrize("system", ["ring", "allgather", "ulysses", "hybrid_dp", "local_packing", "zeppelin"])
@pytest.mark.parametrize("workload", ["longtail_128k", "fixed_512", "prolong64k"])
def test_no_plan_is_smaller_than_it_was_priced(system: str, workload: str) -> None:
    """But for the number of sequences, which is an estimate too: a batch of a few has a few more or fewer."""
    parts, made = composed(f"system={system}", f"workload={workload}", "cluster.num_nodes=8")
    price = priced(made, parts.workload, parts.tokens, parts.cluster.num_ranks)
    batch = parts.batch(0)
    plans = [held(plan) for plan in made.plan(batch)]
    share = len(batch.lengths) / price.sequences
    assert 0.5 < share < 2
    assert sum(one.operations for one in plans) >= price.size.operations * min(1, share)
    assert sum(one.pieces for one in plans) >= price.size.pieces * share * 0.5


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_an_operation_and_a_piece_take_as_much_as_is_said(nodes: int) -> None:
    """The columns alone, which a plan holds as long as it is there."""
    parts, made = composed("system=ring", f"cluster.num_nodes={nodes}")
    (plan,) = made.plan(parts.batch(0))
    columns = sum(
        getattr(ops, name).nbytes for ops in (plan.forward, plan.backward) for name in ops.__dataclass_fields__
    )
    pieces = sum(getattr(plan.blocks, name).nbytes for name in ("seq", "start", "stop", "block"))
    assert columns >= OPERATION * held(plan).operations
    assert pieces >= 0.8 * PIECE * held(plan).pieces


@pytest.mark.parametrize("kind", [Ring, AllGather])
def test_sizes_grow_with_ranks_squared(kind: Any, uneven: Cost) -> None:
    lengths = np.array([100_000, 7])
    small, large = (
        kind(replace(uneven, cluster=replace(uneven.cluster, num_nodes=nodes))).size(lengths, 10) for nodes in (10, 20)
    )
    assert large.operations == 4 * small.operations
    assert large.pieces >= small.pieces


@pytest.mark.parametrize("degree", [None, 1, 3, 5])
@pytest.mark.parametrize("backward", ["keep", "carry", "regather"])
@pytest.mark.parametrize("lengths", [[3], [31], [1, 29], [40_000, 7, 7], [3] * 40])
def test_ulysses_has_at_least_the_operations_it_says(
    degree: int | None, backward: Mode, lengths: list[int], uneven: Cost
) -> None:
    system = Ulysses(uneven, degree, backward)
    size = system.size(np.array(lengths), len(lengths))
    (plan,) = system.plan(Batch(np.array(lengths), 0, 0))
    assert held(plan).operations >= size.operations
    assert held(plan).pieces >= size.pieces
    if sum(lengths) > 100 and backward == "keep":
        assert held(plan).operations == size.operations


@pytest.mark.parametrize("system", ["ring", "zeppelin", "nodewise", "ulysses"])
def test_4096_gpus_fit_24_gib(system: str) -> None:
    parts, made = composed(f"system={system}", "cluster.num_nodes=512")
    price = priced(made, parts.workload, parts.tokens, parts.cluster.num_ranks)
    check_memory_here(price, 16 * GIB, "system=x", "cluster.num_nodes=512", "tokens_per_gpu=4096")


@pytest.mark.parametrize("overrides", [("cluster.num_nodes=4096",), ("tokens_per_gpu=134000000",)])
def test_what_is_too_large_is_one_sentence(overrides: tuple[str, ...]) -> None:
    parts, made = composed("system=ring", *overrides)
    price = priced(made, parts.workload, parts.tokens, parts.cluster.num_ranks)
    told = r"^baseline=ring needs an estimated .* GiB .* 4\.0 GiB are free: use less than N or T \(or baseline=null\)$"
    with pytest.raises(ValueError, match=told):
        check_memory_here(price, 4 * GIB, "baseline=ring", "N", "T")


def test_an_estimate_that_just_fits() -> None:
    price = Price(10, Size(100, 20), 3)
    check_memory_here(price, price.memory_bytes, "system=x", "N", "T")
    with pytest.raises(
        ValueError, match=r"10 sequences on 3 ranks, in plans of at least 100 operations .* another system"
    ):
        check_memory_here(price, price.memory_bytes - 1, "system=x", "N", "T")


def test_groups_of_gpus_are_told_of_where_there_may_be_some() -> None:
    price = Price(10, Size(100, 20), 3, played=1000)
    told = r"use less than N or T \(or another system\), or parallel.tensor_parallel above 1, as a group of GPUs is one"
    with pytest.raises(ValueError, match=told):
        check_memory_here(price, price.memory_bytes - 1, "system=x", "N", "T", True)
    with pytest.raises(ValueError, match=r"\(or another system\)$"):
        check_memory_here(price, price.memory_bytes - 1, "system=x", "N", "T")


def test_a_ring_of_1024_gpus_as_whole_steps_is_refused_where_13_gib_are_free() -> None:
    parts, made = composed("system=ring", "cluster.num_nodes=128")
    price = priced(made, parts.workload, parts.tokens, parts.cluster.num_ranks, parts.executor)
    assert price.memory_bytes > 13 * GIB


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (
            (10**6, 8, 4096),
            "^cluster.num_nodes x cluster.gpus_per_node is 1,000,000 x 8; zbench takes at most 1,048,576",
        ),
        ((10**30, 1, 1), "zbench takes at most 1,048,576 GPUs$"),
        ((4, 8, 10**9), "^tokens_per_gpu is 1,000,000,000; with 32 GPUs it may be at most 134,217,728"),
    ],
)
def test_beyond_all_machines(sizes: tuple[int, int, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_size(*sizes)


def test_the_largest_sizes_are_let_through() -> None:
    check_size(MOST_RANKS // 8, 8, 4096)
    check_size(1, 1, MOST_TOKENS)


def test_the_record_has_to_have_room() -> None:
    check_record(100_000, 2, 32, "r.jsonl", 10**9)
    check_record(10**12, 2, 32, "/dev/null", None)
    with pytest.raises(
        ValueError, match=r"^out is 'r.jsonl', which can grow by 1,000.0 GB; .* steps=1,000,000,000,000 takes"
    ):
        check_record(10**12, 1, 32, "r.jsonl", 10**12)


def test_a_third_partys_workload_counts_as_one_sequence() -> None:
    class Mine:
        def draw(self, *_: Any) -> Any:
            raise AssertionError("nobody said what that does")

    assert drawn(Mine(), 100).tolist() == [100]  # type: ignore[arg-type]
    assert drawn(Fixed(0, 100, 300, context_limit=70), 100).max() == 70


@pytest.mark.parametrize(
    ("overrides", "each"),
    [
        ((), 25 + 12 * 280),
        (("executor=simulated", "model.num_layers=2", "parallel.tensor_parallel=2"), 25 + 2 * 2 * 280),
        (("executor=simulated", "model=llama_7b_pp4"), 25 + 4 * 8 * 280),
    ],
)
def test_whole_steps_are_priced_by_the_layers_that_are_played(overrides: tuple[str, ...], each: int) -> None:
    parts, made = composed("system=ring", *overrides)
    price = priced(made, parts.workload, parts.tokens, parts.cluster.num_ranks, parts.executor)
    rest = replace(price, size=Size(0, price.size.pieces)).memory_bytes
    assert price.memory_bytes - rest == each * price.size.operations
