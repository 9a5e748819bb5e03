"""The settings of a mesh on stages whose layers need not be alike, by arithmetic: how many layers each stage has, how
many of these are recomputed, and the tokens of a micro-batch.

It is what whole steps have of Galvatron-BMW's search (Wang et al. 2023, arXiv 2307.02031; zbench.cost.by_layer has all
of it): more memory buys fewer recomputed layers or larger micro-batches, so for every size as few layers of each stage
are recomputed as have to be, and layers go from the slowest stage to a neighbour while that helps. Groups have the
packs that the mesh gives them of the batches at hand. What stages and groups send is left out: settings of one mesh
send the same, and the fastest are played.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, floor, inf

import numpy as np

from zbench.cost.by_layer.stage_cuts import Cut, balanced_cut, even_cut, moved_cut, pipeline_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import HostCopies
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import memory_of_stage
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.model import KV, WHOLE, Model, Q, RecomputeLevel
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN
from zbench.systems.common.mesh_packs import Batching, pack_batch
from zbench.systems.common.mesh_plans import BACKWARD, LIMITS
from zbench.systems.mesh import Mesh

# As many micro-batches as an even share of a batch is cut into at most, as in zbench.cost.by_layer: a judgement.
MOST_MICRO_BATCHES = 64


@dataclass(frozen=True, slots=True)
class LayerSetting:
    """A setting: the level of recomputation, how many layers each stage has and how many of these are recomputed, and
    the tokens of a micro-batch on a GPU at most. seconds: of a step, by arithmetic."""

    level: RecomputeLevel
    cut: Cut
    again: Cut
    pack_tokens: int
    seconds: float

    def model(self, model: Model) -> Model:
        """Returns the model with the setting."""
        even = self.cut == even_cut(model.num_layers, len(self.cut)) and model.num_layers % len(self.cut) == 0
        layers: int | str | Cut = self.again[0] if len(self.again) == 1 else self.again
        some = 0 < sum(self.again) < sum(self.cut)
        return replace(
            model.keeping_all,
            recompute=self.level if any(self.again) else "none",
            recompute_layers=layers if some else ALL_LAYERS,
            stage_layers=EVEN if even else self.cut,
        )


@dataclass(frozen=True)
class _Work:
    """The seconds of a layer in every micro-batch of a batch, of the group that takes longest: forward and backward,
    and again, by level; and the tokens of a GPU of that group, float64 [micro-batches] each. ahead: of these the
    forward's. fullest: the most tokens of a GPU."""

    layer: Floats
    ahead: Floats
    again: dict[RecomputeLevel, Floats]
    tokens: Floats
    fullest: int


Works = dict[tuple[int, int], list[_Work]]


