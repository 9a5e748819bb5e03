"""Iterations of rollouts: stages by themselves and together by every schedule, sums, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zbench.api.parts import cluster_named, model_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.job import RolloutJob
from zbench.describe.rollouts.stages import ALGORITHMS
from zbench.interfaces.result import StepResult
from zbench.rollouts.generate import Batching, GenerationCost, generate
from zbench.rollouts.job_generation import JobGeneration
from zbench.rollouts.seesaw import generate_by_seesaw
from zbench.rollouts.seesaw_phases import SeesawCost
from zbench.rollouts.transition import job_transition
from zbench.simulated.executor import Simulated
from zbench.simulated.iterations import SimulatedIterations
from zbench.simulator.steps.play import play_step
from zbench.systems.ring import Ring
from zbench.workloads.__main__ import load_workload


def training(nodes: int = 1, sharding: str = "zero3", tensor: int = 1) -> Simulated:
    model = replace(model_named("llama_7b", {}), sharding=sharding, tensor_parallel=tensor, recompute="full")
    return Simulated(make_cost(cluster_named("a800_4x8", {"num_nodes": nodes}), model, False))


def batch_of(name: str = "rl_traces", step: int = 0) -> Batch:
    return load_workload(name, 0, 8 * 4096, []).batch(step)


def played(job: RolloutJob, batches: list[Batch], of: Simulated | None = None) -> list[StepResult]:
    executor = SimulatedIterations.of(of or training(), job)
    executor.start()
    return [executor.step(one, Ring(executor.cost).plan(one)) for one in batches]


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "none"])
def test_an_iteration_is_the_sum_of_its_stages(algorithm: str) -> None:
    job, of, batch = RolloutJob(algorithm, generate_tensor=2, memory_share=0.45), training(), batch_of()
    (found,) = played(job, [batch], of)
    stages, plans = job.stages, Ring(of.cost).plan(batch)
    trained = of.step(batch, plans).seconds
    forward = play_step(of.steps.forwards(plans), plans, of.cost.gpus).seconds
    assert batch.rollouts is not None
    prompts = batch.rollouts.prompts
    generated = generate(prompts, batch.lengths - prompts, GenerationCost(of.cost.gpus, 2, 0.45), 4)
    told = {
        "reshard": job_transition(job, of.cost.gpus, of.cost.gpus).seconds,
        "generate": stages.generations * generated.seconds.max(),
        "score": len(stages.scores) * forward,
        "train": len(stages.trains) * trained,
    }
    assert found.rollouts["seconds"] == pytest.approx(told, rel=1e-12)
    assert found.seconds == pytest.approx(sum(told.values()), rel=1e-12)
    assert 0.2 * trained < forward < 0.3 * trained  # of four forwards, with full recomputation


@pytest.mark.parametrize(
    "job",
    [
        RolloutJob("ppo", generate_tensor=2),
        RolloutJob("grpo", "streamed", 2),
        RolloutJob("grpo", "one_step_off", 4, 1, 0.9),
        RolloutJob("remax", "one_step_off", 1, 1, 0.9),
    ],
)
def test_seconds_of_every_rank_sum_to_the_iteration(job: RolloutJob) -> None:
    for found in played(job, [batch_of(step=step) for step in range(3)]):
        spent = np.sum(list(found.seconds_for.values()), axis=0)
        assert spent == pytest.approx(np.full(8, found.seconds), rel=1e-9)
        assert found.bound_seconds <= found.seconds
        sent = np.sum([np.zeros(4), *found.nic_tx_for.values()], axis=0)
        assert sent.tolist() == found.nic_tx_bytes


def test_stages_generate_as_by_themselves() -> None:
    job, of, batch = (
        RolloutJob("grpo", generate_tensor=2, generate_pipeline=2, memory_share=0.45),
        training(),
        batch_of(),
    )
    (found,) = played(job, [batch], of)
    assert batch.rollouts is not None
    prompts = batch.rollouts.prompts
    own = GenerationCost(of.cost.gpus, 2, 0.45, pipeline=2)
    seconds = generate(prompts, batch.lengths - prompts, own, 2).seconds
    assert found.rollouts["seconds"]["generate"] == pytest.approx(seconds.max(), rel=1e-12)
    assert found.seconds_for["generation"] == pytest.approx(np.repeat(seconds, 4), rel=1e-12)


SEESAW: dict[str, Any] = {"generation_engine": "seesaw", "generate_tensor": 4, "memory_share": 0.4}


def with_hosts(sharding: str = "zero3", tensor: int = 1, nodes: int = 1) -> Simulated:
    model = replace(model_named("llama_7b", {}), sharding=sharding, tensor_parallel=tensor, recompute="full")
    return Simulated(make_cost(cluster_named("a100_80g_16x8", {"num_nodes": nodes}), model, False))


def test_seesaw_generates_as_by_itself_and_its_weights_go_by_hosts() -> None:
    job, of, batch = RolloutJob("grpo", **SEESAW, host_kv=2.0**28), with_hosts(), batch_of()
    (found,) = played(job, [batch], of)
    assert batch.rollouts is not None
    prompts, gpus = batch.rollouts.prompts, of.cost.gpus
    layouts = (GenerationCost(gpus, tensor, 0.4, pipeline=4 // tensor) for tensor in (1, 4))
    two = SeesawCost(*layouts, 2.0**28, 2048)
    (own,) = generate_by_seesaw(prompts, batch.lengths - prompts, [two], 2)
    assert found.rollouts["seconds"]["generate"] == pytest.approx(own.seconds.max(), rel=1e-12)
    told = {"prefill": own.prefill, "decode": own.decode, "change": own.reload, "changes": own.reloads}
    assert (found.rollouts["layouts"], own.reloads > 2) == (told, True)
    weights = gpus.model.element_bytes * gpus.model.total_params
    gathered = job_transition(RolloutJob("grpo"), gpus, gpus).seconds
    copied = weights / 8 / (31.5e9 * 0.88) + 10e-6
    assert found.rollouts["seconds"]["reshard"] == pytest.approx(gathered + copied, rel=1e-9)
    assert found.host_bytes == [weights + int(own.host_tokens.sum()) * two.token_bytes]


def test_seesaw_changes_back_where_it_generates_twice() -> None:
    batch = batch_of()
    once, twice = (played(RolloutJob(name, **SEESAW), [batch], with_hosts())[0].rollouts for name in ("grpo", "remax"))
    one, two = once["layouts"], twice["layouts"]
    assert (one["changes"], two["changes"]) == (1, 3)
    assert (two["prefill"], two["decode"]) == pytest.approx((2 * one["prefill"], 2 * one["decode"]), rel=1e-12)
    back = two["change"] - 2 * one["change"]
    assert 0.5 * one["change"] < back < 2 * one["change"]
    assert twice["seconds"]["generate"] == pytest.approx(2 * once["seconds"]["generate"] + back, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "nodes", "job"),
    [("streamed", 1, {"memory_share": 0.3}), ("one_step_off", 2, {"generate_nodes": 1, "memory_share": 0.9})],
)
def test_seesaw_goes_with_every_schedule(schedule: str, nodes: int, job: dict[str, Any]) -> None:
    one = RolloutJob("grpo", schedule, **{**SEESAW, **job})
    every = with_hosts(nodes=nodes)
    of = Simulated(make_cost(one.training_part(every.cost.gpus.cluster), every.cost.gpus.model, False))
    for found in played(one, [batch_of(step=step) for step in range(2)], of):
        spent = np.sum(list(found.seconds_for.values()), axis=0)
        assert spent == pytest.approx(np.full(8, found.seconds), rel=1e-9)
        assert found.rollouts["layouts"]["changes"] == 1


def test_slices_of_training_go_to_hosts_without_a_gather() -> None:
    cost = with_hosts("none", tensor=8).cost.gpus
    found = job_transition(RolloutJob("grpo", **SEESAW), cost, cost)
    weights = cost.model.element_bytes * cost.model.total_params
    assert (found.engine, len(found.played), found.played[0].nic_tx.any()) == ("hosts", 2, False)
    assert found.played[0].seconds == pytest.approx(weights / 8 / (31.5e9 * 0.88) + 10e-6, rel=1e-9)
    assert 0.2 * weights / (31.5e9 * 0.88) < found.played[1].seconds < 0.3 * weights / (31.5e9 * 0.88)  # a stage's


def test_chunked_prefill_is_an_engine_of_a_job() -> None:
    of, batch = with_hosts(), batch_of()
    (found,) = played(RolloutJob("grpo", generate_tensor=2, generation_engine="chunked", pass_tokens=256), [batch], of)
    assert batch.rollouts is not None
    prompts = batch.rollouts.prompts
    own = generate(
        prompts, batch.lengths - prompts, GenerationCost(of.cost.gpus, 2, 0.5), 4, Batching(256, chunked=True)
    )
    assert found.rollouts["seconds"]["generate"] == pytest.approx(own.seconds.max(), rel=1e-12)
    assert "layouts" not in found.rollouts


@pytest.mark.parametrize(
    ("cluster", "job", "told"),
    [
        ("a100_80g_16x8", {"host_kv": 2.0**39}, "job.host_kv is 512 GiB a GPU; with weights a node takes 4109 GiB"),
        ("a100_80g_16x8", {"generate_pipeline": 4}, "job.generation_engine is seesaw and a replica takes 16 GPUs; its"),
        ("a100_80g_16x8", {"generate_tensor": 3}, "job.generate_tensor is 3; it has to divide num_heads=32"),
    ],
)
def test_two_layouts_that_cannot_be_are_refused(cluster: str, job: dict[str, Any], told: str) -> None:
    cost = Cost(cluster=cluster_named(cluster, {"num_nodes": 2}), model=model_named("llama_7b", {}))
    with pytest.raises(ValueError, match=f"^{told}"):
        JobGeneration.of(RolloutJob("grpo", **{**SEESAW, **job}), cost)


def test_two_layouts_take_a_link_to_hosts() -> None:
    none = {"host_bandwidth": None, "host_efficiency": None, "host_latency": None}
    cost = Cost(cluster=replace(cluster_named("a800_2x8", {}), **none), model=model_named("llama_7b", {}))
    with pytest.raises(ValueError, match=r"^cluster a800_2x8 has no cluster\.host_bandwidth; seesaw brings weights"):
        JobGeneration.of(RolloutJob("grpo", **SEESAW), cost)


def test_streamed_scores_beside_generation_and_is_on_policy() -> None:
    batch = batch_of()
    (one,), (other,) = (played(RolloutJob("grpo", name, 2, 0, 0.4), [batch]) for name in ("synchronous", "streamed"))
    assert other.seconds < one.seconds
    assert other.rollouts["waited_seconds"] >= one.rollouts["waited_seconds"]
    assert (one.rollouts["off_policy_tokens"], other.rollouts["off_policy_tokens"]) == (0, 0)
    assert sum(other.seconds_for["scoring"]) > 0


def test_one_step_off_hides_generation_and_says_how_old_its_policy_is() -> None:
    batches = [batch_of(step=step) for step in range(3)]
    apart = played(RolloutJob("ppo", "synchronous", 4, 1, 0.9), batches)
    late = played(RolloutJob("ppo", "one_step_off", 4, 1, 0.9), batches)
    assert late[0].seconds == apart[0].seconds
    for at in (1, 2):
        before = late[at - 1].rollouts["seconds"]
        hidden = min(before["score"] + before["train"], late[at].rollouts["seconds"]["generate"])
        assert late[at].seconds == pytest.approx(apart[at].seconds - hidden, rel=1e-12)
    told = [(one.rollouts["off_policy_tokens"] > 0, one.rollouts["policy_age"]) for one in late]
    assert told == [(False, 0), (True, 1), (True, 1)]
    assert late[1].rollouts["off_policy_tokens"] == late[1].rollouts["response_tokens"]


def test_tail_batching_has_even_replicas_and_gives_up_tokens() -> None:
    job = RolloutJob("grpo", generate_tensor=2)
    short, long = played(job, [batch_of("rl_traces_tail", step) for step in (0, 4)])
    (plain,) = played(job, [batch_of()])
    assert short.rollouts["given_up_tokens"] > 0 == long.rollouts["given_up_tokens"]
    assert short.rollouts["seconds"]["generate"] < plain.rollouts["seconds"]["generate"]
    assert (short.rollouts["off_policy_tokens"], long.rollouts["off_policy_tokens"]) == (0, 0)


@pytest.mark.parametrize(
    ("of", "job", "told"),
    [
        ({}, {"generate_tensor": 3}, "job.generate_tensor is 3; it has to divide num_heads=32"),
        ({}, {"generate_pipeline": 4, "generate_tensor": 4}, "job.generate_pipeline is 4 and job.generate_tensor 4; a"),
        ({}, {"memory_share": 0.1}, "model llama_7b does not fit: replicas of job.generate_tensor=1 have no room"),
        ({}, {"memory_share": 0.9}, "job.memory_share is 0.9; model llama_7b does not fit: .* takes at most 0.58$"),
        (
            {"sharding": "none"},
            {},
            "job.memory_share is 0.5; model llama_7b does not fit: .* weights that generate have no",
        ),
        ({"sharding": "zero3"}, {"schedule": "streamed"}, "job.memory_share is 0.5; model llama_7b does not fit"),
    ],
)
def test_what_does_not_fit_is_refused(of: dict[str, Any], job: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        SimulatedIterations.of(training(**of), RolloutJob("ppo", **job))


def test_a_sequence_longer_than_keys_and_values_have_room_for_is_refused() -> None:
    told = r"^a sequence has \d+ tokens; keys and values of \d+ have room on a replica in job.memory_share=0.18: take"
    with pytest.raises(ValueError, match=told):
        played(RolloutJob("grpo", memory_share=0.18), [batch_of()])


def test_a_batch_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a batch has no prompts and responses; job=rlhf takes a workload of both"):
        played(RolloutJob("grpo"), [replace(batch_of(), rollouts=None)])
