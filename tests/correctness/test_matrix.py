"""python -m zbench.correctness matrix: that it finds what is wrong, and tells it; and the cover of all pairs."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.helpers.strategies import costs
from zbench.correctness import __main__, matrix
from zbench.correctness.adversarial import KINDS, adversarial_batches
from zbench.correctness.combinations import Combination, Combinations, CombinationVerdict
from zbench.correctness.cover import pairwise_cover
from zbench.correctness.reference.step_check import check_step, same_plan, step_faults
from zbench.correctness.strategy_choices import StrategyChoice, choice_cover, expert_degrees
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.ring import Ring

SMALL = ["--models", "tiny,llama_7b", "--clusters", "local_2x2,one_gpu", "--tokens-per-gpu", "64"]


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command as a shell does, and returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "matrix", *arguments])
    return __main__.main()


# -- the cover --------------------------------------------------------------------------------------
@given(st.data())
def test_a_cover_has_every_pair_and_where_it_can_one_that_can_be(data: st.DataObject) -> None:
    systems, models, clusters = ([f"{group}{i}" for i in range(data.draw(st.integers(1, 7)))] for group in "smc")
    able = {pair: data.draw(st.booleans()) for pair in product(models, clusters)}
    found = pairwise_cover(systems, models, clusters, lambda *pair: able[pair], data.draw(st.integers(0, 9)))
    assert len(set(found)) == len(found)
    assert {(one.model, one.cluster) for one in found} == set(able)
    for system in systems:
        mine = [one for one in found if one.system == system]
        assert {one.model for one in mine} == set(models)
        assert {one.cluster for one in mine} == set(clusters)
        placed = [one for one in mine if able[one.model, one.cluster]]
        assert {one.model for one in placed} == {model for model, cluster in able if able[model, cluster]}
        assert {one.cluster for one in placed} == {cluster for model, cluster in able if able[model, cluster]}


def test_a_cover_of_what_can_all_be_is_the_fewest() -> None:
    names = [[f"{group}{i}" for i in range(12)] for group in "smc"]
    assert len(pairwise_cover(*names, lambda model, cluster: True)) == 144


def test_a_cover_of_choices_has_each_for_every_system_that_can_have_it() -> None:
    """Of few combinations as of many; what can have one pair alone has it, what can have none has none."""
    every = [StrategyChoice(again, held) for again in "abc" for held in "xyz"]
    cover = [Combination(system, "m", cluster) for system in ("s", "t") for cluster in "123456"]
    placed = [replace(one, experts=experts) for one in every[:8] for experts in ("whole", "cut")]
    able = {"1": every[8:], "2": [], "3": every[:2], **dict.fromkeys("456", placed)}
    for seed in range(20):
        found = choice_cover(cover, lambda one: able[one.cluster], lambda one, choice: True, seed)
        assert found == choice_cover(cover, lambda one: able[one.cluster], lambda one, choice: True, seed)
        assert set(cover) - set(found) == {one for one in cover if one.cluster == "2"}
        for system in ("s", "t"):
            mine = {one.cluster: choice for one, choice in found.items() if one.system == system}
            assert all(choice in able[cluster] for cluster, choice in mine.items())
            assert {one.recompute for one in mine.values()} == set("abc")
            assert {one.memory for one in mine.values()} == set("xyz")
            assert {one.experts for one in mine.values()} == {"", "whole", "cut"}


def test_choices_of_conf_are_those_that_a_job_can_have() -> None:
    """Hosts' memory goes with clusters that have a link to it, with and without stages; experts are on every GPU, some
    on each of a node, or cut over one."""
    names = ["ring"], ["tiny", "moe_8x550m", "llama_7b_pp4"], ["h100_4x8", "desk_2x4_a800"]
    combinations = Combinations(64, 0, names)
    held_by, costs = combinations.strategy_choices, combinations.costs

    def held(model: str, cluster: str) -> set[str]:
        cost = costs[model, cluster]
        assert isinstance(cost, Cost)
        return {str(one) for one in held_by.possible(cost, combinations.strategies[model])}

    offloads = {f"recompute={again} memory=zero_offload" for again in ("none", "selective", "full", "adaptive")}
    offloads |= {"recompute=full memory=offload", "recompute=full memory=alst"}
    assert held("tiny", "h100_4x8") - held("tiny", "desk_2x4_a800") == offloads
    without = held("tiny", "desk_2x4_a800")
    schedules = {f"{where} schedule={one}" for where in ("whole", "cut") for one in held_by.schedules}
    assert {one.partition(" experts=")[0] for one in held("moe_8x550m", "h100_4x8")} == {*without, *offloads}
    assert held("llama_7b_pp4", "h100_4x8") == {*without, *offloads}
    assert {one.partition(" experts=")[2] for one in held("moe_8x550m", "h100_4x8")} == {"home", *schedules}
    cost = costs["moe_8x550m", "h100_4x8"]
    assert isinstance(cost, Cost)
    degrees = [expert_degrees(cost, one) for one in ("home", "whole", "cut")]
    assert degrees == [(1, 1), (8, 1), (4, 8)]
    assert {one.mlp_chunk_tokens for one in held_by.memory.values()} == {"whole", 32}


# -- the batches ------------------------------------------------------------------------------------
@given(costs(), st.integers(1, 3000), st.integers(0, 100))
def test_batches_are_as_large_as_asked_and_always_the_same(cost: Cost, tokens: int, seed: int) -> None:
    found, again = (adversarial_batches(cost, tokens, seed) for _ in range(2))
    assert list(found) == list(KINDS)
    for kind, batch in found.items():
        assert np.array_equal(batch.lengths, again[kind].lengths)
        assert (batch.lengths >= 1).all()
        assert batch.num_tokens <= tokens * cost.cluster.num_ranks + 1300 or kind == "primes"
    if tokens * cost.cluster.num_ranks > 100:
        assert tokens * cost.cluster.num_ranks // 2 in found["giant"].lengths
        assert found["tail"].num_tokens == tokens * cost.cluster.num_ranks


# -- what is found ----------------------------------------------------------------------------------
@dataclass
class Broken:
    """Ring attention with a mistake."""

    cost: Cost
    mistake: str
    calls: Iterator[int]

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        if self.mistake == "raises" and batch.num_tokens > 1:
            return (np.bincount([-1]),)  # type: ignore[return-value]
        (plan,) = Ring(self.cost).plan(batch)
        if self.mistake == "loses":
            return (plan.with_(backward=plan.backward.take(np.arange(1, len(plan.backward)))),)
        if self.mistake == "wanders" and next(self.calls) % 2:
            plan = plan.with_(blocks=replace(plan.blocks, home=(plan.blocks.home + 1) % plan.num_ranks))
        return (plan,)


MADE = count()


def broken(cost: Cost, mistake: str) -> Broken:
    if mistake == "rude":
        raise ValueError("no way")
    if mistake == "refuses":
        raise ValueError("system is broken; it takes another cluster")
    return Broken(cost, mistake, MADE)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("raises", "batch tail: ValueError: 'list' argument must have no negative elements"),
        ("loses", "batch tail: PlanError: backward: block"),
        ("wanders", "batch tail: another plan of the same batch is not the same"),
        ("rude", "it is refused in words that name no key and its value: no way"),
        ("refuses", ""),
        ("none", ""),
    ],
)
def test_mistakes_of_systems_are_found(mistake: str, told: str) -> None:
    combinations = Combinations(64, 0, (["ring"], ["tiny"], ["local_2x2"]))
    node = {"system": {"_target_": f"{__name__}.broken", "mistake": mistake}}
    combinations.systems = {"broken": OmegaConf.create(node)}
    found = combinations.check(Combination("broken", "tiny", "local_2x2"), ("one", "tail"))
    assert bool(found.refused) == (mistake == "refuses")
    assert bool(found.failures) == bool(told)
    if told:
        assert found.failures[-1].startswith(told)


def test_what_is_too_large_is_out_of_memory_in_a_sentence(uneven: Cost) -> None:
    tight = replace(uneven, cluster=replace(uneven.cluster, device=replace(uneven.cluster.device, memory_bytes=2e5)))
    batch = Batch(np.array([4000, 3]), 0, 0)
    assert check_step(Ring(uneven), lambda: Ring(uneven), uneven, batch).memory == ""
    found = check_step(Ring(tight), lambda: Ring(tight), tight, batch)
    assert found.memory.startswith("rank ")
    assert found.faults == ()


@pytest.mark.parametrize(("memory", "told"), [(80e9, "fits"), (2e5, "does not fit")])
def test_an_estimate_that_has_other_memory_than_the_verifier_is_found(
    memory: float, told: str, uneven: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planners would choose plans that are refused, or leave out plans that fit."""
    cost = replace(uneven, cluster=replace(uneven.cluster, device=replace(uneven.cluster.device, memory_bytes=memory)))
    monkeypatch.setattr(StepEstimate, "fits", lambda *_: memory < 1e6)
    found = check_step(Ring(cost), lambda: Ring(cost), cost, Batch(np.array([4000, 3]), 0, 0))
    assert f"verified, it {told} its memory; estimated it is otherwise" in found.faults


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: {"seconds": float("nan")}, "the step takes nan s"),
        (lambda one: {"bound_seconds": 2 * one.seconds}, "and no plan less than"),
        (lambda one: {"ceiling_seconds": 2 * one.seconds}, "and no plan with its gathers and reductions less than"),
        (
            lambda one: {"ceiling_seconds": one.bound_seconds / 2},
            "and no plan with its gathers and reductions less than",
        ),
        (lambda one: {"attention_seconds": one.attention_seconds[1:]}, "attention_seconds is not a number"),
        (lambda one: {"exposed_nic_seconds": [-1e-19, *one.exposed_nic_seconds[1:]]}, "exposed_nic_seconds is not"),
        (lambda one: {"linear_seconds": [2 * one.seconds for _ in one.linear_seconds]}, "rank 0 computes"),
        (lambda one: {"exposed_seconds": [1 + x for x in one.communication_seconds]}, "rank 0 shows"),
        (lambda one: {"nic_tx_bytes": [1 + x for x in one.nic_tx_bytes]}, "NICs send"),
        (lambda one: {"nvlink_bytes": -1}, "bytes are not numbers"),
        (lambda one: {"out_of_memory": True}, "out_of_memory is True"),
        (lambda one: {"phases": {"bubble": np.float64(1)}}, "phases has what a record cannot hold"),
    ],
)
def test_what_cannot_be_in_a_step_is_found(uneven: Cost, change: Callable[[Any], dict[str, Any]], told: str) -> None:
    batch = Batch(np.array([400, 30]), 0, 0)
    step = Simulated(uneven).step(batch, Ring(uneven).plan(batch))
    assert list(step_faults(step, uneven)) == []
    assert any(told in fault for fault in step_faults(replace(step, **change(step)), uneven))


