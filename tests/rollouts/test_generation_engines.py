"""Engines beside each other: which layouts there are, and the order that Seesaw's paper has."""

from pathlib import Path

import numpy as np
import pytest

from tests.rollouts.test_generate import ints
from tests.rollouts.test_reshard import cost_of
from zbench.api.parts import cluster_named, model_named
from zbench.api.words import run_sub_command
from zbench.cost.cost import Cost
from zbench.describe.job import CONTINUOUS, GENERATION_ENGINES, SEESAW
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.generation_engines import EngineLimits, every_layout, layout_cost, played_engines

COST = cost_of(4)
LLAMA = Cost(cluster=cluster_named("a10_1x8"), model=model_named("llama2_70b"))


def names(cost: Cost, longest: int) -> list[str]:
    return [f"{one.pipeline}-{one.tensor}" for one in every_layout(cost, 0.9, longest)]


def test_layouts_are_those_that_divide_and_have_room() -> None:
    assert names(COST, 10) == ["1-1", "2-1", "1-2", "4-1", "2-2", "1-4"]
    assert names(LLAMA, 4000) == ["8-1", "4-2", "2-4", "1-8"]
    told = r"a10_1x8: a sequence has 999999 tokens, and no layout has room for more than \d+$"
    with pytest.raises(ValueError, match=told):
        names(LLAMA, 999_999)
    with pytest.raises(ValueError, match=r"^layouts is 3-1; its replicas|^a layout has 3 stages"):
        layout_cost(COST, GenerateDegrees(3, 1), 0.9)


def test_every_engine_is_played_on_every_layout() -> None:
    layouts = every_layout(COST, 0.9, 10)
    found = played_engines(ints(3, 4, 2, 5), ints(4, 4, 5, 1), layouts, GENERATION_ENGINES, EngineLimits(4, 3, 1e9))
    assert [one.engine for one in found].count(CONTINUOUS) == 6
    pairs = [f"{one.prefill} {one.decode}" for one in found if one.engine == SEESAW]
    assert pairs == ["2-1 1-2", "1-2 2-1", "4-1 2-2", "4-1 1-4", "2-2 4-1", "2-2 1-4", "1-4 4-1", "1-4 2-2"]
    assert {one.reloads for one in found if one.engine == SEESAW} == {1}
    assert {one.found.tokens for one in found} == {28}
    with pytest.raises(ValueError, match=r"^engine is seesaw; .*, and 1-1, 1-2 has no two of them$"):
        played_engines(ints(3), ints(4), [layouts[0], layouts[2]], [SEESAW], EngineLimits())


def test_the_published_order_by_length_of_responses() -> None:
    """Seesaw (arXiv 2503.06433), prompts of 3,000 tokens, 70B on eight A10: eight stages are best for one token, then
    four of two GPUs, then two of four; eight stages and then two of four are best everywhere."""
    layouts = [layout_cost(LLAMA, GenerateDegrees.of(text), 0.9) for text in ("8-1", "4-2", "2-4")]
    best = []
    for response in (1, 75, 600):
        lengths = np.full(60, 3000), np.full(60, response)
        found = played_engines(*lengths, layouts, [CONTINUOUS], EngineLimits())
        fastest = min(found, key=lambda one: one.seconds)
        seesaw = played_engines(*lengths, [layouts[0], layouts[2]], [SEESAW], EngineLimits())[0]
        best.append((str(fastest.prefill), seesaw.seconds < fastest.seconds))
    assert best == [("8-1", True), ("4-2", True), ("2-4", True)]


def test_the_command_takes_engines_and_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "l.txt")
    Path(file).write_text("8\n9\n10\n")
    node = ["cluster=a10_1x8", "cluster.gpus_per_node=2", "model=tiny"]
    assert run_sub_command("generate", [file, file, "layouts=all", "engine=seesaw,chunked", "chunk=4", *node]) == 0
    told = capsys.readouterr().out
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in told.splitlines() if row.startswith("│")]
    assert [(row[0], row[1], row[2], row[3], row[-1]) for row in rows] == [
        ("seesaw", "2-1", "1-2", "1", "1"),
        ("seesaw", "1-2", "2-1", "1", "1"),
        ("chunked", "1-1", "1-1", "2", "0"),
        ("chunked", "2-1", "2-1", "1", "0"),
        ("chunked", "1-2", "1-2", "1", "0"),
    ]
    assert "Fastest: " in told
    for words, wrong in (
        (["engine=vllm"], "engine is 'vllm'; it takes one of chunked, continuous, seesaw"),
        (["layouts=2"], "layouts is '2'; it takes p-t"),
        (["layouts=1-2", "tensor=2"], "tensor and layouts are both given; tensor=4 is layouts=1-4"),
        (["chunk=0"], "chunk is 0; it takes a whole number of at least 1"),
        (["host_kv=80"], "host_kv is 80, which has no unit"),
        (["host_kv='0 GiB'", "engine=seesaw", "layouts=all"], "host_kv is '0 GiB'; it takes bytes"),
        (["layouts=1-4"], "tensor is 4; it has to divide"),
    ):
        with pytest.raises(ValueError, match=wrong):
            run_sub_command("generate", [file, file, *words, *node])
