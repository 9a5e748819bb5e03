"""What a job may be, and what it refuses in a sentence."""

from typing import Any

import pytest

from zbench.api.parts import cluster_named
from zbench.describe.job import TRAINING, RolloutJob
from zbench.describe.rollouts.stages import ALGORITHMS


def test_a_run_trains_alone_unless_it_is_told_otherwise() -> None:
    assert (TRAINING.has_rollouts, TRAINING.stages.trains, TRAINING.stages.generations) == (False, ("actor",), 0)
    assert all(RolloutJob(name).has_rollouts for name in ALGORITHMS if name != "none")


def test_algorithms_have_their_stages() -> None:
    trained = {name: len(one.trains) for name, one in ALGORITHMS.items()}
    assert trained == {"none": 1, "ppo": 2, "remax": 1, "safe_rlhf": 2, "grpo": 1}
    assert all("critic" in one.scores for one in ALGORITHMS.values() if "critic" in one.trains)
    assert {name for name, one in ALGORITHMS.items() if one.generations == 2} == {"remax"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"algorithm": "dpo"}, "job.algorithm is 'dpo'; it takes none, ppo, remax, safe_rlhf or grpo"),
        ({"schedule": "tail"}, "job.schedule is 'tail'; it takes synchronous, streamed or one_step_off"),
        ({"engine": "nope"}, "job.engine is 'nope'; it takes auto, ds_chat"),
        ({"generate_pipeline": 0}, "job.generate_pipeline is 0; it takes a whole number from 1 to 256"),
        (
            {"schedule": "streamed", "generate_pipeline": 2},
            "job.schedule is streamed and job.generate_pipeline 2; a rep",
        ),
        ({"generate_tensor": 0}, "job.generate_tensor is 0; it takes a whole number from 1 to 64"),
        ({"generate_nodes": -1}, "job.generate_nodes is -1"),
        ({"memory_share": 0}, "job.memory_share is 0; it takes a number above 0 and at most 1"),
        ({"memory_share": True}, "job.memory_share is True"),
        ({"schedule": "one_step_off"}, "job.schedule is one_step_off and job.generate_nodes 0"),
        ({"schedule": "streamed", "generate_nodes": 1}, "job.schedule is streamed and job.generate_nodes 1"),
        ({"engine": "ds_chat", "generate_nodes": 1}, "job.engine is ds_chat and job.generate_nodes 1"),
        ({"placement": "mixed"}, "job.placement is 'mixed'; it takes colocate, split or standalone"),
        ({"placement": "split", "generate_nodes": 1}, "job.generate_nodes is 1 and job.placement split"),
        ({"placement": "split", "schedule": "streamed"}, "job.schedule is streamed and job.placement split"),
        ({"critic": "llama_3b"}, "job.critic is llama_3b; grpo has no critic, so it takes null"),
        ({"reward": "llama_3b", "schedule": "streamed"}, "job.reward is llama_3b and job.schedule streamed"),
        ({"set_nodes": [4]}, r"job.set_nodes is \[4\]; with job.placement=colocate it takes null"),
        (
            {"set_nodes": [1], "placement": "split"},
            r"job.set_nodes is \[1\]; .* 2 numbers \(actor, reference; reward\)",
        ),
        ({"generation_engine": "vllm"}, "job.generation_engine is 'vllm'; it takes continuous, chunked or seesaw"),
        ({"pass_tokens": 0}, "job.pass_tokens is 0; it takes a whole number of at least 1, or null"),
        ({"prefill_tensor": 2}, "job.prefill_tensor is 2 and job.generation_engine continuous; only seesaw has it"),
        ({"host_kv": 1e9}, "job.host_kv is 1000000000.0 and job.generation_engine continuous; only seesaw"),
        ({"generation_engine": "seesaw"}, "job.generation_engine is seesaw and job.generate_tensor 1; prompts are rea"),
        (
            {"generation_engine": "seesaw", "generate_tensor": 4, "prefill_tensor": 3},
            "job.prefill_tensor is 3; it has to divide the 4 GPUs of a replica",
        ),
        (
            {"generation_engine": "seesaw", "generate_tensor": 4, "engine": "ds_chat"},
            "job.engine is ds_chat and job.generation_engine seesaw; .* so it takes auto",
        ),
        ({"generation_engine": "seesaw", "generate_tensor": 4, "host_kv": 0}, "job.host_kv is 0; it takes bytes of"),
        (
            {"generation_engine": "seesaw", "generate_tensor": 4, "host_kv": "80"},
            "job.host_kv is 80, which has no unit",
        ),
        ({"set_nodes": [1, 0], "placement": "split"}, "job.set_nodes is 0; it takes a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        RolloutJob(**{"algorithm": "grpo", **keys})


def test_without_rollouts_there_is_nothing_to_say_of_them() -> None:
    with pytest.raises(
        ValueError, match=r"^job.memory_share is 0.3; without rollouts it takes 0.5, and job=rlhf others$"
    ):
        RolloutJob(memory_share=0.3)


def test_nodes_that_generate_alone_are_left_out_of_training() -> None:
    cluster = cluster_named("a800_4x8", {})
    assert RolloutJob("grpo").training_part(cluster) is cluster
    assert RolloutJob("grpo", generate_nodes=3).training_part(cluster).num_nodes == 1
    with pytest.raises(ValueError, match=r"^job.generate_nodes is 4; .* so it takes at most 3$"):
        RolloutJob("grpo", generate_nodes=4).training_part(cluster)


def test_sets_of_models_have_the_nodes_of_the_cluster() -> None:
    cluster = cluster_named("a800_4x8", {})
    job = RolloutJob("ppo", placement="split")
    assert job.sets == (("actor", "reference"), ("reward", "critic"))
    assert (job.training_part(cluster).num_nodes, job.nodes_beside(2)) == (2, 2)
    alone = RolloutJob("safe_rlhf", placement="standalone")
    assert alone.sets == (("actor",), ("reference",), ("reward",), ("cost",), ("critic",))
    with pytest.raises(
        ValueError, match=r"^job.placement is standalone, which has 5 sets of models; .*=\[1,1,1,1,1\]$"
    ):
        alone.training_part(cluster)
    uneven = RolloutJob("grpo", placement="standalone", set_nodes=[2, 1, 1])
    assert (uneven.nodes_of_sets(cluster), uneven.nodes_beside(2)) == ((2, 1, 1), 2)
    with pytest.raises(ValueError, match=r"^job.set_nodes is \[2, 1, 2\]; cluster a800_4x8 has num_nodes=4"):
        RolloutJob("grpo", placement="standalone", set_nodes=[2, 1, 2]).training_part(cluster)


def test_an_iteration_has_each_model_once() -> None:
    assert ALGORITHMS["remax"].models == ("actor", "reference", "reward")
    assert [ALGORITHMS["remax"].reads(one) for one in ("actor", "reference", "reward")] == [0, 1, 2]
