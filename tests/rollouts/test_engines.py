"""Resharding counted element by element, beside the paper's table, and in the step that is proven."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, ENGINES, HYBRIDFLOW, HYBRIDFLOW_V, STANDALONE, resharding_of
from zbench.rollouts.gathers import ReshardedWeights
from zbench.rollouts.weights import Weight
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import StepError, prove_step

UNIT = 2
SIZE = 840  # elements of a weight, which every number of GPUs up to 8 divides
Element = tuple[int, int]


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def degrees() -> Iterator[tuple[TrainDegrees, GenerateDegrees]]:
    """All degrees on up to 8 GPUs, and of generation all that divide them."""
    for p, t, d in product(range(1, 9), repeat=3):
        if p * t * d <= 8:
            for of_generation in product(divisors(p), divisors(t)):
                yield TrainDegrees(p, t, d), GenerateDegrees(*of_generation)


CASES = [(engine, *both) for engine in ENGINES for both in degrees()]


def resharded(engine: str, train: TrainDegrees, generate: GenerateDegrees, norms: bool = False) -> ReshardedWeights:
    """Two layers a stage, a matrix in each, and maybe a norm."""
    layers = 2 * train.pipeline
    weights = [Weight(f"w{layer}", layer, SIZE, True) for layer in range(layers)]
    weights += [Weight(f"g{layer}", layer, 8, False) for layer in range(layers) if norms]
    return ReshardedWeights(weights, layers, UNIT, resharding_of(engine, train, generate))


def held_by_hand(engine: str, train: TrainDegrees, generate: GenerateDegrees) -> list[tuple[set[Element], ...]]:
    """What each GPU trains with, generates with, and has meanwhile: sets of (layer, element)."""
    p, t, d = train.pipeline, train.tensor, train.data
    layers, every = 2 * p, {(layer, at) for layer in range(2 * p) for at in range(SIZE)}

    def block(stage: int, stages: int, part: int, parts: int) -> set[Element]:
        own = range(stage * layers // stages, (stage + 1) * layers // stages)
        return {(layer, at) for layer in own for at in range(part * SIZE // parts, (part + 1) * SIZE // parts)}

    found = []
    for gpu in range(p * t * d):
        stage, slice_ = gpu // (t * d), gpu % t
        trains = block(0, 1, gpu, p * t * d) if engine == DS_CHAT else block(stage, p, slice_, t)
        if engine == HYBRIDFLOW:
            of_stage, of_slice = stage * generate.pipeline // p, slice_ * generate.tensor // t
        else:
            number = stage * t + slice_
            of_stage, of_slice = number // generate.tensor % generate.pipeline, number % generate.tensor
        generates = block(of_stage, generate.pipeline, of_slice, generate.tensor)
        found.append((trains, generates, generates | trains if engine == HYBRIDFLOW else every))
    return found


def test_bytes_are_those_of_the_papers_table() -> None:
    """HybridFlow, arXiv 2409.19256, table 2, to the byte. Of what is kept twice the table has the most: with
    stages of generation less is."""
    for engine, train, generate in CASES:
        whole = UNIT * SIZE * 2 * train.pipeline
        tp, of_generation = train.pipeline * train.tensor, generate.pipeline * generate.tensor
        every = train.num_gpus
        received, peak, twice = {
            DS_CHAT: ((every - 1) * whole / every, whole, whole / every),
            HYBRIDFLOW_V: ((tp - 1) * whole / tp, whole, whole / tp),
            HYBRIDFLOW: ((tp - of_generation) * whole / (of_generation * tp), whole / of_generation, 0),
        }[engine]
        found = resharded(engine, train, generate).bytes
        assert found.received.tolist() == [received] * every
        assert found.peak.tolist() == [peak] * every
        if generate.pipeline == 1:  # it is there wherever groups of consecutive GPUs have shards of others
            cut = every if engine == DS_CHAT else train.tensor
            assert found.redundant.max() == (twice if 1 < generate.tensor < cut else 0)
        assert found.redundant.max() <= twice


def test_bytes_are_those_of_sets_of_elements() -> None:
    for engine, train, generate in CASES:
        found = resharded(engine, train, generate).bytes
        for gpu, (trains, generates, there) in enumerate(held_by_hand(engine, train, generate)):
            counted = found.received[gpu], found.peak[gpu], found.redundant[gpu]
            assert counted == (UNIT * len(there - trains), UNIT * len(there), UNIT * len(trains - generates))


@pytest.mark.parametrize("norms", [False, True], ids=["matrices", "norms"])
def test_every_change_is_a_step_that_is_proven_and_moves_as_many_bytes(norms: bool) -> None:
    for engine, train, generate in CASES:
        made = resharded(engine, train, generate, norms)
        prove_step(made.step)
        moved = [one.get("parameters", (0, 0)) for one in stated_bytes(made.step)]
        assert [received for _, received in moved] == made.bytes.received.tolist()
        assert sum(sent for sent, _ in moved) == made.bytes.received.sum()


def test_a_step_without_one_of_its_gathers_is_refused() -> None:
    made = resharded(HYBRIDFLOW, TrainDegrees(1, 4, 2), GenerateDegrees(1, 2))
    template = made.step.templates[0]
    fewer = replace(template, operations=template.operations.take(np.arange(1, len(template.operations))))
    with pytest.raises(StepError, match="w0_0"):
        prove_step(replace(made.step, templates=(fewer,)))


def test_groups_are_those_of_the_papers_figure() -> None:
    """Figure 8, 8 GPUs, 1-4-2 and two slices: micro data-parallel groups are pairs, generation groups every other."""
    change = resharding_of(HYBRIDFLOW, TrainDegrees(1, 4, 2), GenerateDegrees(1, 2))
    assert [one.tolist() for one in change.groups] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert change.generate.begins.tolist() == [0, 0, 2, 2] * 2
    plain = resharding_of(HYBRIDFLOW_V, TrainDegrees(1, 4, 2), GenerateDegrees(1, 2))
    assert [one.tolist() for one in plain.groups] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert plain.generate.begins.tolist() == [0, 2, 0, 2] * 2
    assert (
        resharded(HYBRIDFLOW_V, TrainDegrees(1, 4, 2), GenerateDegrees(1, 2)).bytes.redundant.tolist()
        == [
            0,
            UNIT * SIZE // 2,
            UNIT * SIZE // 2,
            0,
        ]
        * 2
    )


def test_replicas_of_stages_are_numbered_as_megatron_does_it() -> None:
    change = resharding_of(HYBRIDFLOW, TrainDegrees(2, 2, 2), GenerateDegrees(1, 2))
    assert TrainDegrees(2, 2, 2).replicas.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [one.tolist() for one in change.groups] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_more_parts_than_elements_are_refused() -> None:
    made = ReshardedWeights(
        [Weight("w", 0, 3, True)], 1, UNIT, resharding_of(HYBRIDFLOW, TrainDegrees(1, 4, 1), GenerateDegrees(1, 1))
    )
    with pytest.raises(ValueError, match=r"^w has 3 elements, too few for 4 GPUs that share it$"):
        assert made.bytes


def test_generation_on_gpus_of_its_own_asks_replicas_of_training_in_turns() -> None:
    """1-2-2 on GPUs 0 to 3; three replicas of 1-3 on the nine behind: cut in six, the first and the third ask 0-1."""
    change = resharding_of(STANDALONE, TrainDegrees(1, 2, 2), GenerateDegrees(1, 3), 3)
    assert [one.tolist() for one in change.groups] == [[0, 1, 4, 5, 6, 10, 11, 12], [2, 3, 7, 8, 9]]
    made = ReshardedWeights([Weight("w", 0, SIZE, True), Weight("g", 0, 8, False)], 1, UNIT, change)
    prove_step(made.step)
    assert made.bytes.received.tolist() == [0] * 4 + [UNIT * (SIZE // 3 + 8)] * 9
    assert made.bytes.peak.tolist() == [UNIT * (SIZE // 2 + 8)] * 4 + [UNIT * (SIZE // 3 + 8)] * 9
    assert not made.bytes.redundant.any()
    moved = [one.get("parameters", (0, 0)) for one in stated_bytes(made.step)]
    assert [received for _, received in moved] == made.bytes.received.tolist()
    assert sum(sent for sent, _ in moved) == made.bytes.received.sum()
