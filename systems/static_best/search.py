"""A search for the static configuration that is fastest over a distribution of lengths.

Candidates are played on few batches, the better ones on more, the best on all (successive halving, Jamieson and
Talwalkar 2016, arXiv 1502.07943), all but the first by the run's own clock. Of a method, degrees are tried upwards from
the least that holds the longest sequence, until one is slower than the one before it: wider groups then only send more.
With stages, micro-batches as large as memory allows have the longest bubble, so smaller ones are tried from the
beginning. What is far behind on few batches goes no further.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import ceil, inf

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import EVEN
from zbench.describe.units import with_noun
from zbench.interfaces.study import Choice, Clock, Sample, Study
from zbench.run.fastest import ENOUGH, FREE, free_values
from zbench.systems.common.mesh_groups import METHODS, Method
from zbench.systems.common.mesh_packs import Batching
from zbench.systems.common.mesh_plans import least_degree
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.mesh import Mesh
from zbench.systems.static_best.candidate import LAYOUT, Candidate, KnownPlays

# How many is a judgement: on 32 GPUs the search takes some seconds.
ROUNDS = ((4, 8), (8, 3))  # batches that candidates are played on, and how many go on to more; the last have all
SHARES = (0.5, 0.25)  # of the tokens that fit a GPU: smaller micro-batches that are tried at last
FILLS = (1, 2, 4)  # with stages, micro-batches a stage that are tried at first: a bubble of at most 1/2, 1/3 and 1/5
ONCE = ("none", "zero1")  # shardings with which no micro-batch pays for gathers or reductions of its own
CONFIRMED = 16  # batches that the best are played on at last where a sample has more than they are judged on
BEHIND = 1.15  # times the fastest: what takes longer is far behind; a judgement
# Times the estimate of a candidate with stages: within it whole steps judge how large micro-batches are. A judgement:
# estimates with stages are 1.4 % off at the median, and more where there are more micro-batches.
KNOWN = 1.05
HOPELESS = 1.5  # times a rival by planners' estimate: a judgement; of those looked at whole steps turned 1.23 at most

Timed = tuple[float, Candidate]


@dataclass(frozen=True, slots=True)
class Race:
    """The race that candidates enter: what they are played on at first, and when one is out. few: the batches. hard: a
    batch that has to fit. clock: the run's own. known: what candidates have found of steps."""

    few: Sequence[Batch]
    hard: Batch
    clock: Clock
    known: KnownPlays = field(default_factory=KnownPlays, repr=False, compare=False)

    def fits(self, candidate: Candidate) -> bool:
        """Returns whether a candidate has room for the hard batch."""
        return candidate.fits(self.hard, self.clock)

    def limit(self, timed: Iterable[Timed]) -> float:
        """Returns the seconds from which on a candidate is far behind the fastest of those that fit."""
        return BEHIND * next((seconds for seconds, one in sorted(timed, key=_seconds) if self.fits(one)), inf)


@dataclass(frozen=True, slots=True)
class Rival:
    """The seconds that candidates have to beat to be chosen, of another search's best: on few batches by planners'
    estimate, and by the run's on more of them and on the last ones."""

    few: float = inf
    more: float = inf
    last: float = inf


def search_layouts(study: Study, free: Sequence[str], batching: Batching) -> Choice:
    """Returns the fastest candidate that fits.

    Raises:
        ValueError: none does.
    """
    sample = Sample.of(study)
    return first_choice(ranked_layouts(study, sample, free, batching, race_of(study, sample)), study, sample)


def first_choice(candidates: Sequence[Candidate], study: Study, sample: Sample) -> Choice:
    """Returns the choice of the first of the candidates.

    Raises:
        ValueError: there is none.
    """
    if not candidates:
        raise ValueError(
            f"model is {study.model.name}; no static configuration on {with_noun(study.cluster.num_ranks, 'GPU')} has "
            f"room for a sequence of {int(sample.hard.lengths.max()):,} tokens, which one batch in a thousand has: "
            "use more nodes, another model, or a workload of shorter sequences"
        )
    return candidates[0].choice(study.cluster.num_ranks)


