"""Layouts that weights are brought between, and what each GPU has before and after, by arithmetic that shares nothing
with zbench.rollouts. No torch, which the driver is to be without."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import lcm

import numpy as np

from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, ENGINES, HYBRIDFLOW, STANDALONE, resharding_of
from zbench.rollouts.gathers import ReshardedWeights
from zbench.rollouts.weights import Weight

ELEMENTS = 840  # of a matrix, which all numbers of slices on up to 8 GPUs divide, together, too
NORM = 17  # which is no multiple of any
UNIT = 8  # bytes of an element
LAYERS = 2  # of a stage
NOTHING = (0, 0)


@dataclass(frozen=True)
class Reshard:
    """A change of layouts by an engine. replicas: of generation, where it has GPUs of its own. norms: whether the model
    has weights besides that slices do not cut."""

    engine: str
    train: TrainDegrees
    generate: GenerateDegrees
    replicas: int = 1
    norms: bool = True

    def __str__(self) -> str:
        own = f" x {self.replicas}" if self.engine == STANDALONE else ""
        norms = ", norms" if self.norms else ""
        return f"{self.engine} {self.train} to {self.generate}{own}{norms}"

    @property
    def num_gpus(self) -> int:
        """The GPUs that it takes."""
        return self.train.num_gpus + (self.replicas * self.generate.num_gpus if self.engine == STANDALONE else 0)

    @property
    def num_layers(self) -> int:
        """The layers of the model, which both numbers of stages divide."""
        return LAYERS * lcm(self.train.pipeline, self.generate.pipeline)

    @property
    def weights(self) -> list[Weight]:
        """The model's weights."""
        every = range(self.num_layers)
        found = [Weight(f"w{layer}", layer, ELEMENTS, True) for layer in every]
        return found + [Weight(f"g{layer}", layer, NORM, False) for layer in every if self.norms]

    @property
    def made(self) -> ReshardedWeights:
        """The change as zbench.rollouts has it."""
        change = resharding_of(self.engine, self.train, self.generate, self.replicas)
        return ReshardedWeights(self.weights, self.num_layers, UNIT, change)

    def trained(self, gpu: int, weight: Weight) -> tuple[int, int]:
        """Returns the elements of a weight that a GPU trains with, (first, the one after the last)."""
        p, t, n = self.train.pipeline, self.train.tensor, self.train.num_gpus
        if gpu >= n:
            return NOTHING
        if self.engine == DS_CHAT:  # a piece of everything
            return gpu * weight.elements // n, (gpu + 1) * weight.elements // n
        return self._share(weight, (gpu * p // n, p), (gpu % t, t))

    def generated(self, gpu: int, weight: Weight) -> tuple[int, int]:
        """Returns the elements of a weight that a GPU generates with."""
        p, t, n = self.train.pipeline, self.train.tensor, self.train.num_gpus
        stages, slices = self.generate.pipeline, self.generate.tensor
        if self.engine == STANDALONE:
            number = gpu - n
            if number < 0:
                return NOTHING
        elif self.engine == HYBRIDFLOW:  # of its stages and slices in training those that it generates with
            return self._share(weight, (gpu * stages // n, stages), (gpu % t // (t // slices), slices))
        else:  # consecutive GPUs of a replica of training, counted stage by stage
            number = gpu * p // n * t + gpu % t
        return self._share(weight, (number // slices % stages, stages), (number % slices, slices))

    def _share(self, weight: Weight, stage: tuple[int, int], part: tuple[int, int]) -> tuple[int, int]:
        """Returns the elements of a weight on a stage of so many, in a slice of so many."""
        if weight.layer * stage[1] // self.num_layers != stage[0]:
            return NOTHING
        if not weight.is_cut:
            return 0, weight.elements
        return part[0] * weight.elements // part[1], (part[0] + 1) * weight.elements // part[1]

    def table(self, gpu: int) -> tuple[float, float, float]:
        """Returns the bytes that a GPU receives, has at once, and keeps twice at most, of matrices alone: table 2 of
        HybridFlow (arXiv 2409.19256), or what generation on GPUs of its own takes."""
        whole = UNIT * ELEMENTS * self.num_layers
        tp, of_generation = self.train.pipeline * self.train.tensor, self.generate.num_gpus
        n = self.train.num_gpus
        if self.engine == STANDALONE:
            has = whole / tp if gpu < n else whole / of_generation
            return (0 if gpu < n else has), has, 0
        if self.engine == HYBRIDFLOW:
            return whole / of_generation - whole / tp, whole / of_generation, 0
        shard = whole / (n if self.engine == DS_CHAT else tp)
        return whole - shard, whole, shard


@dataclass(frozen=True)
class ReshardedGpu:
    """The outcome on a GPU. received: bytes that messages brought; peak: of memory when all has arrived, each piece
    once; generating: of that which it generates with; kept: of all that is there then; after: of what training has
    again. inside: for each weight that it trains with, whether the shard lies in what it generates with. fault: the
    first value that is another one than in the whole weights, "" if none."""

    received: int
    peak: int
    generating: int
    kept: int
    after: int
    inside: tuple[bool, ...]
    fault: str


def expected_gpu(case: Reshard, gpu: int) -> ReshardedGpu:
    """Returns what has to come out on a GPU, by elements counted by hand."""
    generates = any(case.generated(gpu, one) != NOTHING for one in case.weights)
    received = peak = generating = kept = after = 0
    inside = []
    for one in case.weights:
        trained, generated = case.trained(gpu, one), case.generated(gpu, one)
        own, wanted = (end - begin for begin, end in (trained, generated))
        is_part = own > 0 and wanted > 0 and generated[0] <= trained[0] and trained[1] <= generated[1]
        there = one.elements if case.engine not in (HYBRIDFLOW, STANDALONE) else max(own, wanted)
        received, peak = received + there - own, peak + there
        generating, after = generating + wanted, after + own
        kept += wanted + (0 if is_part else own)
        inside += [is_part] if own else []
    assert generates or not received, "nothing is sent to GPUs that do not generate"
    received, peak, generating, kept, after = (UNIT * size for size in (received, peak, generating, kept, after))
    return ReshardedGpu(received, peak, generating, kept, after, tuple(inside), "")


def values(weight: Weight, seed: int) -> np.ndarray:
    """Returns a whole weight, float64: a function of its name and the seed."""
    return np.random.default_rng([seed, *weight.name.encode()]).standard_normal(weight.elements)


def layouts(ranks: int) -> Iterator[Reshard]:
    """Yields every layout on up to so many GPUs, of training and of generation, by every engine."""
    every = range(1, ranks + 1)
    some = [TrainDegrees(p, t, d) for p, t, d in product(every, repeat=3) if p * t * d <= ranks]
    for norms, train in product((False, True), some):
        for of_p, of_t in product(every, repeat=2):
            generate = GenerateDegrees(of_p, of_t)
            if train.pipeline % of_p == 0 and train.tensor % of_t == 0:
                yield from (Reshard(engine, train, generate, norms=norms) for engine in ENGINES)
            most = (ranks - train.num_gpus) // generate.num_gpus
            yield from (Reshard(STANDALONE, train, generate, one, norms) for one in range(1, most + 1))


def cover(ranks: int, seed: int, count: int) -> list[Reshard]:
    """Draws layouts, those of every engine in turn."""
    order = np.random.default_rng(seed).permutation(len(every := list(layouts(ranks))))
    by_engine: dict[str, list[Reshard]] = {}
    for at in order.tolist():
        by_engine.setdefault(every[at].engine, []).append(every[at])
    turns: Sequence[tuple[Reshard, ...]] = list(zip(*by_engine.values(), strict=False))
    return [one for some in turns for one in some][:count]
