"""Engines of generation beside each other, on layouts of a cluster: which one ends first.

continuous: prompts are read in passes of their own. chunked: in chunks, beside sequences that decode. seesaw: by
another layout than that which decodes (zbench.rollouts.seesaw), every two layouts of as many GPUs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.job import CHUNKED, SEESAW
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.generate import Batching, Generation, GenerationCost, generate
from zbench.rollouts.seesaw import SeesawGeneration, generate_by_seesaw
from zbench.rollouts.seesaw_phases import SeesawCost

PASS_TOKENS = 2048  # vLLM's least max_num_batched_tokens of whole prompts
CHUNK_TOKENS = 512  # vLLM 0.5.4's max_num_batched_tokens with chunked prefill
HOST_BYTES = 80 * 2.0**30  # of a GPU: Seesaw's set-up


@dataclass(frozen=True)
class EngineLimits:
    """The limits of engines. pass_tokens: of a pass that reads whole prompts; chunk: of any pass of `chunked`.
    host_bytes: of host memory for keys and values, a GPU."""

    pass_tokens: int = PASS_TOKENS
    chunk: int = CHUNK_TOKENS
    host_bytes: float = HOST_BYTES


@dataclass(frozen=True)
class EnginePlay:
    """Generation by an engine that was played. prefill, decode: its layouts, the same but with seesaw."""

    engine: str
    prefill: GenerateDegrees
    decode: GenerateDegrees
    found: Generation

    @property
    def seconds(self) -> float:
        """The seconds of the slowest replica."""
        return float(self.found.seconds.max())

    @property
    def reloads(self) -> int:
        """The number of changes of the layout."""
        return self.found.reloads if isinstance(self.found, SeesawGeneration) else 0

    def __str__(self) -> str:
        one = f"{self.engine} {self.prefill}"
        return one if self.prefill == self.decode else f"{one} to {self.decode}"


def layout_cost(cost: Cost, layout: GenerateDegrees, memory_share: float) -> GenerationCost:
    """Returns the cost model of a replica of a layout.

    Raises:
        ValueError: it does not divide the cluster or the model, or there is no room for the model.
    """
    key = "tensor" if layout.pipeline == 1 else f"the tensor degree of layouts={layout}"
    found, gpus = GenerationCost(cost, layout.tensor, memory_share, key, layout.pipeline), cost.cluster.num_ranks
    if gpus % layout.num_gpus:
        raise ValueError(
            f"layouts is {layout}; its replicas take {layout.num_gpus} GPUs, which have to divide the {gpus} of "
            f"cluster {cost.cluster.name}"
        )
    return found


def every_layout(cost: Cost, memory_share: float, longest: int) -> list[GenerationCost]:
    """Returns all layouts that divide cluster and model and have room for a sequence of so many tokens.

    Raises:
        ValueError: there is none.
    """
    gpus, found = cost.cluster.num_ranks, list[GenerationCost]()
    told, rooms = "", list[int]()
    for each in (number for number in range(1, gpus + 1) if gpus % number == 0):
        for tensor in (number for number in range(1, each + 1) if each % number == 0):
            try:
                one = layout_cost(cost, GenerateDegrees(each // tensor, tensor), memory_share)
            except ValueError as error:
                told = str(error)
                continue
            rooms.append(one.batch_tokens)
            if one.batch_tokens >= longest:
                found.append(one)
    if rooms:
        told = f"a sequence has {longest} tokens, and no layout has room for more than {max(rooms)}"
    if not found:
        raise ValueError(f"layouts is all; none goes with cluster {cost.cluster.name}: {told}")
    return found


def played_engines(
    prompts: Ints, responses: Ints, layouts: Sequence[GenerationCost], engines: Sequence[str], limits: EngineLimits
) -> list[EnginePlay]:
    """Plays generation by engines on layouts, engine after engine.

    Raises:
        ValueError: a layout has no room for a sequence, or seesaw has no two layouts.
    """
    return [one for engine in engines for one in _played(engine, prompts, responses, layouts, limits)]


def _played(
    engine: str, prompts: Ints, responses: Ints, layouts: Sequence[GenerationCost], limits: EngineLimits
) -> Iterator[EnginePlay]:
    gpus = layouts[0].cost.cluster.num_ranks
    if engine != SEESAW:
        chunked = engine == CHUNKED
        batching = Batching(limits.chunk if chunked else limits.pass_tokens, chunked)
        for of in layouts:
            one = _degrees(of)
            yield EnginePlay(engine, one, one, generate(prompts, responses, of, gpus // of.num_gpus, batching))
        return
    none = True
    for size in sorted({of.num_gpus for of in layouts}):
        same = [of for of in layouts if of.num_gpus == size]
        pairs = [
            SeesawCost(one, other, limits.host_bytes, limits.pass_tokens)
            for one in same
            for other in same
            if one != other
        ]
        played = generate_by_seesaw(prompts, responses, pairs, gpus // size)
        for pair, found in zip(pairs, played, strict=True):
            none = False
            yield EnginePlay(engine, _degrees(pair.prefill), _degrees(pair.decode), found)
    if none:
        told = ", ".join(str(_degrees(of)) for of in layouts)
        raise ValueError(f"engine is seesaw; it changes between layouts of as many GPUs, and {told} has no two of them")


def _degrees(of: GenerationCost) -> GenerateDegrees:
    return GenerateDegrees(of.pipeline, of.tensor)
