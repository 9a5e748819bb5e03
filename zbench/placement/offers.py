"""The layouts that a model of a job may have on so many GPUs, each with what it takes at least until it is priced.

Of training and scoring: a sharding over all GPUs, or stages of whole nodes, each with a sharding over its own; tensor
parallelism inside nodes; with stages, how many tokens a micro-batch has. Of generation: replicas inside a node, of
tensor-parallel groups and stages, and a share of memory. Where weights are in slices or stages, HybridFlow's engine
brings them to fewer slices and one stage; where each GPU has shards alone, it gathers all, and generation may be laid
out as it likes.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.memory.state import ADAM_BYTES
from zbench.describe.model import CUT_BY_SLICES, Model
from zbench.describe.rollouts.stages import ACTOR
from zbench.describe.units import with_noun
from zbench.placement.layout import LayoutOffer, ModelLayout, StageTimes
from zbench.placement.prices import PackedModel, PlacementPrices
from zbench.rollouts.generate import GenerationCost

SHARES = (0.9, 0.75, 0.6, 0.45, 0.3)  # of a GPU's memory for generation that are tried: a judgement
SCORING = ("zero3", "none")  # shardings of models that are not trained
FILLS = (1, 2, 4)  # with stages, micro-batches a stage in an update: a bubble of at most 1/2, 1/3 and 1/5


@dataclass
class PlacementOffers:
    """The layouts of all models of a job, on any number of GPUs."""

    prices: PlacementPrices
    _made: dict[tuple[str, int], tuple[LayoutOffer, ...]] = field(default_factory=dict, init=False, repr=False)

    def of(self, role: str, gpus: int) -> tuple[LayoutOffer, ...]:
        """Returns every layout of a model on so many GPUs whose weights have room."""
        if (role, gpus) not in self._made:
            self._made[role, gpus] = tuple(self._of(role, gpus))
        return self._made[role, gpus]

    def _of(self, role: str, gpus: int) -> Iterator["_Offered"]:
        generations = list(self._generations(gpus)) if role == ACTOR else []
        for packed in self._packed(role, gpus):
            one = _Offered(self.prices, role, packed)
            if one.kept > self.prices.cluster.device.memory_bytes:
                continue
            if role != ACTOR:
                yield one
                continue
            for generation, least in generations:
                if one.brings(generation):
                    yield replace(one, generation=generation, least_generation=least)

    def _packed(self, role: str, gpus: int) -> Iterator[PackedModel]:
        """Yields the layouts of training and scoring."""
        prices, work = self.prices, self.prices.work
        trained, each = prices.is_trained(role), prices.cluster.gpus_per_node
        tokens = int((work.part if trained else work.lengths).sum())
        nodes, layers = max(gpus // each, 1), prices.models[role].num_layers
        for sharding in prices.trained if trained else SCORING:
            counts = range(1, nodes + 1)
            for stages in (count for count in counts if nodes % count == 0 and layers % count == 0):
                for tensor in self._degrees(prices.models[role], gpus):
                    model = replace(
                        prices.models[role],
                        tensor_parallel=tensor,
                        sharding=sharding,  # type: ignore[arg-type]
                        pipeline_parallel=stages,
                    )
                    most = work.pack_tokens * tensor
                    even = tokens * tensor * stages / gpus
                    sizes = [min(most, ceil(even / (fill * stages))) for fill in FILLS] if stages > 1 else [most]
                    longest = int(work.lengths.max())
                    yield from (
                        PackedModel(model, gpus, size) for size in dict.fromkeys(max(one, longest) for one in sizes)
                    )

    def _generations(self, gpus: int) -> Iterator[tuple[GenerationCost, float]]:
        """Yields the layouts of generation that have room for the longest sequence, and what each takes at least."""
        prices, model = self.prices, self.prices.models[ACTOR]
        most, longest = min(gpus, prices.cluster.gpus_per_node), int(prices.work.lengths.max())
        cost = Cost(cluster=prices.part_of(gpus), model=replace(model, sharding="none"))
        for tensor in self._degrees(model, gpus):
            for stages in range(1, most // tensor + 1):
                if most % (tensor * stages) or model.num_layers % stages:
                    continue
                for share in SHARES:
                    with suppress(ValueError):  # there is no room for weights
                        one = GenerationCost(cost, tensor, share, pipeline=stages)
                        if one.batch_tokens >= longest:
                            yield one, least_generation(prices, one, gpus)

    def _degrees(self, model: Model, gpus: int) -> list[int]:
        """Lists the degrees of tensor parallelism inside a node that the model can be cut by."""
        most = min(gpus, self.prices.cluster.gpus_per_node)
        sizes = [most, *(getattr(model, name) for name in CUT_BY_SLICES)]
        return [one for one in range(1, most + 1) if not any(size % one for size in sizes)]


@dataclass(frozen=True)
class _Offered:
    """A layout of a model. generation: the actor's, which takes `least_generation` seconds or more."""

    prices: PlacementPrices
    role: str
    packed: PackedModel
    generation: GenerationCost | None = None
    least_generation: float = 0.0

    @property
    def kept(self) -> float:
        """The bytes that the model keeps on every GPU: weights and gradients of the fullest stage, in slices or over
        all of its GPUs, and the optimizer's state of these over all of them."""
        model, gpus, trained = self.packed.model, self.packed.gpus, self.prices.is_trained(self.role)
        outer, stages = model.total_params - model.num_layers * model.layer_params, model.pipeline_parallel
        last = model.head_params + model.hidden
        ends = outer if stages == 1 else max(last, outer - last)
        params = model.num_layers // stages * model.layer_params + ends
        of_stage, slices = gpus // stages, model.tensor_parallel
        held = model.element_bytes / (of_stage if model.sharding == "zero3" else slices)
        summed = GRADIENT_BYTES * trained / (of_stage if model.sharding in ("zero2", "zero3") else slices)
        return params * (held + summed + ADAM_BYTES * trained / of_stage)

    def brings(self, of: GenerationCost) -> bool:
        """Returns whether an engine brings the weights of training to a layout of generation."""
        model = self.packed.model
        if model.sharding == "zero3" or model.tensor_parallel * model.pipeline_parallel == 1:
            return True
        return of.pipeline == 1 and model.tensor_parallel % of.tensor == 0

    @property
    def parts(self) -> tuple[Callable[[], object], ...]:
        """The parts of its price; each call makes one."""
        prices, packed, generation = self.prices, self.packed, self.generation
        found: list[Callable[[], object]] = []
        if prices.is_trained(self.role):
            found += [lambda: prices.pack(packed, True), lambda: prices.update(packed)]
        if prices.stages.reads(self.role):
            found += [lambda: prices.pack(packed, False), lambda: prices.forward(packed)]
        if generation is not None:
            found.append(lambda: prices.generation(generation, packed.gpus))
            found.append(lambda: prices.reshard(packed, generation.tensor))
        return tuple(found)

    def least(self) -> StageTimes:
        """Returns the seconds of each stage that it cannot beat, by what is known so far."""
        prices, packed = self.prices, self.packed
        score = train = generated = 0.0
        if reads := prices.stages.reads(self.role):
            score = reads * prices.least_forward(packed)
        if prices.is_trained(self.role):
            train = prices.work.updates * prices.least_update(packed)
        if self.generation is not None:
            played = prices.known_generation(self.generation, packed.gpus)
            generated = self.least_generation if played is None else played
        return 0.0, generated, score, train

    def layout(self) -> ModelLayout | None:
        """Returns the layout with its price; None: it has no room by itself."""
        prices, packed, generation, kept = self.prices, self.packed, self.generation, self.kept
        score, train, extra, memory = 0.0, 0.0, 0.0, prices.cluster.device.memory_bytes
        if reads := prices.stages.reads(self.role):
            seconds, peak = prices.forward(packed)
            score, extra = reads * seconds, max(extra, peak - kept)
        if prices.is_trained(self.role):
            seconds, peak = prices.update(packed)
            train, extra = prices.work.updates * seconds, max(extra, peak - kept)
        moved = generated = 0.0
        if generation is not None:
            generated, moved = prices.generation(generation, packed.gpus), prices.reshard(packed, generation.tensor)
            extra = max(extra, generation.memory_share * memory)
        return ModelLayout(kept, extra, (moved, generated, score, train), str(self)) if kept + extra <= memory else None

    def __str__(self) -> str:
        model, of = self.packed.model, self.generation
        stages = f"{with_noun(model.pipeline_parallel, 'stage')}, " if model.pipeline_parallel > 1 else ""
        words = f"{stages}{'' if model.tensor_parallel == 1 else f'tensor {model.tensor_parallel}, '}{model.sharding}"
        if model.pipeline_parallel > 1:
            words += f", micro-batches of {self.packed.most:,} tokens"
        if of is None:
            return words
        staged = f", {with_noun(of.pipeline, 'stage')} of {of.tensor}," if of.pipeline > 1 else ""
        told = f"{with_noun(of.num_gpus, 'GPU')}{staged}"
        return f"{words}; generates with {told} and {of.memory_share} of memory"


def least_generation(prices: PlacementPrices, of: GenerationCost, gpus: int) -> float:
    """Returns the seconds that generation takes at least: the longest response decodes word by word; passes are as many
    as room for keys and values asks for; all tokens' matmuls are spread evenly."""
    work, device = prices.work, prices.cluster.device
    whole, words = work.lengths, work.responses - 1
    longest = int(np.argmax(work.responses))
    alone = of.decode_seconds(1, int(work.prompts[longest]), int(words[longest]))
    passes = float((whole * words).sum()) / of.batch_tokens / (gpus // of.num_gpus)
    model = of.cost.model
    computed = 2.0 * model.num_layers * model.layer_matmul_params * float((whole - 1).sum()) / device.matmul_flops
    return prices.stages.generations * max(alone, passes * of.decode(1, 0).last, computed / gpus)
