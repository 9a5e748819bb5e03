"""The two phases of Seesaw's generation (arXiv 2503.06433), of the sequences that host memory has room for at a time.

Prompts are read, micro-batch after micro-batch, and what each GPU has of their keys and values is copied to the host
behind the passes that follow. Then they are copied in by the other layout, sequence by sequence, and decoded to the
end. Copies and messages between GPUs have links of their own here, which over PCIe they have not.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.generation_cost import GenerationCost
from zbench.rollouts.stage_clock import DecodingBatch, StageClock, decode_rounds


@dataclass(frozen=True)
class SeesawCost:
    """The cost model of a replica that changes between layouts. host_bytes: of a GPU's share of host memory, for keys
    and values. pass_tokens: that a pass which reads prompts has at most, but for one prompt alone. host_key: what a
    user sets host memory by, for sentences.

    Raises:
        ValueError: layouts take different numbers of GPUs, the cluster has no link to hosts, or their memory is less.
    """

    prefill: GenerationCost
    decode: GenerationCost
    host_bytes: float
    pass_tokens: int
    host_key: str = "host_kv"

    def __post_init__(self) -> None:
        cluster, model = self.decode.cost.cluster, self.decode.cost.model
        if self.prefill.num_gpus != self.decode.num_gpus:
            raise ValueError(f"prefill takes {self.prefill.num_gpus} GPUs of a replica, and decode {self.gpus}")
        if cluster.host is None:
            raise ValueError(
                f"cluster {cluster.name} has no cluster.host_bandwidth; seesaw brings weights, keys and values by it: "
                "it takes one that has, as cluster=a100_80g_16x8 or a10_1x8, or +cluster.host_bandwidth='25 GB/s'"
            )
        weights = model.element_bytes * model.total_params
        wanted = self.host_bytes * cluster.gpus_per_node + weights
        if cluster.host_memory is not None and wanted > cluster.host_memory:
            raise ValueError(
                f"{self.host_key} is {self.host_bytes / 2**30:g} GiB a GPU; with weights a node takes "
                f"{wanted / 2**30:.0f} GiB, and cluster.host_memory is {cluster.host_memory / 2**30:.0f} GiB"
            )

    @property
    def gpus(self) -> int:
        """The GPUs of a replica."""
        return self.decode.num_gpus

    @property
    def host_tokens(self) -> int:
        """The tokens whose keys and values host memory has room for."""
        return int(self.host_bytes * self.gpus // self.token_bytes)

    def check_prompts(self, longest: int) -> None:
        """Refuses prompts, of which the longest has so many tokens, that host memory never has room for.

        Raises:
            ValueError: the message names what a user sets host memory by.
        """
        if longest > self.host_tokens:
            wanted = longest * self.token_bytes / self.gpus / 2**20
            raise ValueError(
                f"{self.host_key} is {self.host_bytes / 2**20:.4g} MiB a GPU, room for keys and values of "
                f"{self.host_tokens} tokens of a replica; a prompt may have {longest}, so it takes at least "
                f"{wanted:.4g} MiB"
            )

    @property
    def token_bytes(self) -> int:
        """The bytes of a token's keys and values in all layers."""
        return self.decode.cost.model.num_layers * self.decode.kv_bytes

    @property
    def weights_out_seconds(self) -> float:
        """The seconds in which the GPUs of a node copy all weights to its memory, an even share each."""
        model, cluster = self.decode.cost.model, self.decode.cost.cluster
        return self._copied(model.element_bytes * model.total_params / cluster.gpus_per_node)

    def reload_seconds(self, to: GenerationCost) -> float:
        """Returns the seconds in which GPUs load the weights of a layout, all at once: of its fullest stage."""
        return self._copied(to.stage_weights / to.tensor)

    def copy_seconds(self, tokens: int) -> float:
        """Returns the seconds in which GPUs copy keys and values of tokens to the host or back, an even share each."""
        return self._copied(tokens * self.token_bytes / self.gpus)

    def _copied(self, size: float) -> float:
        cluster = self.decode.cost.cluster
        assert cluster.host is not None
        return (
            float(self.decode.cost.transfer_seconds(np.array(size), cluster.host)) + cluster.links[cluster.host].latency
        )