def race_of(study: Study, sample: Sample) -> Race:
    """Returns the race that candidates enter."""
    few = max(1, min(ROUNDS[0][0], ENOUGH // study.cluster.num_ranks))
    return Race(sample.some(few), sample.hard, study.clock)


def last_batches(study: Study, sample: Sample) -> Sequence[Batch]:
    """Returns the batches on which candidates are played at last."""
    return sample.some(CONFIRMED if study.judged < len(sample.played) else study.judged)


def ranked_layouts(
    study: Study, sample: Sample, free: Sequence[str], batching: Batching, race: Race, rival: Rival | None = None
) -> list[Candidate]:
    """Returns the candidates that were played to the end and fit, the fastest first; none that is slower than a rival.
    Who is far behind it on few batches goes no further."""
    (_, better), (more, best) = ROUNDS
    then, last = sample.some(min(more, study.judged)), sample.some(study.judged)
    rival = rival or Rival()
    timed: list[Timed] = []
    for model, cost in parallel_layouts(study, free):
        study.tell(f"playing tensor parallelism {model.tensor_parallel}, stages {model.pipeline_parallel}")
        timed += grown(model, cost, batching, race, methods_of(model, timed))
    timed = filled(timed, race)
    study.tell("playing the better ones")
    near = ranked(timed, HOPELESS * rival.few)
    timed = raced(islice(filter(race.fits, near), better), then, study.clock, best, BEHIND * rival.more)
    sizes = [list(sized(one, race)) for one in ranked(timed)[:best]]
    if study.judged < len(sample.played):  # too few to choose by; enough for how large each one's micro-batches are
        sizes = [ranked(raced(some, last, study.clock))[:1] for some in sizes]
        last = last_batches(study, sample)
    return ranked(raced([one for some in sizes for one in some], last, study.clock, limit=rival.last))


def parallel_layouts(study: Study, free: Sequence[str]) -> Iterator[tuple[Model, Cost]]:
    """Yields models with every parallelism that divides the cluster, and the cost models of what is left."""
    cluster, model = study.cluster, study.model
    tensor = [1] if study.trains else divisors(cluster.gpus_per_node)
    stages = [1] if study.trains else divisors(cluster.num_nodes)
    freed = () if study.trains else free
    values = [free_values(name, model) if name in freed else (getattr(model, name),) for name in FREE]
    for chosen in product(tensor, stages, *values):
        try:
            laid = replace(model.with_stages(chosen[1]), **dict(zip(LAYOUT, chosen, strict=True)), micro_batches=1)
            if laid.pipeline_parallel > 1 and laid.sharding not in ONCE and "sharding" in freed:
                continue  # of which there are four times as many
            cost = study.cost_of(laid)
            study.clock(cost)
        except ValueError:  # it does not divide, or the run's clock does not play it
            continue
        yield laid, cost


def methods_of(model: Model, timed: Sequence[Timed]) -> Sequence[Method]:
    """Returns the methods that a layout is tried with: all, or, of stages whose micro-batches pay for gathers, that of
    the fastest mesh with the same tensor parallelism and one stage, if one fits: a judgement, for fewer seconds. timed:
    of layouts that came before."""
    if model.pipeline_parallel == 1 or model.sharding in ONCE:
        return METHODS
    alike = replace(model, pipeline_parallel=1, stage_layers=EVEN)
    fastest = (one.mesh.method for seconds, one in sorted(timed, key=_seconds) if seconds < inf and one.model == alike)
    return [*islice(fastest, 1)] or METHODS


def grown(
    model: Model, cost: Cost, batching: Batching, race: Race, methods: Sequence[Method] = METHODS
) -> Iterator[Timed]:
    """Yields meshes of some methods, of degrees from the least on, with their seconds on few batches."""
    ranks, tokens = cost.cluster.num_ranks, fitting_tokens(cost)
    least = least_degree(int(race.hard.lengths.max()), tokens, ranks)
    for method in methods:
        before = inf
        for degree in (one for one in divisors(ranks) if one >= least):
            candidate = Candidate(model, Mesh(cost, method, degree, batching, tokens), known=race.known)
            seconds = candidate.seconds(race.few)
            yield seconds, candidate
            if before < seconds < inf:
                break
            before = seconds


def filled(timed: Sequence[Timed], race: Race) -> list[Timed]:
    """Returns candidates and their seconds; of every model with stages the fastest mesh has micro-batches of fewer and
    fewer tokens, until they are slower, or would be far behind with the shortest bubble that is tried."""
    found: list[Timed] = []
    models: list[Model] = []
    limit = race.limit(timed)
    for seconds, candidate in sorted(timed, key=_seconds):
        if candidate.model not in models:
            for smaller in fills(candidate, race.few):
                if seconds * least_bubble_share(candidate, race.few) > limit:
                    break
                its = smaller.seconds(race.few)
                if its > seconds:
                    break
                seconds, candidate = its, smaller
            if seconds * BEHIND < limit:
                limit = min(limit, race.limit([(seconds, candidate)]))
        models.append(candidate.model)
        found.append((seconds, candidate))
    return found


def least_bubble_share(candidate: Candidate, batches: Sequence[Batch]) -> float:
    """Returns the share of a step's seconds that is left with the shortest bubble that is tried, if full micro-batches
    are alike: k of them go through n stages in k + n - 1 turns."""
    mesh, stages = candidate.mesh, candidate.model.pipeline_parallel
    assert mesh.pack_tokens is not None
    fewest = ceil(even_tokens(mesh, batches) / mesh.pack_tokens)
    most = FILLS[-1] * stages
    return fewest / (fewest + stages - 1) * (most + stages - 1) / most


def even_tokens(mesh: Mesh, batches: Sequence[Batch]) -> float:
    """Returns the tokens that a rank has of the batch with the most, spread evenly."""
    return max(batch.num_tokens for batch in batches) / mesh.cost.cluster.num_ranks


def fills(candidate: Candidate, batches: Sequence[Batch]) -> Iterator[Candidate]:
    """Yields the candidate, if it has stages, with smaller micro-batches, of which a batch is some for each stage."""
    mesh = candidate.mesh
    assert mesh.pack_tokens is not None
    for size in fill_sizes(candidate, batches) if candidate.model.pipeline_parallel > 1 else []:
        if size < mesh.pack_tokens:
            yield replace(candidate, mesh=replace(mesh, pack_tokens=size))


def fill_sizes(candidate: Candidate, batches: Sequence[Batch]) -> list[int]:
    """Lists the tokens a GPU of micro-batches of which a batch is some for each stage, the most first, none of more
    than there is room for."""
    even = even_tokens(candidate.mesh, batches)
    sizes = [ceil(even / (fill * candidate.model.pipeline_parallel)) for fill in FILLS]
    return [size for size in sizes if size < fitting_tokens(candidate.mesh.cost)]


def sized(candidate: Candidate, race: Race) -> Iterator[Candidate]:
    """Yields the candidate and, without stages, the same with smaller micro-batches, where a batch is then more of
    them; with stages, with those that planners' estimate has as about as fast."""
    mesh = candidate.mesh
    assert mesh.pack_tokens is not None
    yield candidate
    if candidate.model.pipeline_parallel > 1:
        limit = KNOWN * candidate.seconds(race.few)
        others = [size for size in fill_sizes(candidate, race.few) if size != mesh.pack_tokens]
        tried = (replace(candidate, mesh=replace(mesh, pack_tokens=size)) for size in others)
        yield from (one for one in tried if one.seconds(race.few) <= limit)
        return
    for tokens in (int(share * mesh.pack_tokens) for share in SHARES):
        if 1 <= tokens * mesh.cost.cluster.num_ranks < race.hard.num_tokens:
            yield replace(candidate, mesh=replace(mesh, pack_tokens=tokens))


def raced(
    candidates: Iterable[Candidate], batches: Sequence[Batch], clock: Clock, best: int = 1, limit: float = inf
) -> list[Timed]:
    """Returns candidates with their seconds on `batches`, infinite of those that cannot be among the `best` fastest any
    more, or are slower than `limit`."""
    timed: list[Timed] = []
    for one in candidates:
        behind = ([*sorted(seconds for seconds, _ in timed), *[inf] * best])[best - 1]
        timed.append((one.seconds(batches, clock, min(behind, limit)), one))
    return timed


def ranked(timed: Sequence[Timed], limit: float = inf) -> list[Candidate]:
    """Sorts candidates that fit, and take no longer than `limit`, by their seconds, fastest first; equally fast ones
    keep their order."""
    return [one for seconds, one in sorted(timed, key=_seconds) if seconds <= limit and seconds < inf]


def _seconds(timed: Timed) -> float:
    return timed[0]


def divisors(number: int) -> list[int]:
    """Lists the divisors of a number, ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]
