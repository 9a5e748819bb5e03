"""Formulas against brute force, published ratios between conventions, and hand-made records."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.describe.model import Model
from zbench.interfaces.result import SECONDS_FOR
from zbench.record.flops import CONVENTIONS, Facts, flops, mfu
from zbench.record.metrics import (
    Figures,
    counted_rounds,
    exposed_communication,
    figures,
    imbalance,
    memory_verdict,
    nic_idle,
    nic_purposes,
    nic_utilization,
    step_time_shares,
)
from zbench.record.speedup import speedup
from zbench.record.words import PARTS
from zbench.step.operations import QUEUES

TINY = Facts(
    num_ranks=2,
    num_gpus=2,
    nics_per_node=1,
    nic_bandwidth=100.0,
    peak_flops=1000.0,
    num_layers=3,
    num_heads=2,
    head_dim=5,
    active_params=70,
    active_matmul_params=50,
    head_params=20,
    embedding_params=20,
    context_limit=8,
)


def facts_of(model: Model, context_limit: int | None = None) -> Facts:
    return Facts(
        1,
        1,
        1,
        1.0,
        1.0,
        model.num_layers,
        model.num_heads,
        model.head_dim,
        model.total_params,
        model.active_matmul_params,
        model.head_params,
        model.head_params,
        context_limit,
    )


def step(number: int = 0, **changes: object) -> dict[str, object]:
    raw = {
        "step": number,
        "batch": f"b{number}",
        "tokens": 100,
        "sum_squared": 5000,
        "max_length": 60,
        "plan_seconds": 0.25,
        "seconds": 2.0,
        "bound_seconds": 1.0,
        "attention_seconds": [0.5, 0.25],
        "linear_seconds": [0.5, 0.25],
        "communication_seconds": [0.5, 0.5],
        "exposed_seconds": [0.25, 0.0],
        "nic_tx_bytes": [100, 0],
        "nic_rx_bytes": [300, 200],
        "peak_bytes": [7, 9],
        "capacity_bytes": 8,
        "out_of_memory": False,
    }
    return {**raw, **changes}


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_attention_flops_are_those_of_every_visible_pair(lengths: list[int]) -> None:
    pairs = sum(1 for length in lengths for query in range(length) for key in range(length) if key <= query)
    forward = pairs * TINY.num_layers * TINY.num_heads * (2 * TINY.head_dim + 2 * TINY.head_dim)
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    assert flops(TINY, tokens, squares, 8) == 6 * 50 * tokens + 3 * forward


def test_what_experts_drop_is_no_work() -> None:
    """Of 50 parameters 30 are of experts that a token chooses: half of the choices dropped are 15 that it meets not.
    Conventions of others count what their authors' code does, and records without the fact what they did."""
    dropped = [step(expert_rows={"dropped": 0.5, "padded": 0.25})]
    routed = replace(TINY, routed_params=30)
    less = 6 * 15 * 100 / (2.0 * 2 * 1000)
    assert mfu(routed, dropped) == pytest.approx(mfu(TINY, [step()]) - less)
    assert mfu(TINY, dropped) == mfu(TINY, [step()]) == mfu(routed, [step()])
    assert mfu(routed, dropped, "megatron") == mfu(TINY, [step()], "megatron")
    assert mfu(routed, [step(expert_rows={"kept": 1.5, "padded": 0.0})]) == pytest.approx(mfu(TINY, [step()]) + less)
    found = figures(routed, [*dropped, step(1, expert_rows={"dropped": 0.0, "padded": 0.75})])
    assert (found.dropped_choices, found.padded_rows) == (0.25, 0.5)
    assert figures(TINY, [step(), *dropped]).dropped_choices is None


def test_conventions_differ_as_published() -> None:
    """The ratios others measured for Llama-3-8B on a long-tail batch: sum s^2 / tokens 9772, packs of 131,072."""
    llama3_8b = Model("llama3_8b", 32, 4096, 32, 8, 128, 14336, 128256)
    facts = facts_of(llama3_8b)
    tokens = 1_040_000
    of = {name: flops(facts, tokens, 9772 * tokens, 131072, name) for name in CONVENTIONS}
    assert of["megatron"] == pytest.approx(55.05e15, rel=0.01)
    assert of["zbench"] / of["megatron"] == pytest.approx(1.00, rel=0.005)
    assert of["verl"] / of["megatron"] == pytest.approx(1.06, rel=0.01)
    assert of["6nd"] / of["megatron"] == pytest.approx(0.91, rel=0.01)
    assert of["torchtitan"] / of["megatron"] == pytest.approx(4.77, rel=0.01)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ValueError, match="convention is 'mine'; it takes one of zbench, megatron"):
        flops(TINY, 1, 1, 1, "mine")


