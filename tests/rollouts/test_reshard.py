"""A change is played on a cluster's links, and its seconds and memory are those of hand arithmetic."""

from dataclasses import replace

import pytest

from tests.helpers.steps import MODEL
from zbench.api.parts import cluster_named
from zbench.api.words import run_sub_command
from zbench.cost.cost import Cost
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import ENGINES, HYBRIDFLOW, STANDALONE, resharding_of
from zbench.rollouts.gathers import ReshardedWeights
from zbench.rollouts.reshard import played_resharding
from zbench.rollouts.weights import Weight
from zbench.simulator.steps.play import play_step

NODE = {"num_nodes": 1}
FOUR = replace(MODEL, num_layers=4, hidden=64, num_kv_heads=4, ffn_hidden=96)


def cost_of(gpus: int) -> Cost:
    return Cost(
        cluster=cluster_named("a100_80g_16x8", NODE | {"gpus_per_node": gpus, "nics_per_node": gpus}), model=FOUR
    )


def test_a_pair_gathers_over_nvlink() -> None:
    """Each has half of two million bytes: one message of a million at 180 GB/s, and 10 us before it."""
    change = resharding_of(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1))
    made = ReshardedWeights([Weight("w", 0, 10**6, True)], 1, 2, change)
    played = play_step(made.step, (), cost_of(2))
    assert played.seconds == pytest.approx(1e6 / 180e9 + 10e-6, rel=1e-12)
    assert played.memory.peak.tolist() == made.bytes.peak.tolist() == [2 * 10**6] * 2


def test_where_nothing_is_cut_otherwise_nothing_moves() -> None:
    found = played_resharding(HYBRIDFLOW, TrainDegrees(2, 2, 2), GenerateDegrees(2, 2), cost_of(8))
    assert found.seconds == 0
    assert not found.bytes.received.any()
    assert found.bytes.peak.sum() > 2 * FOUR.total_params * FOUR.element_bytes  # norms are whole in every group


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_that_is_played_is_memory_that_is_counted(engine: str) -> None:
    change = resharding_of(engine, TrainDegrees(2, 2, 2), GenerateDegrees(1, 2))
    weights = [Weight(f"w{layer}", layer, 1000, True) for layer in range(4)] + [Weight("g", 3, 16, False)]
    made = ReshardedWeights(weights, 4, 2, change)
    assert play_step(made.step, (), cost_of(8)).memory.peak.tolist() == made.bytes.peak.tolist()


def test_generation_on_gpus_of_its_own_is_played() -> None:
    """Two GPUs train, each with half; two generate, each with all, from the two: over a ring of three, both halves at
    once, or nearly so."""
    cost = cost_of(4)
    found = played_resharding(STANDALONE, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), cost)
    whole = 2 * FOUR.total_params
    assert found.bytes.received.tolist() == [0, 0, whole, whole]
    assert found.seconds > whole / 2 / 180e9
    for train, generate, told in (
        ("1-4-1", "1-1", "train is 1-4-1, which leaves 0 GPUs of cluster a100_80g_16x8 to generation"),
        ("1-1-1", "1-2", "train is 1-1-1, which leaves 3 GPUs .* take a multiple of 2"),
        ("1-1-1", "3-1", "generate is 3-1; its pipeline degree has to divide num_layers=4 of model tiny"),
    ):
        with pytest.raises(ValueError, match=told):
            played_resharding(STANDALONE, TrainDegrees.of(train), GenerateDegrees.of(generate), cost)


def test_less_is_moved_in_less_time() -> None:
    both = TrainDegrees(1, 4, 2), GenerateDegrees(1, 2)
    found = [played_resharding(engine, *both, cost_of(8)) for engine in ENGINES]
    assert [one.engine for one in found] == list(ENGINES)
    received = [int(one.bytes.received.max()) for one in found]
    seconds = [one.seconds for one in found]
    assert received == sorted(received, reverse=True)
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("train", "generate", "told"),
    [
        ("1-8-2", "1-2", "train is 1-8-2, which is 16 GPUs; cluster a100_80g_16x8 has 8"),
        ("2-2-2", "1-3", "generate is 1-3; its tensor degree has to divide that of train=2-2-2, 2"),
        ("2-2-2", "3-1", "generate is 3-1; its pipeline degree has to divide that of train=2-2-2, 2"),
        ("8-1-1", "1-1", "train is 8-1-1; its pipeline degree has to divide num_layers=4 of model tiny"),
        ("1-8-1", "1-1", "train is 1-8-1; its tensor degree has to divide num_heads=4 of model tiny"),
        ("1-8", "1-1", "train is '1-8'; it takes p-t-d"),
        ("1-8-0", "1-1", "train is '1-8-0'; it takes p-t-d"),
        ("1-8-1", "two", "generate is 'two'; it takes p-t"),
    ],
)
def test_degrees_that_do_not_fit_are_told_in_a_sentence(train: str, generate: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        played_resharding(HYBRIDFLOW, TrainDegrees.of(train), GenerateDegrees.of(generate), cost_of(8))


def test_the_command_prints_a_row_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster=local_2x2", "model=tiny", "train=1-2-2", "generate=1-1"]
    assert run_sub_command("reshard", words) == 0
    table = capsys.readouterr().out
    assert [engine for engine in ENGINES if f"{engine} " in table] == list(ENGINES)
    assert run_sub_command("reshard", [*words, "engine=hybridflow"]) == 0
    assert "ds_chat" not in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"^engine is 'zero'; it takes one of ds_chat, hybridflow, hybridflow_v"):
        run_sub_command("reshard", [*words, "engine=zero"])
    with pytest.raises(ValueError, match=r"^generate is missing; zbench reshard takes train=p-t-d and generate=p-t$"):
        run_sub_command("reshard", words[:3])
