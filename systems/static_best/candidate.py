"""A candidate of the search for a static configuration: a mesh, and what its steps took."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN
from zbench.describe.units import with_noun
from zbench.interfaces.study import Choice, Clock
from zbench.plans.alike import plans_digests
from zbench.plans.plan import Plan
from zbench.run.fastest import FREE
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.mesh import Mesh

PACKED = {"arrival": "packed in order", "best_fit": "packed by best fit", "balanced": "packed and balanced by time"}
_ROUNDING = 1e-9  # relative: a step that is played may be shorter by it than its ceiling
LAYOUT = ("tensor_parallel", "pipeline_parallel", *FREE)
BY_LAYER = (*LAYOUT, "recompute_layers", "stage_layers")

_Same = tuple[Clock, Model, str, tuple[bytes, ...]]  # a step: its clock, model, batch and plans


@dataclass(frozen=True, slots=True)
class KnownPlays:
    """The steps that candidates of a search have played or asked room for so far. Limits of packs that come to the same
    plans, and models that two searches come to, have the same steps. seconds, room: of each, as `Candidate` has."""

    seconds: dict[_Same, float] = field(default_factory=dict)
    room: dict[_Same, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The mesh on the ranks that a model's tensor parallelism and stages leave. played: the seconds of the steps that
    were played, by clock and batch, so that no step is played twice. room: whether steps that were not played fit.
    sets: fields of the model that it sets. known: what other candidates have found."""

    model: Model
    mesh: Mesh
    sets: Sequence[str] = LAYOUT
    known: KnownPlays = field(default_factory=KnownPlays, repr=False, compare=False)
    played: dict[tuple[Clock, str], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    room: dict[tuple[Clock, str], bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seconds(self, batches: Sequence[Batch], clock: Clock = StepEstimate, limit: float = inf) -> float:
        """Plays a step of each batch and returns the mean of their seconds, infinite where one does not fit memory, or
        where the mean is more than `limit` whatever the remaining steps take.

        Those that take longest at least come first: of long sequences bounds say little, so these may decide soon.
        """
        count = len(batches)
        found = self.least(batches, clock) if limit < inf else [0.0] * count
        for number in sorted(range(count), key=list(found).__getitem__, reverse=True):
            found[number] = self._step(batches[number], clock)
            if found[number] == inf or sum(found) > limit * count:
                return inf
        return sum(found) / count

    def _step(self, batch: Batch, clock: Clock) -> float:
        key = clock, batch.digest
        if key not in self.played:
            plans, known = self.mesh.plan(batch), self.known.seconds
            same = self._same(batch, plans, clock)
            if same not in known:
                known[same] = clock(self.mesh.cost).compared_seconds(batch, plans)
            self.played[key] = known[same]
        return self.played[key]

    def _same(self, batch: Batch, plans: Sequence[Plan], clock: Clock) -> _Same:
        return clock, self.model, batch.digest, plans_digests(plans)

    def fits(self, batch: Batch, clock: Clock) -> bool:
        """Returns whether the step of a batch has room, which is not played for it."""
        key = clock, batch.digest
        if key not in self.room and key not in self.played:
            plans, known = self.mesh.plan(batch), self.known.room
            same = self._same(batch, plans, clock)
            if same not in known:
                known[same] = clock(self.mesh.cost).fits(batch, plans)
            self.room[key] = known[same]
        return self.room[key] if key in self.room else self.played[key] < inf

    def least(self, batches: Sequence[Batch], clock: Clock) -> list[float]:
        """Returns the seconds of each batch's step that no plan can beat, a little less for rounding."""
        executor = clock(self.mesh.cost)
        return [executor.least_seconds(batch) * (1 - _ROUNDING) for batch in batches]

    def choice(self, num_gpus: int) -> Choice:
        """Returns the keys of the model and of the mesh that this candidate sets, and both in words."""
        mesh, model = self.mesh, self.model
        assert mesh.degree is not None
        keys = {name: getattr(mesh, name) for name in ("method", "degree", "batching", "pack_tokens")}
        stages = model.pipeline_parallel
        groups = num_gpus // (model.tensor_parallel * stages * mesh.degree)
        words = (
            f"tensor parallelism {model.tensor_parallel}, {with_noun(stages, 'stage')}, "
            f"{f'{mesh.method} over {mesh.degree}' if mesh.degree > 1 else 'no context parallelism'}, data parallelism "
            f"{groups}, micro-batches of at most {mesh.pack_tokens:,} tokens a GPU {PACKED[mesh.batching]}, "
            f"sharding {model.sharding}, recompute {model.recompute}"
        )
        return Choice({name: getattr(model, name) for name in self.sets}, keys, words + layer_words(model))


def layer_words(model: Model) -> str:
    """Returns which layers a model recomputes, and how many its stages have, after a comma; "" where layers are
    alike."""
    stages, again = model.layers_of_stages, model.recomputed_of_stages
    if not any(again) or (model.recompute_layers == ALL_LAYERS and model.stage_layers == EVEN):
        return "" if model.stage_layers == EVEN else f", stages of {', '.join(map(str, stages))} layers"
    if len(stages) == 1:
        return f" of the first {again[0]} of {stages[0]} layers"
    return f" of the first {', '.join(map(str, again))} layers of stages of {', '.join(map(str, stages))}"
