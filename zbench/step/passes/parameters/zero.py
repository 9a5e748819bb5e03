"""Places of parameters, gradients and optimizer state: ZeRO's stages, with a window of layers gathered ahead.

    none   all of them on every GPU of a slice; gradients are reduced and gathered again
    1      optimizer state in shards; gradients are reduced to them, and what was updated is gathered once, in the next
           step's first forward, layer by layer and `window` layers ahead of its use
    2      gradients in shards as well: they are reduced in every micro-batch
    3      parameters in shards as well: gathered for every layer, forward and backward, `window` layers ahead

With a window of 0 a layer's parameters are gathered when the layer before it has used its own. What is gathered before
the first forward, and reduced several layers together: zbench.step.passes.buckets.

A step begins and ends with what the update leaves: from stage 1 on, every parameter at its home alone. That is where
Megatron-LM's distributed optimizer gathers parameters too, with --overlap-param-gather.

(Rajbhandari et al. 2020, arXiv 1910.02054.) Shards are flat: the parameters of a layer, of a tensor-parallel slice, one
after another, in as many equal parts as there are groups. An expert-parallel slice of the experts is cut in the same
way, in as many parts as there are GPUs that have it, and what layers of one kind alone have of other weights is cut by
itself. So are the two tables of tied embeddings in stages, each in halves of a GPU's share. Norms' gains, the router
and a head of one value are whole at one home.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import lcm

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import BY_STRATEGY, WORLD, ShardDegrees
from zbench.describe.layers.model_parameters import TIED
from zbench.describe.model import Model
from zbench.describe.overlap import ALL, END, StepOverlap
from zbench.describe.overlap import LAYER as EACH_LAYER
from zbench.step.form import LayoutForm
from zbench.step.index import Index
from zbench.step.lists import PLACE
from zbench.step.passes.parameters.kept_tables import KeptTables
from zbench.step.passes.parameters.weights import (
    HEAD_WEIGHTS,
    OF_EXPERTS,
    TABLES,
    WHOLE,
    axes_of,
    outer_weights,
    weight_elements,
    weights_of_kinds,
    weights_of_layers,
)
from zbench.step.tensor import FOLLOWING, LAYER, LEADING, Tensor

STAGES = ("none", "1", "2", "3")
_DEGREES = dict(zip(STAGES, BY_STRATEGY.values(), strict=True))
GRADIENT_BYTES = 4  # of a parameter at least: summed in float32, as Megatron's and torchtitan's are by default
MOMENT_BYTES = 12  # of a parameter: float32 weight and two moments (Rajbhandari et al. 2020, section 3.1)


@dataclass(frozen=True)
class ZeroCut:
    """A stage of ZeRO or degrees, and the cells in which a GPU's share of a slice is cut at least (1 but for workers
    of rounds)."""

    stage: str | ShardDegrees
    cells: int = 1

    @staticmethod
    def of(zero: "str | ShardDegrees | ZeroCut") -> "ZeroCut":
        """Returns a cut itself, or that of a stage alone."""
        return zero if isinstance(zero, ZeroCut) else ZeroCut(zero)


@dataclass(frozen=True)
class ShardedParameters:
    """The parameters of a step on `groups` tensor-parallel groups of `degree` GPUs, and of expert-parallel groups of
    `experts` GPUs: a parameter is cut in slices, one for each GPU of a group. cells: in which a GPU's share of a slice
    is cut at least, where several workers have the same parameters (zbench.step.passes.rounds)."""

    model: Model
    groups: int
    degree: int
    stage: str | ShardDegrees
    overlap: StepOverlap
    experts: int = 1
    cells: int = 1

    def __post_init__(self) -> None:
        if self.stage not in STAGES and not isinstance(self.stage, ShardDegrees):
            raise ValueError(f"zero is {self.stage!r}; it takes {', '.join(STAGES)}")
        degrees = self.degrees
        most = self.model.num_layers
        if degrees.optimizer != 1 and self.window > most:
            raise ValueError(
                f"sharding.window is {self.window}; it takes 0 to {most} layers, all that {self.model.name} has"
            )
        if self.gathered and self.overlap.gathers_first:
            how = "ZeRO-3" if self.stage == "3" else f"parameters cut over {degrees.weights or self.groups} ranks"
            raise ValueError(
                f"sharding.window is {ALL}; with {how} a layer's parameters are gathered for each layer anew, so it "
                f"takes 0 to {most} layers"
            )
        if self.overlap.gradient_bucket not in (EACH_LAYER, END) and self.bucket_layers < 1:
            raise ValueError(
                f"sharding.gradient_bucket is {self.overlap.gradient_bucket:.0f}; a layer of {self.model.name} has "
                f"{self.layer_elements} parameters on a GPU, and whole steps reduce no part of a layer: it takes "
                f"{EACH_LAYER}, {END}, or at least that"
            )
        for degree in (*degrees.cut, degrees.node, degrees.hop):
            size = degree * self.degree
            if degree != WORLD and size % self.experts and self.experts % size:
                raise ValueError(
                    f"all experts are on {self.experts} GPUs (parallel.expert_parallel times expert_tensor_parallel); "
                    f"parameters cut over {size} GPUs (sharding.degrees) take a number that divides them, or that they "
                    "divide"
                )

    @property
    def kept(self) -> "ShardedParameters":
        """The parameters that are equal and were met first, with all that was found of them: no batch changes it."""
        return _kept(self)

    @cached_property
    def degrees(self) -> ShardDegrees:
        """The degrees, WORLD where they are all groups."""
        return _DEGREES[self.stage] if isinstance(self.stage, str) else self.stage.of_ranks(self.groups)

    @property
    def passed_on(self) -> list[int]:
        """The degrees by which updated parameters are held on their way to where a step has them."""
        degrees = self.degrees
        between = degrees.node != WORLD and (degrees.optimizer or self.groups) > degrees.node > degrees.weights > WORLD
        return [degrees.node] if between else []

    def reduced_by(self, last: bool) -> list[tuple[int, int]]:
        """Returns the degrees from which and to which gradients are reduced at the end of a micro-batch, one after
        another. last: of all micro-batches."""
        degrees, found = self.degrees, list[tuple[int, int]]()
        if degrees.gradients != 1:
            hops = [1, degrees.hop, degrees.gradients] if degrees.hop != WORLD else [1, degrees.gradients]
            found += pairwise(hops)
        if last and degrees.gradients != WORLD:
            found.append((degrees.gradients, WORLD))
        return found

    def every(self, weight: str, degree: int) -> int:
        """Returns how many GPUs that follow one another have all of a parameter that is cut over `degree` groups: as
        many as it has slices, where that is 1."""
        if degree == WORLD:
            return self.num_gpus
        count = self.slices(weight)[1]
        return count if degree == 1 else max(degree * self.degree, count)

    @property
    def window(self) -> int:
        """The layers that are gathered ahead while another one is under way, in a backward."""
        return self.overlap.layers_ahead

    @property
    def forward_window(self) -> int:
        """The layers that are gathered ahead while another one is under way, in a forward."""
        return self.overlap.forward_ahead

    @property
    def layer_elements(self) -> int:
        """The parameters of a layer on a GPU, all of its slices; of two kinds of layers, those of the larger."""
        elements, kinds = weight_elements(self.model), weights_of_kinds(self.model)
        first, other = (
            sum(elements[name] // self.slices(name)[1] for name in self.of_layers if kinds[name] != without)
            for without in (FOLLOWING, LEADING)
        )
        return max(first, other)

    @property
    def bucket_layers(self) -> int:
        """The layers whose gradients are reduced together; all of the model's where they are reduced in the end."""
        size = self.overlap.gradient_bucket
        if isinstance(size, str):
            return 1 if size == EACH_LAYER else self.model.num_layers
        return min(int(size // self.layer_elements), self.model.num_layers)

    @property
    def gathered(self) -> bool:
        """Whether parameters stay in parts and are gathered wherever a layer needs them."""
        return self.degrees.weights != 1

    @property
    def gathered_once(self) -> bool:
        """Whether parameters are gathered in a step's first forward and then stay until they are updated."""
        return self.degrees.weights == 1 and self.degrees.optimizer != 1

    @property
    def gathered_first(self) -> bool:
        """Whether parameters are gathered before a step's first forward begins."""
        return self.gathered_once and self.overlap.gathers_first

    @property
    def reduced_last(self) -> bool:
        """Whether gradients are reduced after a stage's last backward, those of no layer among them."""
        return self.overlap.gradient_bucket == END

    @property
    def in_buckets(self) -> bool:
        """Whether gradients of layers are reduced by a template of their own: those of several layers together, in the
        end, or between experts' messages of another layer."""
        return self.reduced_last or self.bucket_layers > 1 or self.overlap.experts.gradients is not None

    @property
    def num_gpus(self) -> int:
        return self.groups * self.degree

    @property
    def of_layers(self) -> tuple[str, ...]:
        """The parameters of layers, of whatever kind."""
        return weights_of_layers(self.model)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The kind of layers that have each parameter of layers."""
        return weights_of_kinds(self.model)

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Returns the parameters of a layer of a kind, LEADING or FOLLOWING; where all layers are alike they are of the
        latter."""
        return tuple(name for name in self.of_layers if self.kinds[name] in (kind, LAYER))

    @property
    def outside(self) -> tuple[str, ...]:
        """The parameters of no layer."""
        return outer_weights(self.model.kind_of_head)

    @property
    def has_one_table(self) -> bool:
        """Whether the head reads the embedding's table, where that is."""
        return self.model.kind_of_head == TIED

    def is_reduced_home(self, weight: str) -> bool:
        """Returns whether a gradient is reduced to the homes of its cells alone, wherever it is needed: that of one of
        two tables, which is not complete without the other one's."""
        return self.model.has_two_tables and weight in TABLES

    @property
    def of_head(self) -> tuple[str, ...]:
        """The parameters that are used after the layers."""
        return HEAD_WEIGHTS[self.model.kind_of_head]

    def slices(self, weight: str) -> tuple[str, int]:
        """Returns the index of the slices that a parameter is cut in, and how many there are; "" and 1: it is whole."""
        if weight in WHOLE:
            return "", 1
        return ("k", self.experts) if weight in OF_EXPERTS else ("j", self.degree)

    @cached_property
    def _numbered(self) -> Mapping[str, tuple[Ints, Ints]]:
        """The elements and the numbers, among all cells, of the shards of a slice of every parameter that is cut."""
        elements, found = weight_elements(self.model), {}
        cut = [name for name in self.of_layers if name not in (*WHOLE, *OF_EXPERTS)]
        # What layers of one kind alone have is cut by itself, so that every layer is even over the GPUs.
        of_kinds = [[name for name in cut if self.kinds[name] == kind] for kind in (LAYER, LEADING, FOLLOWING)]
        for names in (
            *of_kinds,
            [name for name in self.of_layers if name in OF_EXPERTS],
            *self._cut_outside,
        ):
            sizes = [elements[name] // self.slices(name)[1] for name in names]
            cells = self.num_gpus * self._cells * (self._halves(names[0]) if names else 1)
            each = max(-(-sum(sizes) * self.slices(name)[1] // cells) for name in names) if names else 1
            begin = 0
            for name, size in zip(names, sizes, strict=True):
                edges = np.arange(begin // each, -(-(begin + size) // each) + 1) * each
                edges = np.clip(edges, begin, begin + size)
                found[name] = (np.diff(edges), begin // each + np.arange(len(edges) - 1))
                begin += size
        return found

    @property
    def _cut_outside(self) -> list[list[str]]:
        """The parameters of no layer that are cut, those in one list as one."""
        names = [name for name in self.outside if name not in WHOLE]
        return [[name] for name in names] if self.model.has_two_tables else [names]

    def _halves(self, weight: str) -> int:
        """Returns in how many parts each cell of a GPU's share is cut: in two of tables on two stages, each of which
        sums up one (zbench.step.passes.parameters.tied_tables)."""
        return 2 if self.model.has_two_tables and weight in TABLES else 1

    @property
    def _gradient_pieces(self) -> int:
        """The pieces that a layer's gradients are reduced in."""
        between = self.overlap.experts.gradients
        return 1 if between is None else between.count

    @property
    def _cells(self) -> int:
        """The cells that a GPU's share of a slice is cut in, of which every piece of gradients has as many."""
        return lcm(self.cells, self._gradient_pieces)

    @cached_property
    def shards(self) -> Mapping[str, tuple[Ints, Ints]]:
        """The elements and the groups of the shards of a slice of every parameter that is cut, by its name."""
        return {
            name: (sizes, number // (self._cells * self._halves(name)))
            for name, (sizes, number) in self._numbered.items()
        }

    def pieces_of(self, weight: str) -> Ints:
        """Returns the piece of gradients that each shard of a parameter is of, 0 of one that is whole."""
        if weight in WHOLE:
            return np.zeros(1, np.int64)
        cell = self._numbered[weight][1] // self._halves(weight) % self._cells
        return np.asarray(cell * self._gradient_pieces // self._cells, np.int64)

    def indices(self) -> tuple[Index, ...]:
        """Returns the indices of shards, z and the parameter's name."""
        return tuple(Index(f"z{name}", sizes) for name, (sizes, _) in self.shards.items())

    def axes(self, weight: str) -> tuple[str, ...]:
        """Returns what a parameter, its gradient and its optimizer state are cut along."""
        return axes_of(weight)

    def home(self, weight: str) -> Ints:
        """Returns the place of every cell of a parameter; whoever changes it makes a copy."""
        if weight not in self._homes:
            self._homes[weight] = self._made_home(weight)
        return self._homes[weight]

    def _made_home(self, weight: str) -> Ints:
        if weight in WHOLE:
            return np.full(1, WHOLE.index(weight) % self.num_gpus, np.int64)
        owner, count = self.shards[weight][1], self.slices(weight)[1]
        return (owner * count + np.arange(count)[:, None]).reshape(-1)

    def members(self, weight: str) -> list[tuple[int, Ints]]:
        """Lists (slice, the GPUs that compute with it) of a parameter; slice -1: it is not cut."""
        count = 0 if weight in WHOLE else self.slices(weight)[1]
        if count not in self._members:
            every = np.arange(self.num_gpus)
            self._members[count] = [(share, every[share::count]) for share in range(count)] or [(-1, every)]
        return self._members[count]

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every parameter, its gradient and its optimizer state, by their names."""
        found = dict[str, Tensor]()
        element, elements = self.model.element_bytes, weight_elements(self.model)
        for weight in (*self.of_layers, *self.outside):
            axes, home, count = self.axes(weight), self.home(weight), elements[weight] if weight in WHOLE else 1
            layers = "none" if weight in self.outside else self.kinds[weight]
            for name, nature, size in (
                (weight, "state", element),
                (f"d{weight}", "sum", max(GRADIENT_BYTES, element)),
                (f"s{weight}", "state", max(MOMENT_BYTES, 3 * element)),
            ):
                merge = "add" if nature == "sum" else ""
                found[name] = Tensor(name, axes, nature, merge, layers, size * count, home)
        return found

    def tables(self, form: LayoutForm, places: int) -> KeptTables:
        """Returns what was made of these parameters in layouts of a form, on so many places, and no batch changes."""
        key = form, places
        if key not in self._tables:
            axes = (axis for weight in (*self.of_layers, *self.outside) for axis in self.axes(weight))
            self._tables[key] = KeptTables({PLACE, *axes})
        return self._tables[key]

    @cached_property
    def _tables(self) -> dict[tuple[LayoutForm, int], KeptTables]:
        return {}

    @cached_property
    def _homes(self) -> dict[str, Ints]:
        return {}

    @cached_property
    def _members(self) -> dict[int, list[tuple[int, Ints]]]:
        """By the number of slices, 0 of what is not cut."""
        return {}


@lru_cache(maxsize=16)
def _kept(parameters: ShardedParameters) -> ShardedParameters:
    return parameters
