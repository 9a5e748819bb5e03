"""Outer parameters of workers with tensor-parallel groups, experts and stages: each cell has one home, on the GPU that
has it in a worker's own step, and what a round ends with is proven for every shape."""

from dataclasses import replace
from math import lcm

import numpy as np
import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import EXPERTS, MODEL
from zbench.describe.expert_schedule import ExpertChunks, GradientPieces
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.describe.sync import SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.step.operations import GATHER, MOVE, REDUCE, SEND
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.passes.rounds.outer_step import NOW, PHASES, SENT, outer_step
from zbench.step.passes.rounds.worker_steps import WorkerSteps
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.template import Step

FIVE = replace(MODEL, num_layers=5)
TIED = replace(FIVE, tied_embeddings=True)
DENSE_FIRST = replace(EXPERTS, num_layers=5, dense_layers=2, dense_ffn_hidden=20, shared_experts=1)
STAGES = ("none", "1")  # of ZeRO; shards of the others are those of 1


def check_homes(of: OuterParameters, own: ShardedParameters) -> None:
    """Cells are those of a worker's own step, and at home on the same GPU of one of the workers."""
    for weight in (*of.of_layers, *of.outside):
        assert (of.home(weight) % of.worker_gpus == own.home(weight)).all(), weight
        assert of.home(weight).max() < of.workers * of.worker_gpus
        if weight in of.shards:
            assert (of.shards[weight][0] == own.shards[weight][0]).all(), weight


