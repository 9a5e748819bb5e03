"""A search for the static configuration that is fastest over a distribution of lengths.

Candidates are played on few batches, the better ones on more, the best on all (successive halving, Jamieson and
Talwalkar 2016, arXiv 1502.07943), all but the first by the run's own clock. Of a method, degrees are tried upwards from
the least that holds the longest sequence, until one is slower than the one before it: wider groups then only send more.
With stages, micro-batches as large as memory allows have the longest bubble, so smaller ones are tried from the
beginning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import ceil, inf

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.interfaces.study import Choice, Clock, Sample, Study
from zbench.run.fastest import ENOUGH, FREE
from zbench.simulator.simulate import Simulated
from zbench.systems.common.mesh_groups import METHODS
from zbench.systems.common.mesh_packs import Batching
from zbench.systems.common.mesh_plans import least_degree
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.mesh import Mesh

# How many is a judgement: on 32 GPUs the search takes some seconds.
ROUNDS = ((4, 8), (8, 3))  # batches that candidates are played on, and how many go on to more; the last have all
SHARES = (0.5, 0.25)  # of the tokens that fit a GPU: smaller micro-batches that are tried at last
FILLS = (1, 2, 4)  # with stages, micro-batches a stage that are tried at first: a bubble of at most 1/2, 1/3 and 1/5
PACKED = {"arrival": "packed in order", "best_fit": "packed by best fit", "balanced": "packs balanced by time"}
LAYOUT = ("tensor_parallel", "pipeline_parallel", *FREE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mesh on the ranks that a model's tensor parallelism and stages leave."""

    model: Model
    mesh: Mesh

    def seconds(self, batches: Sequence[Batch], clock: Clock = Simulated) -> float:
        """Plays a step of each batch and returns the mean of their seconds, infinite where one does not fit memory."""
        executor, total = clock(self.mesh.cost), 0.0
        for batch in batches:
            result = executor.step(batch, self.mesh.plan(batch))
            if result.out_of_memory:
                return inf
            total += result.seconds
        return total / len(batches)

    def choice(self, num_gpus: int) -> Choice:
        """Returns the keys of the model and of the mesh that this candidate sets, and both in words."""
        mesh, model = self.mesh, self.model
        assert mesh.degree is not None
        keys = {name: getattr(mesh, name) for name in ("method", "degree", "batching", "pack_tokens")}
        stages = model.pipeline_parallel
        groups = num_gpus // (model.tensor_parallel * stages * mesh.degree)
        words = (
            f"tensor parallelism {model.tensor_parallel}, {stages} stage{'s' * (stages > 1)}, "
            f"{f'{mesh.method} over {mesh.degree}' if mesh.degree > 1 else 'no context parallelism'}, data parallelism "
            f"{groups}, micro-batches of at most {mesh.pack_tokens:,} tokens a GPU {PACKED[mesh.batching]}, "
            f"sharding {model.sharding}, recompute {model.recompute}"
        )
        return Choice({name: getattr(model, name) for name in LAYOUT}, keys, words)