def test_plans_that_differ_in_one_number_are_not_the_same(uneven: Cost) -> None:
    batch = Batch(np.array([400, 30]), 0, 0)
    (one,), (other,) = (Ring(uneven).plan(batch) for _ in range(2))
    assert same_plan(one, other)
    other.backward.keep[0] += 1
    assert not same_plan(one, other)
    assert not same_plan(one, one.with_(backward_mode="keep"))


# -- the command ------------------------------------------------------------------------------------
def test_the_table_counts_batches_and_names_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["--systems", "ring,hydraulis", *SMALL, "--markdown"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "|  | tiny | llama_7b |"
    assert [line.split("|")[1:3] for line in lines[2:4]] == [[" ring ", " 12 "], [" hydraulis ", " 12 "]]
    assert sum(line.startswith("refused, 2 systems with llama_7b on ") for line in lines) == 1
    assert lines[-1].startswith("8 combinations: ")
    assert lines[-1].endswith("0 FAILED")
    assert "matrix: 8 of 8 combinations, 0 of them failed" in told.err
    assert matrix.main(["--systems", "ring,hydraulis", *SMALL, "--markdown"]) == 0
    assert capsys.readouterr().out == told.out


def test_pairs_are_fewer_combinations(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--systems", "ring,ulysses,local_packing", *SMALL, "--batches", "one"]
    assert matrix.main(asked) == matrix.main([*asked, "--pairs"]) == 0
    every, pairs = (int(line.split()[0]) for line in capsys.readouterr().out.splitlines() if " combinations: " in line)
    assert every == 12
    assert 6 <= pairs < 12


def test_failures_are_told_and_end_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        Combinations, "check", lambda self, one, kinds, choice: CombinationVerdict(one, 1, 2, "", "", ("no",), choice)
    )
    assert matrix.main(["--systems", "ring", *SMALL]) == 1
    told = capsys.readouterr()
    assert "2 + 4, 2 FAILED" in told.out
    assert re.search(r"^FAILED ring-tiny-one_gpu, recompute=\w+ memory=\w+: no$", told.out, re.MULTILINE)
    assert re.search(r"^matrix: ring-tiny-one_gpu, recompute=\w+ memory=\w+: no$", told.err, re.MULTILINE)


def test_what_is_kept_in_a_file_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What failed is, and all of it with other batches; the table is the same."""
    arguments = ["--systems", "ring", "--models", "tiny,moe_8x550m", "--clusters", "local_2x2,h100_4x8", "--nodes", "1"]
    arguments += ["--tokens-per-gpu", "64", "--batches", "one", "--out", str(tmp_path / "matrix.jsonl")]
    assert matrix.main(arguments) == 0
    first = capsys.readouterr().out
    assert "ring with moe_8x550m on local_2x2: " in first.replace("1 system with", "ring with")
    tried: list[Combination] = []

    def check(
        self: Combinations, one: Combination, kinds: Sequence[str], choice: StrategyChoice | None
    ) -> CombinationVerdict:
        tried.append(one)
        return CombinationVerdict(one, failures=("no",), choice=choice)

    monkeypatch.setattr(Combinations, "check", check)
    assert matrix.main(arguments) == 0
    assert (capsys.readouterr().out, tried) == (first, [])
    for _ in range(2):
        assert matrix.main([*arguments, "--seed", "1"]) == 1
    assert len(tried) == 2 * 4


def test_what_was_finished_is_told_when_the_user_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = count()

    def check(self: Combinations, one: Combination, kinds: tuple[str, ...], choice: object) -> CombinationVerdict:
        if next(done) == 3:
            raise KeyboardInterrupt
        return CombinationVerdict(one, 1)

    monkeypatch.setattr(Combinations, "check", check)
    assert called(monkeypatch, "--systems", "ring,ulysses", *SMALL) == 130
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].startswith("3 combinations: 0 refused, 3 tried with 3 batches")
    assert "zbench: stopped; the table is of what was finished until then" in told.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--systems", "rings"], "--systems has 'rings'; it takes allgather"),
        (["--clusters", ""], "--clusters has ''; it takes a100_80g_16x8"),
        (["--batches", "all"], "--batches has 'all'; it takes tail, giant, two, equal, primes, one"),
        (["--tokens-per-gpu", "0"], "--tokens-per-gpu is 0; it takes a whole number of at least 1"),
        (["--seed", "-1"], "--seed is -1; it takes a whole number of at least 0"),
        (["--nodes", "0"], "--nodes is 0; it takes a whole number of at least 1"),
        (["now"], "unrecognized arguments: now (see --help)"),
    ],
)
def test_mistakes_of_the_user_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert called(monkeypatch, *arguments) == 2
    heard = capsys.readouterr()
    assert heard.err.startswith(f"zbench: {told}")
    assert heard.err.count("\n") == 1
    assert heard.out == ""