@dataclass(frozen=True)
class DecodedFill:
    """The decoding of a fill of host memory. ends: of its sequences, float64 [sequences], from its begin on. decodes:
    passes; most: sequences at once."""

    seconds: float
    ends: Floats
    decodes: int
    most: int


def read_fill(prompts: Ints, responses: Ints, of: SeesawCost) -> tuple[float, Floats]:
    """Reads prompts and copies their keys and values to the host, also of those whose first word turns out to be the
    last. Room on GPUs is taken again when a micro-batch is copied out. Returns (seconds, when sequences end that do, 0
    of others)."""
    cost = of.prefill
    ends, clock, copied, room = np.zeros(len(prompts)), StageClock([0.0] * cost.pipeline), 0.0, cost.kv_tokens
    leaving = deque[tuple[float, int]]()  # (when it is copied out; tokens) of micro-batches
    for some in prompt_passes(prompts, min(of.pass_tokens, cost.kv_tokens)):
        tokens, ready = int(prompts[some].sum()), 0.0
        while room < tokens:
            left, freed = leaving.popleft()
            ready, room = max(ready, left), room + freed
        end = clock.run(ready, cost.prefill(prompts[some]))
        ends[some] = np.where(responses[some] > 1, 0.0, end)
        copied = max(copied, end) + of.copy_seconds(tokens)
        leaving.append((copied, tokens))
        room -= tokens
    return copied, ends


def buffer_fills(prompts: Ints, host_tokens: int) -> Iterator[tuple[int, int]]:
    """Yields the sequences, [first, end), whose prompts are read before a layout changes: in order, as many as host
    memory has room for; it has room for each. prompts: int64 [sequences], tokens of each."""
    first, total = 0, 0
    for number, prompt in enumerate(prompts.tolist()):
        assert prompt <= host_tokens, "there is room for each prompt"
        if total + prompt > host_tokens:
            yield first, number
            first, total = number, 0
        total += prompt
    if first < len(prompts):
        yield first, len(prompts)


def prompt_passes(prompts: Ints, most: int) -> Iterator[slice]:
    """Yields the sequences of passes that read prompts: in order, of at most so many tokens, but for one alone."""
    first, total = 0, 0
    for sequence, prompt in enumerate(prompts.tolist()):
        if total and total + prompt > most:
            yield slice(first, sequence)
            first, total = sequence, 0
        total += prompt
    yield slice(first, len(prompts))


@dataclass
class _Arriving(DecodingBatch):
    """A micro-batch with sequences that are copied in. arriving: (when; sequence), in order."""

    arriving: deque[tuple[float, int]] = field(default_factory=deque)


def decode_fill(prompts: Ints, responses: Ints, of: SeesawCost) -> DecodedFill:
    """Decodes sequences to their ends; micro-batches have them copied in, in order, wherever there is room."""
    cost, copied, decodes, most = of.decode, 0.0, 0, 0
    ends, whole, prompt = np.zeros(len(prompts)), (prompts + responses).tolist(), prompts.tolist()
    waiting = deque(range(len(prompts)))
    batches = [_Arriving(cost.batch_tokens) for _ in range(cost.pipeline)]
    clock = StageClock([0.0] * cost.pipeline)
    while active := batches if waiting else [one for one in batches if one.running or one.arriving]:
        settled = all(one.running and not one.arriving for one in active)
        if settled and not (waiting and whole[waiting[0]] <= max(one.room for one in active)):
            turns = active
            decodes += decode_rounds(active, cost, clock)
        else:
            one = min(active, key=attrgetter("ready"))
            turns = [one]
            while waiting and whole[waiting[0]] <= one.room:
                sequence = waiting.popleft()
                one.room -= whole[sequence]
                copied = max(copied, one.ready) + of.copy_seconds(prompt[sequence])
                one.arriving.append((copied, sequence))
            if one.arriving and not one.running:
                one.ready = max(one.ready, one.arriving[0][0])
            while one.arriving and one.arriving[0][0] <= one.ready:
                sequence = one.arriving.popleft()[1]
                one.join(sequence, prompt[sequence], whole[sequence] - prompt[sequence] - 1)
            most = max(most, sum(len(batch.running) for batch in batches))
            one.decode(cost, clock)
            decodes += 1
        for one in turns:
            for ended in one.ended():
                ends[ended] = one.ready
                one.room += whole[ended]
                one.context -= whole[ended] - 1
    return DecodedFill(float(ends.max()), ends, decodes, most)