def search_layouts(study: Study, free: Sequence[str], batching: Batching) -> Choice:
    """Returns the fastest candidate that fits.

    Raises:
        ValueError: none does.
    """
    sample = Sample.of(study)
    hard = sample.hard
    (few, better), (more, best) = ROUNDS
    few = max(1, min(few, ENOUGH // study.cluster.num_ranks))
    first, then, last = sample.some(few), sample.some(min(more, study.judged)), sample.some(study.judged)
    timed: list[tuple[float, Candidate]] = []
    for model, cost in parallel_layouts(study, free):
        study.tell(f"playing tensor parallelism {model.tensor_parallel}, stages {model.pipeline_parallel}")
        timed += grown(model, cost, batching, hard, first)
    timed = filled(timed, first)
    study.tell("playing the better ones")
    fitting = islice((one for one in ranked(timed) if one.seconds([hard], study.clock) < inf), better)
    timed = [(one.seconds(then, study.clock), one) for one in fitting]
    sizes = [smaller for one in ranked(timed)[:best] for smaller in sized(one, hard)]
    candidates = ranked([(one.seconds(last, study.clock), one) for one in sizes])
    if not candidates:
        raise ValueError(
            f"model is {study.model.name}; no static configuration on {study.cluster.num_ranks} GPUs has room for a "
            f"sequence of {int(hard.lengths.max()):,} tokens, which one batch in a thousand has: use more nodes, "
            "another model, or a workload of shorter sequences"
        )
    return candidates[0].choice(study.cluster.num_ranks)


def parallel_layouts(study: Study, free: Sequence[str]) -> Iterator[tuple[Model, Cost]]:
    """Yields models with every parallelism that divides the cluster, and the cost models of what is left."""
    cluster, model = study.cluster, study.model
    tensor = [1] if study.trains else divisors(cluster.gpus_per_node)
    stages = [1] if study.trains else divisors(cluster.num_nodes)
    freed = () if study.trains else free
    values = [FREE[name] if name in freed else (getattr(model, name),) for name in FREE]
    for chosen in product(tensor, stages, *values):
        try:
            laid = replace(model, **dict(zip(LAYOUT, chosen, strict=True)), micro_batches=1)
            cost = study.cost_of(laid)
            study.clock(cost)
        except ValueError:  # it does not divide, or ZeRO-3 with stages, or the run's clock does not play it
            continue
        yield laid, cost


def grown(
    model: Model, cost: Cost, batching: Batching, hard: Batch, batches: Sequence[Batch]
) -> Iterator[tuple[float, Candidate]]:
    """Yields meshes of every method, of degrees from the least on, with their seconds on `batches`."""
    ranks, tokens = cost.cluster.num_ranks, fitting_tokens(cost)
    least = least_degree(int(hard.lengths.max()), tokens, ranks)
    for method in METHODS:
        before = inf
        for degree in (one for one in divisors(ranks) if one >= least):
            candidate = Candidate(model, Mesh(cost, method, degree, batching, tokens))
            seconds = candidate.seconds(batches)
            yield seconds, candidate
            if before < seconds < inf:
                break
            before = seconds


def filled(timed: Sequence[tuple[float, Candidate]], batches: Sequence[Batch]) -> list[tuple[float, Candidate]]:
    """Returns candidates and their seconds; of every model with stages the fastest mesh has micro-batches of fewer and
    fewer tokens, until they are slower.

    Without any bubble n stages are n times as fast as with one micro-batch: who would be behind even then stays.
    """
    least, found = min((seconds for seconds, _ in timed), default=inf), []
    models: list[Model] = []
    for seconds, candidate in sorted(timed, key=_seconds):
        if candidate.model not in models and seconds / candidate.model.pipeline_parallel < least:
            for smaller in fills(candidate, batches):
                its = smaller.seconds(batches)
                if its > seconds:
                    break
                seconds, candidate = its, smaller
        models.append(candidate.model)
        found.append((seconds, candidate))
        least = min(least, seconds)
    return found


def fills(candidate: Candidate, batches: Sequence[Batch]) -> Iterator[Candidate]:
    """Yields the candidate, if it has stages, with smaller micro-batches, of which a batch is some for each stage."""
    mesh, stages = candidate.mesh, candidate.model.pipeline_parallel
    assert mesh.pack_tokens is not None
    even = max(batch.num_tokens for batch in batches) / mesh.cost.cluster.num_ranks
    for size in (ceil(even / (fill * stages)) for fill in FILLS if stages > 1):
        if size < mesh.pack_tokens:
            yield replace(candidate, mesh=replace(mesh, pack_tokens=size))


def sized(candidate: Candidate, batch: Batch) -> Iterator[Candidate]:
    """Yields the candidate and, without stages, the same with smaller micro-batches, where a batch is then more of
    them."""
    mesh = candidate.mesh
    assert mesh.pack_tokens is not None
    yield candidate
    if candidate.model.pipeline_parallel > 1:  # whose smaller ones were tried at first
        return
    for tokens in (int(share * mesh.pack_tokens) for share in SHARES):
        if 1 <= tokens * mesh.cost.cluster.num_ranks < batch.num_tokens:
            yield replace(candidate, mesh=replace(mesh, pack_tokens=tokens))


def ranked(timed: Sequence[tuple[float, Candidate]]) -> list[Candidate]:
    """Sorts candidates that fit by their seconds, fastest first; equally fast ones keep their order."""
    return [one for seconds, one in sorted(timed, key=_seconds) if seconds < inf]


def _seconds(timed: tuple[float, Candidate]) -> float:
    return timed[0]


def divisors(number: int) -> list[int]:
    """Lists the divisors of a number, ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]