def test_figures_of_two_steps() -> None:
    found = figures(TINY, [step(0), step(1, seconds=6.0, tokens=300, plan_seconds=0.75, peak_bytes=[8, 3])])
    assert found.tokens_per_second == 400 / 8
    assert found.step_seconds == 4.0
    assert found.bound_ratio == 2 / 8
    assert found.plan_seconds == 0.5
    assert found.peak_bytes == 9
    assert found.imbalance == pytest.approx(1 / 0.75)
    assert found.exposed_communication == 0.5 / 2.0
    needed = 6 * 50 * 400 + 6 * 3 * 2 * 5 * (10000 + 400)
    assert found.mfu == pytest.approx(needed / (8 * 2 * 1000))
    # NIC 0: (100 + 300) x 2 of 2 directions x 100 bytes/s x 8 s; NIC 1: 200 x 2 of the same
    assert (found.nic_utilization_max, found.nic_utilization_min) == (0.5, 0.25)
    assert found.nic_utilization == 0.375


def test_the_ceiling_ratio_is_of_records_that_have_a_ceiling() -> None:
    steps = [step(0, ceiling_seconds=1.5), step(1, seconds=6.0, ceiling_seconds=2.5)]
    assert figures(TINY, steps).ceiling_ratio == 4 / 8
    assert figures(TINY, [steps[0], step(1)]).ceiling_ratio is None
    assert figures(TINY, [step(0), step(1, ceiling_seconds=None)]).ceiling_ratio is None


def test_a_perfectly_spread_idle_step() -> None:
    quiet = step(communication_seconds=[0.0, 0.0], exposed_seconds=[0.0, 0.0], nic_tx_bytes=[0], nic_rx_bytes=[0])
    assert exposed_communication([quiet]) == 0.0
    assert nic_utilization(TINY, [quiet]) == [0.0]
    assert imbalance(step(attention_seconds=[0.0, 0.0], linear_seconds=[0.0, 0.0])) == 1.0


def test_out_of_memory_has_no_throughput_but_a_verdict() -> None:
    found = figures(TINY, [step(0), step(1, out_of_memory=True, peak_bytes=[2**31, 5], capacity_bytes=2**30)])
    assert (found.tokens_per_second, found.mfu, found.step_seconds, found.bound_ratio) == (None, None, None, None)
    assert found.out_of_memory
    assert memory_verdict(found) == "out of memory: needs 2.0 GiB of 0.0 GiB"
    assert memory_verdict(figures(TINY, [step()])) is None


def test_no_steps_no_figures() -> None:
    assert figures(TINY, []) == Figures()


def test_steps_that_do_not_count_are_in_no_figure_but_their_number() -> None:
    good, bad = step(0), step(1, valid=False, seconds=100.0)
    found = figures(TINY, [good, bad])
    assert found.invalid_steps == 1
    assert replace(found, invalid_steps=0) == figures(TINY, [good])
    assert figures(TINY, [bad]) == Figures(invalid_steps=1)
    slow = [step(0, seconds=6.0), step(1, seconds=6.0)]
    assert speedup([good, bad], slow) == 3.0
    assert speedup(slow, [good, bad]) == pytest.approx(1 / 3)
    assert speedup([bad], slow) is None


def test_idle_nics_are_those_that_carry_next_to_nothing() -> None:
    """NICs of 100 bytes/s, looked at every half second: below 2.5 bytes one is idle."""
    series = {"interval": 0.5, "tx": [[50, 2], [3, 0]], "rx": [[2, 3], [50, 50]]}
    assert nic_idle(TINY, [step(nic_series=series)]) == 3 / 8
    assert nic_idle(TINY, [step(nic_series=series), step(1)]) == 3 / 8
    assert nic_idle(TINY, [step()]) is None


def test_what_nics_send_for_sums_to_their_utilisation() -> None:
    told = {"attention": [3_000_000, 0], "gradients": [1_000_000, 500_000], "switch": [0, 1_500_000]}
    one = step(nic_tx_for=told, nic_tx_bytes=[4_000_000, 2_000_000], nic_rx_bytes=[2_000_000, 4_000_000])
    found = nic_purposes(TINY, [one])
    whole = TINY.nic_bandwidth * 2 * one["seconds"]
    assert found == {name: sum(sizes) / whole for name, sizes in told.items()}
    assert sum(found.values()) == pytest.approx(sum(nic_utilization(TINY, [one])) / 2)
    derived = figures(TINY, [one])
    assert (derived.nic_attention, derived.nic_parameters) == (3_000_000 / whole, None)
    assert nic_purposes(TINY, [one, step()]) == {}  # not all steps tell
    quiet = step(1, nic_tx_bytes=[0, 0], nic_rx_bytes=[0, 0])  # as in the midst of a round
    assert nic_purposes(TINY, [one, quiet]) == {name: share / 2 for name, share in found.items()}


