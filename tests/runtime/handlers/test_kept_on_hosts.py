"""Activations in host memory on four processes: exact, with the bytes that the step says and in as much memory."""

from dataclasses import replace

import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import pipeline_plans, plan_of
from tests.runtime.handlers.test_degrees import FOUR
from tests.runtime.handlers.test_expert_chunks import RANKS
from tests.step.test_exchanges import HOWS
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS, MODEL
from zbench.correctness.steps.command import judged_step
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import TOKEN_CHOICE, ExpertChunks
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.passes.reverse import Mode
from zbench.runtime.processes.launch import LocalFleet
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

DENSE = replace(MODEL, offload="activations")
BOTH = replace(MODEL, offload="activations_and_optimizer")
ALL = ExpertParallel(4, 1)  # GPUs hold all experts together


@pytest.mark.parametrize(
    ("model", "zero", "degree", "level", "chunk", "layers", "mode"),
    [
        (DENSE, "3", 1, "none", "whole", (3, 3), "carry"),  # of three layers, of which the last one's stay
        (DENSE, "1", 2, "none", "whole", (2, 1), "carry"),  # of each micro-batch others
        (DENSE, "none", 2, "selective", 3, (2, 2), "keep"),
        (DENSE, "2", 1, "chunked", 3, (1, 0), "carry"),
        (DENSE, "3", 1, "none", "whole", (2, 2), "keep"),  # GPUs of a node keep the same keys and values
        (BOTH, "3", 1, "none", "whole", (2, 1), "keep"),
        (BOTH, "1", 2, "selective", 3, (1, 2), "carry"),
    ],
)
def test_exact_with_the_bytes_of_the_step(
    ranks: LocalFleet,
    model: Model,
    zero: str,
    degree: int,
    level: str,
    chunk: int | str,
    layers: tuple[int, int],
    mode: Mode,
) -> None:
    """On two nodes; in the second micro-batch some processes have no token."""
    model, count = replace(model, mlp_chunk_tokens=chunk), 4 // degree
    plans = [plan_of(lengths, count, count, mode, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = with_host_memory(whole_step(model, plans, degree, zero, recompute=level), model, 2, layers)
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, degree))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
    assert all(one["host"] != (0, 0) for one in stated_bytes(step))


INPUTS = replace(MODEL, offload="inputs")
DEEP = replace(MODEL, num_layers=6)


@pytest.mark.parametrize(
    ("model", "degree", "stages", "zero", "level", "layers", "mode"),
    [
        (DENSE, 1, 2, "1", "none", (2, 2, 2), "carry"),  # stages of one layer and two
        (replace(DEEP, offload="activations"), 1, 2, "none", "selective", (2, 3, 1), "keep"),
        (replace(DEEP, offload="activations"), 2, 2, "1", "none", (3, 0, 3), "carry"),
        (replace(DEEP, offload="activations"), 1, 2, "1", SomeLayers("full", (1, 2)), (3, 3, 2), "carry"),
        (replace(DEEP, offload="activations"), 1, 1, "3", SomeLayers("selective", (4,)), (6, 3, 5), "carry"),
        (replace(DEEP, offload="activations"), 1, 4, "1", "full", (2, 2, 1), "carry"),
        (INPUTS, 2, 2, "1", "full", (3, 3, 3), "carry"),
        (replace(DEEP, offload="inputs"), 1, 4, "none", "full", (1, 2, 1), "carry"),
    ],
)
def test_exact_in_stages_and_with_some_layers_recomputed(
    ranks: LocalFleet,
    model: Model,
    degree: int,
    stages: int,
    zero: str,
    level: str | SomeLayers,
    layers: tuple[int, ...],
    mode: Mode,
) -> None:
    """Inputs or activations of other layers of each of three micro-batches wait in the host memory of two nodes of two
    processes, and loss and gradients are one dense process's."""
    count = 4 // degree // stages
    lengths = ([9, 6], [2, 1], [5])
    plans = [plan_of(one, count, 4 // degree, mode, first=10 * at) for at, one in enumerate(lengths)]
    step = with_host_memory(whole_step(model, plans, degree, zero, 1, level, stages=stages), model, 2, layers)
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, degree))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
    assert all(one["host"] != (0, 0) for one in stated_bytes(step)[-4 // stages :])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "level"), [(DEEP, "full"), (DEEP, "none"), (DEEP, "selective")])
@pytest.mark.parametrize("offload", ["inputs", "activations"])
@pytest.mark.parametrize("shapes", [[(1, 2), (2, 1)], [(1, 3), (1, 1)], [(2, 2)]])
def test_exact_in_pipelines_of_plans(
    ranks: LocalFleet, model: Model, level: str, offload: str, shapes: list[tuple[int, int]]
) -> None:
    model, last = replace(model, offload=offload), len(shapes) - 1
    plans = pipeline_plans(shapes, [[(9, 0), (6, last), (3, 0)], [(2, 0), (1, 0)]], 4)
    built = whole_step(model, plans, 1, "1", 1, level)
    step = with_host_memory(built, model, 2, [4] * len(built.layouts))
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, 1))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
    assert all(one["host"] != (0, 0) for one in stated_bytes(step))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("level", "offload"), [("none", "activations"), ("selective", "activations"), ("full", "inputs")]
)
@pytest.mark.parametrize(("stages", "layers"), [(1, 5), (1, 2), (2, 5)])
def test_exact_with_dense_layers_before_others(
    ranks: LocalFleet, level: str, offload: str, stages: int, layers: int
) -> None:
    model = replace(EXPERTS, num_layers=5, dense_layers=2, dense_ffn_hidden=10, shared_experts=1, offload=offload)
    how = ExpertParallel(4 // stages, 1, skew=1.0)
    plans = [plan_of(lengths, 4 // stages, 4, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    built = whole_step(model, plans, 1, "1", 1, level, how, stages)
    step = with_host_memory(built, model, 2, [layers, 1])
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, 1, experts=how))
    assert judged_step(RANKS, found, stated_bytes(step)).fault == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "chunk", "level", "how", "chunks", "zero"),
    [
        (EXPERTS, "whole", "none", ALL, ExpertChunks(), "1"),
        (replace(EXPERTS, shared_experts=2), 4, "chunked", replace(ALL, skew=1.0), ExpertChunks(1, 2), "3"),
        (EXPERTS, "whole", "selective", replace(ALL, node=2, tensor_parallel=2, skew=1.0), ExpertChunks(2, 1), "2"),
        (EXPERTS, 5, "none", replace(ALL, routing=TOKEN_CHOICE), ExpertChunks(), "1"),  # rows that routers count
        (EXPERTS, 5, "none", ExpertParallel(2, 1, routing=TOKEN_CHOICE), ExpertChunks(), "1"),  # of two experts a GPU
        (EXPERTS, "whole", "none", ExpertParallel(1, 1), ExpertChunks(), "none"),  # all at home
    ],
)
def test_rows_of_experts_go_to_hosts(
    ranks: LocalFleet, model: Model, chunk: int | str, level: str, how: ExpertParallel, chunks: ExpertChunks, zero: str
) -> None:
    model, plans = replace(model, mlp_chunk_tokens=chunk, offload="activations"), [plan_of([50, 1, 13], 4, 4)]
    overlap = StepOverlap(experts=chunks)
    step = with_host_memory(whole_step(model, plans, 1, zero, overlap, level, how), model, 2, [model.num_layers])
    prove_step(step)
    case = StepCase.of(step, model, plans, 1, experts=how.in_chunks(chunks), slices=overlap.token_slices)
    found = ranks.call("run", case)
    rows = chosen_rows(one.rows for one in found)
    assert judged_step(RANKS, found, stated_bytes(step, rows or None)).fault == ""


