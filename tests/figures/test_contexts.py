"""The figure of longest contexts: what it finds, and what it does not take."""

from dataclasses import replace

import pytest

from tests.helpers.figure_records import samples
from zbench.cost.job import make_cost
from zbench.figures.records import Records, cost_of_run
from zbench.figures.strategies import contexts
from zbench.simulated.executor import Simulated
from zbench.simulated.longest import LongestSequence
from zbench.systems.ring import Ring


def test_contexts_grow_with_gpus_and_recomputation_and_have_room() -> None:
    records = samples()["contexts"]
    found = {(one.strategy, one.gpus): one.tokens for one in contexts.table(records)}
    assert list(dict.fromkeys(strategy for strategy, _ in found)) == [contexts.PLAIN, contexts.AGAIN]
    for gpus in contexts.GPUS:
        assert found[contexts.PLAIN, gpus] < found[contexts.AGAIN, gpus]
    for strategy in (contexts.PLAIN, contexts.AGAIN):
        for gpus in contexts.GPUS[1:]:  # to a fiftieth
            assert found[strategy, gpus] > 1.9 * found[strategy, gpus // 2]
    own = cost_of_run(records.runs[0]).gpus
    cost = make_cost(own.cluster.part(2, 8, 8), own.model)
    job, tokens = LongestSequence(Simulated(cost), Ring(cost)), found[contexts.PLAIN, 16]
    assert job.filled(tokens)[0] <= 1 < job.filled(tokens + tokens // contexts.SHARE + 16 * 1024)[0]


def test_published_lengths_are_of_drawn_lines_or_say_of_what() -> None:
    assert {one.strategy for one in contexts.PUBLISHED} - set(contexts.COLOURS) == {"without ALST"}
    assert {one.gpus for one in contexts.PUBLISHED} <= set(contexts.GPUS)
    assert set(contexts.STRATEGIES.values()) == set(contexts.COLOURS)


def test_contexts_of_another_strategy_are_refused() -> None:
    (run, *_) = samples()["contexts"].runs
    config = {**run.start["config"]}
    config["memory"] = {**config["memory"], "loss_chunk_tokens": 1024}
    other = replace(run, start={**run.start, "config": config})
    told = (
        "figure contexts has no line for recompute=none, memory.mlp_chunk_tokens=whole, memory.loss_chunk_tokens=1024, "
        "memory.offload=optimizer; it takes the runs of contexts and contexts_chunks"
    )
    with pytest.raises(ValueError, match=told):
        contexts.table(Records([other]))