def test_every_part_of_a_step_and_every_purpose_has_a_figure_and_words() -> None:
    names = set(Figures.__dataclass_fields__)
    assert {f"nic_{name}" for name in QUEUES} - names == {"nic_compute", "nic_host"}  # hosts take no NIC
    assert {name for name in names if name.startswith("time_")} == {f"time_{name}" for name in SECONDS_FOR}
    assert set(PARTS) == set(SECONDS_FOR)
    assert {f"waiting_{name}" for name in QUEUES[3:]} <= set(SECONDS_FOR)  # attention's and tensor_parallel's are split


def test_shares_of_a_step_are_means_of_its_ranks() -> None:
    """Steps of 2 and 6 seconds on two ranks: long ones weigh more."""
    short = step(seconds=2.0, seconds_for={"linear": [1.0, 2.0], "waiting_link": [1.0, 0.0]})
    long = step(seconds=6.0, seconds_for={"linear": [6.0, 3.0], "end": [0.0, 3.0]})
    found = step_time_shares([short, long])
    assert found == pytest.approx({"linear": 6 / 8, "waiting_link": 0.5 / 8, "end": 1.5 / 8})
    assert sum(found.values()) == pytest.approx(1)
    derived = figures(TINY, [short, long])
    assert derived.time_linear == pytest.approx(6 / 8)
    assert derived.time_attention is None
    assert step_time_shares([short, step()]) == {}  # not all steps tell: one is of before


def test_torchtitan_takes_the_longest_sequence_where_the_workload_has_no_limit() -> None:
    free = Facts(
        **{name: getattr(TINY, name) for name in Facts.__dataclass_fields__ if name != "context_limit"},
        context_limit=None,
    )
    limited, longest = figures(TINY, [step()], "torchtitan").mfu, figures(free, [step()], "torchtitan").mfu
    assert limited is not None
    assert longest is not None
    assert longest / limited == pytest.approx((300 + 12 * 30 * 60) / (300 + 12 * 30 * 8))


def test_speedup_is_over_the_same_batches() -> None:
    slow = [step(number, seconds=6.0) for number in range(3)]
    assert speedup([step(0), step(1)], slow) == 3.0
    assert speedup([step(0, batch="other")], slow) is None
    assert speedup([step(5)], slow) is None
    assert speedup([], slow) is None
    assert speedup([step(0)], [step(0, out_of_memory=True)]) is None
    assert speedup([step(0, out_of_memory=True)], slow) is None


@pytest.mark.parametrize("value", ["x", None, -1, 0, True])
def test_facts_that_are_no_numbers_are_refused(value: object) -> None:
    good = {name: getattr(TINY, name) for name in Facts.__dataclass_fields__}
    assert Facts.of({**good, "context_limit": None, "embedding_params": 0, "more": "things"}).context_limit is None
    with pytest.raises(ValueError, match=r"facts\.peak_flops"):
        Facts.of({**good, "peak_flops": value})


def test_the_bubble_is_a_share_of_all_steps_and_none_without_stages() -> None:
    staged = [step(0, phases={"bubble": 0.5}), step(1, seconds=6.0, phases={"bubble": 0.25})]
    assert figures(TINY, staged).bubble == 0.75 / 8
    assert figures(TINY, [step(phases={"gradients": 0.1})]).bubble is None
    assert figures(TINY, [staged[0], step(1)]).bubble is None


@pytest.mark.parametrize(
    ("sync", "rounds"),
    [
        ({}, [range(1), range(2, 3), range(3, 4), range(4, 5)]),  # of older records
        ({"method": "every_step", "steps": 4}, [range(1), range(2, 3), range(3, 4), range(4, 5)]),
        ({"method": "local_sgd", "steps": 2}, [range(2, 4)]),  # what is left of a round does not count
        ({"method": "local_sgd"}, [range(1), range(2, 3), range(3, 4), range(4, 5)]),
    ],
)
def test_a_round_counts_with_all_of_its_steps(sync: dict[str, object], rounds: list[range]) -> None:
    steps: list[dict[str, object]] = [{}, {"valid": False}, {"valid": True}, {}, {}]
    assert counted_rounds(steps, sync) == rounds