@pytest.mark.parametrize(
    ("model", "degree", "stages", "zero", "level", "chunk", "layers", "mode"),
    [
        (DENSE, 1, 1, "3", "none", "whole", (3, 3), "carry"),
        (DENSE, 2, 1, "none", "selective", 3, (2, 1), "keep"),
        (DENSE, 1, 1, "3", "none", "whole", (2, 2), "keep"),  # GPUs of a node keep the same keys and values
        (BOTH, 2, 1, "1", "chunked", 3, (1, 2), "carry"),
        (replace(DEEP, offload="activations"), 1, 2, "1", "none", "whole", (3, 2), "carry"),
        (replace(DEEP, offload="inputs"), 1, 1, "2", "full", 3, (6, 4), "carry"),
    ],
)
def test_exact_of_some_tokens(
    ranks: LocalFleet,
    model: Model,
    degree: int,
    stages: int,
    zero: str,
    level: str,
    chunk: int | str,
    layers: tuple[int, int],
    mode: Mode,
) -> None:
    """A share of each sequence's tokens waits in host memory, of the last one's none: exact, with every byte."""
    model, count = replace(model, mlp_chunk_tokens=chunk), 4 // degree // stages
    shares = ((0.6, 0.25), (0.5, 0.0))
    plans = [plan_of(lengths, count, 4 // degree, mode, first=10 * at) for at, lengths in enumerate(([19, 6], [2, 1]))]
    parts = parts_of_layouts(plans, model, degree, shares=shares)
    built = whole_step(model, plans, degree, zero, StepOverlap(shares=shares), level, stages=stages)
    step = with_host_memory(built, model, 2, layers, [one.sent for one in parts])
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, degree, shares=shares))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
    assert any(one["host"] != (0, 0) for one in stated_bytes(step))


@pytest.mark.parametrize("how", [HOWS["sliced 2"], HOWS["async_tp"]], ids=["sliced", "async_tp"])
def test_beside_exchanges_of_a_group(ranks: LocalFleet, how: ExchangeOverlap) -> None:
    plans, overlap = [plan_of([9, 6], 2, 2)], StepOverlap(exchanges=how)
    step = with_host_memory(whole_step(DENSE, plans, 2, "1", overlap), DENSE, 2, [2])
    prove_step(step)
    case = StepCase.of(step, DENSE, plans, 2, slices=overlap.token_slices)
    assert judged_step(FOUR, ranks.call("run", case), stated_bytes(step)).fault == ""


@pytest.mark.parametrize("level", ["none", "selective"])
@pytest.mark.parametrize("stages", [1, 2])
def test_held_as_accounted(ranks: LocalFleet, level: str, stages: int) -> None:
    """With a feed-forward of 256 columns and five layers a stage, so that what is kept is what is fullest; in stages
    three micro-batches."""
    model = replace(DENSE, num_layers=5 * stages, ffn_hidden=256)
    plans = [plan_of([257, 40, 100], 4 // stages, 4, first=3 * at) for at in range(2 * stages - 1)]
    built = whole_step(model, plans, 1, "1", recompute=level, stages=stages)
    step = with_host_memory(built, model, 2, [5] * len(plans))
    link = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5}
    cost = replace(small(2, 2), model=model, cluster=replace(small(2, 2).cluster, **link))
    memory = step_memory(StepParts(step, plans, cost))
    said = memory.peak[:4].tolist()
    held = [one.held for one in ranks.call("run", replace(StepCase.of(step, model, plans, 1), weighed=True))]
    assert held == pytest.approx(said, rel=0.03)