@dataclass(frozen=True)
class LayerSettings:
    """The settings of a mesh. mesh: on the ranks that the model's tensor parallelism and stages leave, of a model that
    recomputes nothing. levels: cost models of all layers recomputed, by level. batches: by which seconds are told.
    longest: tokens of a sequence that has to fit. work: of the batches, worked out so far by the degree of a mesh and
    the tokens of a micro-batch, which is the same whatever the method."""

    mesh: Mesh
    levels: dict[RecomputeLevel, Cost]
    batches: Sequence[Batch]
    longest: int
    work: Works = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(
        mesh: Mesh,
        cost_of: Callable[[Model], Cost],
        batches: Sequence[Batch],
        longest: int,
        work: Works | None = None,
    ) -> "LayerSettings":
        """Returns the settings of a mesh. cost_of: the cost model of a model with the mesh's parallelism. work: as
        known of meshes of the same model and batches; it is added to."""
        chunks = mesh.cost.gpus.model.mlp_chunk_tokens != WHOLE
        levels: tuple[RecomputeLevel, ...] = ("chunked" if chunks else "selective", "full")
        models = {level: replace(mesh.cost.gpus.model, recompute=level) for level in levels}
        return LayerSettings(
            mesh, {level: cost_of(one) for level, one in models.items()}, batches, longest, {} if work is None else work
        )

    def found(self) -> list[LayerSetting]:
        """Returns the settings that fit, the fastest first: of every level and size of micro-batch, one each."""
        every = [one for size in self.sizes() for level in self.levels if (one := self.setting(level, size))]
        return sorted(dict.fromkeys(every), key=lambda one: one.seconds)

    def sizes(self) -> list[int]:
        """Returns the tokens of a micro-batch on a GPU that are tried: an even share of a batch, its halves, and as
        many times it as meshes try (zbench.systems.common.mesh_plans); and what fits where no layer is recomputed, and
        where all are."""
        even = max(batch.num_tokens for batch in self.batches) / self._cost.cluster.num_ranks
        shares = [*LIMITS, *(0.5**power for power in range(1, MOST_MICRO_BATCHES.bit_length()))]
        fitting = [
            min(self.room(level, stage, count, count * all_) for stage, count in enumerate(self._even))
            for level in self.levels
            for all_ in (0, 1)
        ]
        every = {ceil(share * even) for share in shares}
        return sorted(every | {size for size in fitting if 1 <= size <= max(every)}, reverse=True)

    def setting(self, level: RecomputeLevel, size: int) -> LayerSetting | None:
        """Returns the fastest setting found with that level and size, None if none fits."""
        seconds = partial(self._stage_seconds, level, size)
        if self._cost.pp == 1:
            cuts = [self._even]
        else:
            begun = [balanced_cut(sum(self._even), self._cost.pp, self.weight(level, size, of)) for of in (True, False)]
            count = round(float(np.mean([len(work.layer) for work in self._works(size)])))
            cuts = [moved_cut(cut, seconds, count) for cut in dict.fromkeys([*begun, self._even])]
        every = [self._of_cut(level, size, cut) for cut in cuts]
        return min((one for one in every if one), key=lambda one: one.seconds, default=None)

    def _of_cut(self, level: RecomputeLevel, size: int, cut: Cut) -> LayerSetting | None:
        again = tuple(self.again(level, stage, count, size) for stage, count in enumerate(cut))
        if any(one is None for one in again):
            return None
        chosen = tuple(one or 0 for one in again)
        return LayerSetting(level, cut, chosen, size, self.seconds(level, cut, chosen, size))

    def seconds(self, level: RecomputeLevel, cut: Cut, again: Cut, size: int) -> float:
        """Returns the seconds of a step: the mean over batches."""
        return float(np.mean([self._batch_seconds(work, level, cut, again) for work in self._works(size)]))

    def _batch_seconds(self, work: _Work, level: RecomputeLevel, cut: Cut, again: Cut) -> float:
        cost, of = self._cost, self._collectives
        head = float(cost.head_seconds(work.tokens).sum())
        if len(cut) == 1:
            layers = cut[0] * work.layer + again[0] * work.again[level] + self._waits(level, work, cut[0], again[0])
            return head + sum(map(of.micro_batch_seconds, layers.tolist()))
        count = len(work.layer)
        one, more = float(work.layer.mean()), float(work.again[level].mean())
        each = [
            layers * one + some * more + float(np.mean(self._waits(level, work, layers, some)))
            for layers, some in zip(cut, again, strict=True)
        ]
        return pipeline_seconds([*each[:-1], each[-1] + head / count], count)

    def _stage_seconds(self, level: RecomputeLevel, size: int, stage: int, count: int) -> float:
        """Returns the seconds of a micro-batch on a stage of so many layers, infinite if they do not fit."""
        again = self.again(level, stage, count, size)
        if again is None:
            return inf
        return self.weight(level, size, False)(stage, count) + self._more(level, size, count, again)

    def _more(self, level: RecomputeLevel, size: int, layers: int, again: int) -> float:
        """Returns the seconds of a micro-batch that it takes to make so many of a stage's layers again, and to wait for
        copies to and from hosts."""
        works = self._works(size)
        more = float(np.concatenate([work.again[level] for work in works]).mean())
        waits = (np.mean(self._waits(level, work, layers, again)) for work in works)
        return again * more + float(np.mean(list(waits)))

    def _waits(self, level: RecomputeLevel, work: _Work, layers: int, again: int) -> Floats | float:
        """Returns the seconds for which so many layers of a stage, of which so many are recomputed, wait for copies to
        and from hosts in every micro-batch; 0.0 where nothing is there."""
        if layers == 0 or (copies := HostCopies.of(self.levels[level], 1, layers, again)) is None:
            return 0.0
        back = work.layer - work.ahead + work.again[level] * (again / layers)
        ahead = copies.of_tokens(work.tokens, False).waited(work.ahead)
        return np.asarray(layers * (ahead + copies.of_tokens(work.tokens, True).waited(back)), np.float64)

    def weight(self, level: RecomputeLevel, size: int, of_bytes: bool) -> Callable[[int, int], float]:
        """Returns what a stage weighs in a balanced cut, of (stage, its layers): bytes without recomputation, or
        seconds whatever memory there is."""
        if of_bytes:
            return lambda stage, count: self._bytes(level, stage, count, 0, size)
        layer = float(np.concatenate([work.layer for work in self._works(size)]).mean())
        tokens = np.concatenate([work.tokens for work in self._works(size)])
        head, last = float(self._cost.head_seconds(tokens).mean()), self._cost.pp - 1
        return lambda stage, count: count * layer + head * (stage == last)

    def again(self, level: RecomputeLevel, stage: int, count: int, size: int) -> int | None:
        """Returns how many of a stage's layers are recomputed: as few as have to be; where layers have something on
        hosts the number of least seconds from there on, as less has to be copied; None if all are too few."""
        least = self.fewest(level, stage, count, size)
        if least is None or not self._cost.model.layers_on_hosts:
            return least
        return min(range(least, count + 1), key=partial(self._more, level, size, count))

    # -- memory -------------------------------------------------------------------------------------------

    def fewest(self, level: RecomputeLevel, stage: int, count: int, size: int) -> int | None:
        """Returns as few of a stage's layers as have to be recomputed, None if all of them are too few."""
        memory = int(self._cost.cluster.device.memory_bytes)
        if self._bytes(level, stage, count, 0, size) <= memory:
            return 0
        low, high = 0, count  # with `low` it does not fit
        if self._bytes(level, stage, count, high, size) > memory:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._bytes(level, stage, count, middle, size) <= memory else (middle, high)
        return high

    def _bytes(self, level: RecomputeLevel, stage: int, count: int, again: int, size: int) -> int:
        """Returns the bytes of a rank of a stage that has the fullest pack of at most so many tokens of each, or the
        longest sequence."""
        return self._memory(level, stage, count, again).bytes(self.tokens(size), self._received)

    def tokens(self, size: int) -> int:
        """Returns the most tokens that a rank has with packs of at most so many of each."""
        return max(self._longest, *(work.fullest for work in self._works(size)))

    def room(self, level: RecomputeLevel, stage: int, count: int, again: int) -> int:
        """Returns the tokens of a rank that a stage has room for."""
        memory = int(self._cost.cluster.device.memory_bytes)
        return floor(self._memory(level, stage, count, again).tokens(memory, self._received))

    def _memory(self, level: RecomputeLevel, stage: int, count: int, again: int) -> MemoryLines:
        """Returns the bytes of a stage's rank by its tokens."""
        key = level, stage, count, again
        if key not in self._known:
            self._known[key] = memory_of_stage(self.levels[level], stage, count, again)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[RecomputeLevel, int, int, int], MemoryLines]:
        """The answers of `_memory` so far, by level, stage, layers and how many of them are recomputed."""
        return {}

    @cached_property
    def _received(self) -> float:
        """Bytes of a token's q, k and v that its group's other ranks have, where a method keeps them for the
        backward."""
        model, degree = self._cost.model, self.mesh.degree or 1
        if BACKWARD[self.mesh.method] != "keep":
            return 0.0
        size = sum(model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV))
        return size * (degree - 1) / degree

    @property
    def _longest(self) -> int:
        """Tokens that a rank has of the longest sequence."""
        return -(-self.longest // (self.mesh.degree or 1))

    # -- seconds ------------------------------------------------------------------------------------------

    @property
    def _cost(self) -> Cost:
        return self.mesh.cost

    @cached_property
    def _even(self) -> Cut:
        return even_cut(self._cost.model.num_layers, self._cost.pp)

    @cached_property
    def _collectives(self) -> Collectives:
        return Collectives.of(self._cost)

    def _works(self, size: int) -> list[_Work]:
        """Returns the work of every batch with micro-batches of so many tokens on a GPU at most."""
        key = self.mesh.degree or 1, size
        if key not in self.work:
            self.work[key] = list(self._worked(size, self.mesh.batching))
        return self.work[key]

    def _worked(self, size: int, batching: Batching) -> Iterator[_Work]:
        cost, degree = self._cost, self.mesh.degree or 1
        groups = cost.cluster.num_ranks // degree
        for batch in self.batches:
            pack = pack_batch(batching, batch.lengths, groups, degree * size, cost)
            at, count = pack[:, 0] * groups + pack[:, 1], int(pack[:, 0].max()) + 1
            seconds = [cost.whole_seconds(batch.lengths, way) for way in (False, True)]
            there, back, tokens = (
                np.bincount(at, weights=one, minlength=count * groups) / degree
                for one in (*seconds, batch.lengths.astype(np.float64))
            )
            linear = cost.linear_seconds(tokens)
            layer = (there + back + (linear + cost.gradient_seconds(tokens))).reshape(count, groups)
            slowest = np.arange(count) * groups + layer.argmax(axis=1)
            again = {
                level: (there + linear if level == "full" else one.again_seconds(tokens))[slowest]
                for level, one in self.levels.items()
            }
            yield _Work(layer.ravel()[slowest], (there + linear)[slowest], again, tokens[slowest], ceil(tokens.max()))
