"""The end of a round of local steps, as a step of its own on the GPUs of all workers.

    d += contribute(s, share)       each worker's parameters, weighed by its share of the round's tokens: the snapshot
    d is reduced                    to the GPU of each shard, on the links of the cluster
    p, m := outer(p, m, d)          the outer parameters and their momentum, each shard on one GPU of one worker
    c = p, which is gathered
    w, s := take(w, s, c)           every worker goes on from there; the moments of its own optimizer stay

A snapshot is a sum's contribution, so the proof sees that each worker's counts once, is taken whole, and that nothing
is added to it afterwards. Where the average is used a round late, a round ends with the update by the average of the
round before, and with the next reduction under way.

Which GPU has which of a worker's shards, and which the outer parameter, is zbench.step.passes.rounds.outer_parameters'.
Workers with stages are pipelines side by side, and all of this is played across them: a layer's parameters are averaged
between the GPUs of the stages that have it.

A step may be of some layers alone, a fragment of the model. It has as many layers as these, whatever their numbers are
in the model, and the embedding, the head and their like are of one fragment. Where the first layers are dense and
others have experts, what each kind has is averaged by templates of its own, and a fragment may have layers of one kind
alone; parameters are cut as those of the whole model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.step.formula import parse_formula
from zbench.step.index import Index
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, GATHER, REDUCE, Operations, operation_row
from zbench.step.passes.parameters.parameter_rows import moved_entries
from zbench.step.passes.parameters.weights import WHOLE, axes_of, weight_elements
from zbench.step.passes.parameters.zero import GRADIENT_BYTES
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.template import ACROSS, AT_HOME, Instance, Items, StageStart, Step, Template
from zbench.step.tensor import BORDER, FOLLOWING, LEADING, NONE, Tensor

CONTRIBUTE, REDUCED, UPDATED, TAKEN = "contribute", "reduce", "update", "take"
# What a round ends with: with its own average; the first one whose average is used late; and every other one of these.
# Of an average that is used some steps later: it is sent, and it arrives.
NOW, FIRST, LATER, SENT, ARRIVED = "now", "first", "later", "sent", "arrived"
PHASES = {
    NOW: (CONTRIBUTE, REDUCED, UPDATED, TAKEN),
    FIRST: (CONTRIBUTE, TAKEN, REDUCED),
    LATER: (UPDATED, CONTRIBUTE, TAKEN, REDUCED),
    SENT: (CONTRIBUTE, REDUCED),
    ARRIVED: (UPDATED, TAKEN),
}
SHARE = "share"  # of a round's tokens that each worker had
Rows = list[list[int]]


def outer_step(
    model: Model,
    parameters: OuterParameters,
    kind: str,
    outside: bool = True,
    layers: tuple[int, int] | None = None,
    starts: tuple[int, ...] = (0,),
) -> Step:
    """Returns what a round ends with. kind: one of PHASES. outside: whether it has parameters outside the layers.
    layers: how many dense ones before others, and of these others, it is of; None: all of the model's. starts: which of
    them all is the first of each stage."""
    every = model.dense_layers, model.num_layers - model.dense_layers
    return _Outer(model, parameters, kind, outside, every if layers is None else layers, starts).step()


@dataclass
class _Outer:
    """A step while it is built. layers: dense ones before others, and these others. starts: the first layer of every
    stage. versions: of outer and of workers' parameters so far."""

    model: Model
    of: OuterParameters
    kind: str
    outside: bool
    layers: tuple[int, int]
    starts: tuple[int, ...]
    templates: list[Template] = field(default_factory=list)
    versions: list[int] = field(default_factory=lambda: [0, 0])

    def __post_init__(self) -> None:
        of = self.of
        slices = {name: count for name, count in map(of.slices, self._weights) if name}
        if slices.get("k", 1) > 1:  # of which a process tells what columns of which experts a slice has
            slices["e"] = of.model.num_experts * of.expert_cut
        ones = [Index(name, np.ones(count, np.int64)) for name, count in sorted(slices.items())]
        indices = (*ones, *of.indices(), Index("r", np.ones(of.workers, np.int64)))
        self.lists = ListTable({**{one.name: len(one) for one in indices}, PLACE: of.workers * of.worker_gpus})
        phases = PHASES[self.kind]
        formulas = tuple(parse_formula(text) for weight in self._weights for text in _texts(weight, phases))
        shared = BORDER if self._in_stages else NONE  # each stage has it of its own layers, and the last after these
        share = Tensor(SHARE, ("r",), "copy", "", shared, self.model.lse_bytes, np.full(of.workers, -1, np.int64))
        tensors = (*(one for weight in self._weights for one in self._tensors(weight)), share)
        self.layout = StepLayout(indices, (), (), (), tensors, formulas, self.lists.lists())
        self.formula = {(one.results[0].tensor, one.terms[0].function): at for at, one in enumerate(formulas)}

    @property
    def _weights(self) -> tuple[str, ...]:
        absent = {kind for kind, count in zip((LEADING, FOLLOWING), self.layers, strict=True) if not count}
        return (*(name for name in self.of.of_layers if self.of.kinds[name] not in absent), *self._outside)

    @property
    def _sections(self) -> list[tuple[str, tuple[str, ...], int, int]]:
        """(what its templates' names end with, parameters, the first layer, how many layers) of what is averaged."""
        dense, others = self.layers
        sections = [("_dense", self.of.of_kind(LEADING), 0, dense), ("", self.of.of_kind(FOLLOWING), dense, others)]
        if self._in_stages:
            first, last = (tuple(one for one in self._outside if (one in self._of_head) == after) for after in (0, 1))
            sections = [("_embedding", first, 0, 1), *sections, ("_head", last, dense + others, 1)]
        else:
            sections.append(("_ends", self._outside, 0, 1))
        return [one for one in sections if one[3]]

    @property
    def _in_stages(self) -> bool:
        return len(self.starts) > 1

    @property
    def _of_head(self) -> tuple[str, ...]:
        """The parameters that only the last of several stages has."""
        return self.of.of_head if self._in_stages else ()

    @property
    def _outside(self) -> tuple[str, ...]:
        return tuple(self.of.outside) if self.outside else ()

    def _tensors(self, weight: str) -> Iterator[Tensor]:
        """Yields a parameter with its state and sum, and its outer parameter, momentum, and copy of that."""
        known, size = self.of.tensors, max(GRADIENT_BYTES, self.model.element_bytes)
        yield from (known[f"{kind}{weight}"] for kind in ("", "d", "s"))
        one, unit = known[weight], size * (weight_elements(self.model)[weight] if weight in WHOLE else 1)
        for name, nature in (("p", "state"), ("m", "state"), ("c", "copy")):
            yield Tensor(f"{name}{weight}", one.axes, nature, "", one.layers, unit, one.home)

    def step(self) -> Step:
        """Returns the step."""
        phases, order = PHASES[self.kind], list[Instance]()
        begins = self._resting(phases[0] == UPDATED, CONTRIBUTE in phases)
        for phase in phases:
            for name, weights, first, count in self._sections:
                getattr(self, f"_{phase}")(f"{phase}{name}", weights)
                one = Instance(len(self.templates) - 1, first, count, place=ACROSS if self._in_stages else 0)
                order += one.parts(self.starts) if self._in_stages else [one]
            self.versions[0] += phase == UPDATED
            self.versions[1] += phase == TAKEN
        ends = self._resting(phases[-1] == REDUCED, False)
        layout = StepLayout(
            self.layout.indices, (), (), (), self.layout.tensors, self.layout.formulas, self.lists.lists()
        )
        of, leads = self.of, range(0, self.of.workers * self.of.worker_gpus, self.of.worker_gpus)
        rows = of.workers * of.worker_gpus, 0, sum(self.layers), (), (layout,), tuple(self.templates), tuple(order)
        stages = [
            StageStart(layer, lead + number * of.stage_gpus)
            for lead in (leads if self._in_stages else [0])
            for number, layer in enumerate(self.starts)
        ]
        return Step(*rows, Items.of(begins), Items.of(ends), tuple(stages), leading=self.layers[0])

    # -- entries --------------------------------------------------------------------------------------
    def _cells(self, weight: str, which: Ints) -> list[int]:
        """Returns the lists of cells of a slice of a parameter, by their numbers."""
        if weight in WHOLE:
            return [-1, -1]
        slice_, shards = divmod(which, len(self.of.shards[weight][0]))
        return [self.lists.number(self.of.slices(weight)[0], slice_[:1]), self.lists.number(f"z{weight}", shards)]

    def _parts(self, weight: str) -> Iterator[tuple[Ints, list[int]]]:
        """Yields, for each GPU of a worker that shards are on, (that GPU of every worker, lists of cells)."""
        inside = self.of.inside(weight)
        for gpu in np.unique(inside).tolist():
            yield self.of.places[:, gpu], self._cells(weight, np.flatnonzero(inside == gpu))

    def _held(self, weight: str) -> Iterator[tuple[Ints, list[int]]]:
        """Yields (places, lists of cells) of a parameter and its state as workers have them."""
        if self.of.stage == "none":
            for places, which in self.of.holders(weight):
                yield places, self._cells(weight, which)
        else:
            yield from self._parts(weight)

    def _homes(self, weight: str) -> Iterator[tuple[int, list[int]]]:
        """Yields (place, lists of cells) of the outer parameter."""
        home = self.of.home(weight)
        for place in np.unique(home).tolist():
            yield place, self._cells(weight, np.flatnonzero(home == place))

    def _entry(self, tensor: str, places: Ints, cells: list[int], count: int = 0, version: int = 0) -> list[int]:
        return [self.layout.number[tensor], 0, self.lists.number(PLACE, places), *cells, count, version, 0]

    def _own(self, weights: Sequence[str], names: Sequence[str], taken: int = 0) -> Rows:
        """Returns the entries of what workers have of parameters ("") and their state ("s")."""
        version = self.versions[1] + taken
        return [
            self._entry(f"{name}{weight}", places, cells, 0, version)
            for weight in weights
            for name in names
            for places, cells in self._held(weight)
        ]

    def _at_home(self, weights: Sequence[str], names: Sequence[str], version: int, count: int = 0) -> Rows:
        """Returns the entries of what is at the homes of outer parameters."""
        found = []
        for weight in weights:
            cells = [*(self.lists.whole(axis) for axis in axes_of(weight)), -1, -1][:2]
            found += [[self.layout.number[f"{name}{weight}"], 0, AT_HOME, *cells, count, version, 0] for name in names]
        return found

    def _shares(self) -> Rows:
        """Returns the entries of shares: of each worker's, on its GPUs."""
        return [self._entry(SHARE, row, [self.lists.number("r", [at]), -1]) for at, row in enumerate(self.of.places)]

    def _contributed(self, weights: Sequence[str]) -> Rows:
        """Returns the entries of snapshots where they were made."""
        return [
            self._entry(f"d{weight}", places, cells, 1) for weight in weights for places, cells in self._parts(weight)
        ]

    def _resting(self, averaged: bool, shares: bool) -> Rows:
        """Returns the entries of what there is before or after all of it. averaged: an average is there that is not
        used yet."""
        found, last = Rows(), (self.of.stages - 1) * self.of.stage_gpus
        for after in (False, True):
            weights = [name for name in self._weights if (name in self._of_head) == after]
            of = self._own(weights, ("", "s")) + self._at_home(weights, ("p", "m"), self.versions[0])
            of += self._at_home(weights, ("d",), 0, self.of.workers) if averaged else []
            found += moved_entries(of, self.layout, self.lists, last) if after else of
        return found + (self._shares() if shares else [])

    # -- phases ---------------------------------------------------------------------------------------
    def _template(self, name: str, ops: Rows, formulas: Sequence[int], sides: tuple[Rows, Rows]) -> None:
        needs, leaves = sides
        self.templates.append(Template(name, 0, Operations.of(ops), tuple(formulas), Items.of(needs), Items.of(leaves)))

    def _contribute(self, name: str, weights: Sequence[str]) -> None:
        ops, formulas = [], []
        for weight in weights:
            formulas.append(self.formula[f"d{weight}", "contribute"])
            for places, cells in self._parts(weight):
                for worker, place in enumerate(places.tolist()):
                    lists = [*(one for one in cells if one >= 0), self.lists.number("r", [worker])]
                    ops.append(operation_row(COMPUTE, formulas[-1], (place, -1), lists, "compute", 0, self.versions[1]))
        # With stages each layer has its own, and the first one's is the embedding's as well.
        own, stay = self._own(weights, ("s",)), name.endswith("_embedding") if self._in_stages else "_ends" not in name
        leaves = own + self._contributed(weights) + (self._shares() if stay else [])
        self._template(name, ops, formulas, (own + self._shares(), leaves))

    def _reduce(self, name: str, weights: Sequence[str]) -> None:
        ops = [
            operation_row(REDUCE, self.layout.number[f"d{weight}"], (-1, self._members(places)), cells, "gradients")
            for weight in weights
            for places, cells in self._parts(weight)
            if len(places) > 1
        ]
        self._template(name, ops, (), (self._contributed(weights), self._at_home(weights, ("d",), 0, self.of.workers)))

    def _members(self, places: Ints) -> int:
        return self.lists.number(PLACE, places)

    def _update(self, name: str, weights: Sequence[str]) -> None:
        ops, formulas = [], []
        for weight in weights:
            formulas.append(self.formula[f"p{weight}", "outer"])
            for place, cells in self._homes(weight):
                lists = [one for one in cells if one >= 0]
                ops.append(operation_row(COMPUTE, formulas[-1], (place, -1), lists, "compute", 0, self.versions[0]))
        before, after = (self._at_home(weights, ("p", "m"), self.versions[0] + more) for more in (0, 1))
        before += self._at_home(weights, ("d",), 0, self.of.workers)
        self._template(name, ops, formulas, (before, after))

    def _take(self, name: str, weights: Sequence[str]) -> None:
        ops, formulas = [], []
        for weight in weights:
            give, take = self.formula[f"c{weight}", ""], self.formula[weight, "take"]
            formulas += [give, take]
            for place, cells in self._homes(weight):
                lists = [one for one in cells if one >= 0]
                ops.append(operation_row(COMPUTE, give, (place, -1), lists, "compute", 0, self.versions[0]))
            for places, cells in self._held(weight):
                if len(places) > 1:
                    number = self.layout.number[f"c{weight}"]
                    ops.append(operation_row(GATHER, number, (-1, self._members(places)), cells, "parameters"))
            for places, cells in self._held(weight):
                lists = [one for one in cells if one >= 0]
                for place in places.tolist():
                    ops.append(operation_row(COMPUTE, take, (place, -1), lists, "compute", 0, self.versions[1]))
        outer = self._at_home(weights, ("p",), self.versions[0])
        before, after = (outer + self._own(weights, ("", "s"), more) for more in (0, 1))
        self._template(name, ops, formulas, (before, after))


def _texts(weight: str, phases: Sequence[str]) -> Iterator[str]:
    """Yields the formulas of a parameter, those of some phases."""
    axes = ",".join(axes_of(weight))
    ref = f"[{axes}]" if axes else ""
    w, s, d, p, m, c = (f"{name}{weight}{ref}" for name in ("", "s", "d", "p", "m", "c"))
    yield f"{d} += contribute({s}, {SHARE}[r])"  # also of a sum that is there before: it says when that is complete
    if UPDATED in phases:
        yield f"{p}, {m} := outer({p}, {m}, {d})"
    if TAKEN in phases:
        yield f"{c} = {p}"
        yield f"{w}, {s} := take({w}, {s}, {c})"