def check_slices(step: Step, degree: int, worker: int) -> None:
    """Collectives are between GPUs of different workers with one slice of tensor parallelism, or inside one."""
    lists = step.layouts[0].lists
    for template in step.templates:
        ops = template.operations
        assert not np.isin(ops.kind, (SEND, MOVE)).any()
        for at in np.flatnonzero(np.isin(ops.kind, (REDUCE, GATHER))).tolist():
            tensor = step.layouts[0].tensors[int(ops.what[at])]
            if tensor.axes[:1] == ("j",):
                assert len({int(one) % degree for one in lists[int(ops.dst[at])]}) == 1
            assert len({int(one) // worker for one in lists[int(ops.dst[at])]}) == step.num_gpus // worker


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize(("gpus", "worker", "degree"), [(6, 2, 2), (8, 4, 4), (16, 4, 2)])
@pytest.mark.parametrize(("model", "experts"), [(MODEL, TOGETHER), (EXPERTS, ExpertParallel(2))])
def test_groups_of_every_worker(
    kind: str, gpus: int, worker: int, degree: int, model: Model, experts: ExpertParallel
) -> None:
    for stage in STAGES:
        of = OuterParameters.of(model, (gpus, worker), stage, experts, (degree, 1))
        step = outer_step(model, of, kind)
        assert prove_step(step).touches > 0
        assert is_read_as_written(step)
        inside = worker // degree, degree, stage, StepOverlap(0), experts.degree, gpus // worker
        check_homes(of, ShardedParameters(model, *inside))
        check_slices(step, degree, worker)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize(("gpus", "worker", "degree"), [(6, 2, 1), (16, 8, 2)])
@pytest.mark.parametrize(
    ("model", "layers", "starts"),
    [(FIVE, (0, 5), (0, 2)), (TIED, (0, 5), (0, 3)), (DENSE_FIRST, (2, 3), (0, 2)), (DENSE_FIRST, (1, 2), (0, 2))],
)
def test_stages_of_every_worker(
    kind: str, gpus: int, worker: int, degree: int, model: Model, layers: tuple[int, int], starts: tuple[int, ...]
) -> None:
    """Workers are pipelines side by side; the two tables of tied embeddings are averaged each on its stage."""
    stages, model = len(starts), model.with_stages(len(starts))
    experts = ExpertParallel(2) if model.num_experts > 1 and worker // stages > 1 else TOGETHER
    for stage in STAGES:
        of = OuterParameters.of(model, (gpus, worker), stage, experts, (degree, stages))
        for outside in (True, False):
            step = outer_step(model, of, kind, outside, layers, starts)
            assert prove_step(step).touches > 0
            assert is_read_as_written(step)
            assert [[one.place for one in mine] for mine in step.pipelines] == [
                [lead, lead + worker // stages] for lead in range(0, gpus, worker)
            ]
        inside = worker // stages // degree, degree, stage, StepOverlap(0), experts.degree, gpus // worker
        check_homes(of, ShardedParameters(model, *inside))
        check_slices(step, degree, worker)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_workers_have_the_same_cells_whatever_pieces_their_gradients_are_in(workers: int) -> None:
    """Steps whose gradients are in one, three and eight pieces cut parameters alike, each piece in as many cells."""
    for stage in ("none", "1"):
        of = OuterParameters.of(DENSE_FIRST, (2 * workers, 2), stage, ExpertParallel(2), pieces=24)
        for kind in (NOW, SENT):
            step = outer_step(DENSE_FIRST, of, kind, True, (2, 3))
            assert prove_step(step).touches > 0
        for count in (1, 3, 8):
            overlap = StepOverlap(0, experts=ExpertChunks(gradients=GradientPieces(count, 0, count)))
            own = ShardedParameters(DENSE_FIRST, 2, 1, stage, overlap, 2, lcm(workers, 24))
            check_homes(of, own)
            for weight in of.shards:
                each = np.bincount(own.pieces_of(weight), minlength=count)
                assert len(each) == count
                assert each.max() <= 2 * lcm(workers, 24) // count  # a share of each of two GPUs


def test_broken_ends_of_workers_with_stages_are_refused() -> None:
    """A stage whose layers are not averaged, or twice; the head played where another layer is; stages of one worker
    that overlap."""
    of = OuterParameters.of(FIVE, (8, 4), "1", TOGETHER, (2, 2))
    step = outer_step(FIVE, of, NOW, True, (0, 5), (0, 2))
    prove_step(step)
    names = [step.templates[one.template].name for one in step.order]
    runs = [at for at, name in enumerate(names) if name == "contribute"]
    assert [list(step.order[at].layers) for at in runs] == [[0, 1], [2, 3, 4]]
    without = (*step.order[: runs[1]], *step.order[runs[1] + 1 :])
    twice = (*step.order[: runs[1]], *step.order[runs[0] : runs[0] + 1], *step.order[runs[1] :])
    head = names.index("update_head")
    early = (*step.order[:head], replace(step.order[head], layer=0), *step.order[head + 1 :])
    for order in (without, twice, early):
        with pytest.raises(StepError):
            prove_step(replace(step, order=order))
    lower = replace(step.stages[3], place=5)  # its second stage begins within its first
    with pytest.raises(StepError):
        prove_step(replace(step, stages=(*step.stages[:3], lower)))


def test_fragments_have_layers_of_every_stage() -> None:
    streaming = RoundSync(STREAMING_DILOCO, 4, fragments=2, delay=3)
    steps = WorkerSteps("simulated", FIVE, (8, 4), streaming, degrees=(1, 2))
    ends = [steps.end(fragment, SENT) for fragment in range(2)]
    assert [one.layers for one in ends] == [(0, 2, 4, 5), (1, 3, 5)]
    assert [[one.layer for one in end.step.pipelines[0]] for end in ends] == [
        [0, 1],
        [0, 1],
    ]
    told = r"^sync.fragments is 3; a stage of tiny has 2 layers, and every fragment some of them, so it takes 1 to 2$"
    with pytest.raises(ValueError, match=told):
        WorkerSteps("simulated", FIVE, (8, 4), replace(streaming, fragments=3), degrees=(1, 2))


def test_what_workers_with_stages_cannot_be_is_one_sentence() -> None:
    sync = RoundSync(SLOWMO, 2)
    told = r"^parallel.pipeline_parallel is 2; with sync=slowmo .* so it takes cluster.num_nodes of at least 4$"
    with pytest.raises(ValueError, match=told):
        WorkerSteps("simulated", FIVE, (4, 4), sync, degrees=(1, 2))
