"""The clock of Seesaw's generation (arXiv 2503.06433): prompts are read by one layout, words are made by another.

Between both every GPU reloads its weights from host memory. Keys and values go by a buffer in host memory: what a GPU
has of them by its layout is copied out behind the passes that read prompts, and in again by the other layout, sequence
by sequence, behind passes that decode. Prompts are read until the buffer has no room for the next one, then all that is
in it is decoded to the end, so that layouts change as rarely as they can.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.generate import Generation, check_room
from zbench.rollouts.generation_cost import GenerationCost
from zbench.rollouts.stage_clock import MicroBatch, StageClock


@dataclass(frozen=True)
class SeesawCost:
    """The cost model of a replica that changes between layouts. host_bytes: of a GPU's share of host memory, for keys
    and values. pass_tokens: that a pass which reads prompts has at most, but for one prompt alone.

    Raises:
        ValueError: layouts take different numbers of GPUs, the cluster has no link to hosts, or their memory is less.
    """

    prefill: GenerationCost
    decode: GenerationCost
    host_bytes: float
    pass_tokens: int

    def __post_init__(self) -> None:
        cluster, model = self.decode.cost.cluster, self.decode.cost.model
        if self.prefill.num_gpus != self.decode.num_gpus:
            raise ValueError(f"prefill takes {self.prefill.num_gpus} GPUs of a replica, and decode {self.gpus}")
        if cluster.host is None:
            raise ValueError(
                f"cluster {cluster.name} has no cluster.host_bandwidth; seesaw brings weights, keys and values by it"
            )
        weights = model.element_bytes * model.total_params
        wanted = self.host_bytes * cluster.gpus_per_node + weights
        if cluster.host_memory is not None and wanted > cluster.host_memory:
            raise ValueError(
                f"host_kv is {self.host_bytes / 2**30:g} GiB a GPU; with weights a node takes {wanted / 2**30:.0f} GiB, "
                f"and cluster.host_memory is {cluster.host_memory / 2**30:.0f} GiB"
            )

    @property
    def gpus(self) -> int:
        """The GPUs of a replica."""
        return self.decode.num_gpus

    @property
    def host_tokens(self) -> int:
        """The tokens whose keys and values host memory has room for."""
        return int(self.host_bytes * self.gpus // self._token_bytes)

    @property
    def _token_bytes(self) -> int:
        return self.decode.cost.model.num_layers * self.decode.kv_bytes

    def reload_seconds(self, to: GenerationCost) -> float:
        """Returns the seconds in which GPUs load the weights of a layout, all at once: of its fullest stage."""
        return self._copied(to.stage_weights / to.tensor)

    def copy_seconds(self, tokens: int) -> float:
        """Returns the seconds in which GPUs copy keys and values of tokens to the host or back, an even share each."""
        return self._copied(tokens * self._token_bytes / self.gpus)

    def _copied(self, size: float) -> float:
        cluster = self.decode.cost.cluster
        assert cluster.host is not None
        return float(self.decode.cost.transfer_seconds(size, cluster.host)) + cluster.links[cluster.host].latency


@dataclass(frozen=True)
class SeesawGeneration(Generation):
    """The seconds of generation by two layouts. prefill, decode, reload: seconds of the slowest replica's phases, which
    follow each other; reloads: how often it changes its layout, after it began with that of prefill."""

    prefill: float
    decode: float
    reload: float
    reloads: int


def buffer_fills(prompts: Ints, host_tokens: int) -> Iterator[tuple[int, int]]:
    """Yields the sequences, [first, end), whose prompts are read before a layout changes: in order, as many as host
    memory has room for. prompts: int64 [sequences], tokens of each.

    Raises:
        ValueError: there is no room for one.
    """
    first, total = 0, 0
    for number, prompt in enumerate(prompts.tolist()):
        if prompt > host_tokens:
            raise ValueError(f"a prompt has {prompt} tokens; host memory has room for keys and values of {host_tokens}")
        if total + prompt > host_tokens:
            yield first, number
            first, total = number, 0
        total += prompt
    if first < len(prompts):
        yield first, len(prompts)


def generate_by_seesaw(prompts: Ints, responses: Ints, of: SeesawCost, replicas: int) -> SeesawGeneration:
    """Plays generation. Arguments, and which sequences a replica has, are those of zbench.rollouts.generate.generate.

    Raises:
        ValueError: a sequence is longer than a micro-batch, a prompt than host memory, ever has room for.
    """
    check_room(prompts + responses, of.decode)
    check_room(prompts, of.prefill)
    ends = np.zeros(len(prompts))
    found = []
    for share in np.array_split(np.arange(len(prompts)), replicas):
        played = _SeesawReplica(prompts[share], responses[share], of)
        played.play()
        ends[share] = played.ends
        found.append(played)
    slowest = max(found, key=lambda one: one.time)
    return SeesawGeneration(
        np.array([one.time for one in found]),
        np.array([one.decodes for one in found]),
        np.array([one.most for one in found]),
        int((prompts + responses).sum()),
        ends,
        slowest.prefilled,
        slowest.decoded,
        slowest.reloaded,
        slowest.reloads,
    )


@dataclass
class _Arriving(MicroBatch):
    """A micro-batch with sequences that are copied in. arriving: (when; sequence), in order."""

    arriving: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass
class _SeesawReplica:
    """A replica that generates. time: of its clock; prefilled, decoded, reloaded: what of it went by."""

    prompts: Ints
    responses: Ints
    of: SeesawCost
    time: float = 0.0
    prefilled: float = 0.0
    decoded: float = 0.0
    reloaded: float = 0.0
    reloads: int = 0
    decodes: int = 0
    most: int = 0
    ends: Floats = field(init=False)

    def play(self) -> None:
        """Plays until all sequences have ended."""
        self.ends = np.zeros(len(self.prompts))
        for first, end in buffer_fills(self.prompts, self.of.host_tokens):
            if first:
                self._reload(self.of.prefill)
            began = self.time
            self._prefill(range(first, end))
            self.prefilled += self.time - began
            if left := [one for one in range(first, end) if self.responses[one] > 1]:
                self._reload(self.of.decode)
                began = self.time
                self._decode(deque(left))
                self.decoded += self.time - began

    def _reload(self, to: GenerationCost) -> None:
        if self.of.prefill == self.of.decode:
            return
        seconds = self.of.reload_seconds(to)
        self.time += seconds
        self.reloaded += seconds
        self.reloads += 1

    def _prefill(self, sequences: range) -> None:
        """Reads prompts, micro-batch after micro-batch; each is copied out behind those that follow it, and its room is
        taken again when that is done."""
        of, began = self.of.prefill, self.time
        clock, copied, room = StageClock([began] * of.pipeline), began, of.kv_tokens
        leaving = deque[tuple[float, int]]()  # (when it is copied out; tokens) of micro-batches
        for some in self._passes(sequences):
            tokens, ready = int(self.prompts[some].sum()), began
            while room < tokens:
                left, freed = leaving.popleft()
                ready, room = max(ready, left), room + freed
            end = clock.run(ready, of.prefill(self.prompts[some]))
            going_on = self.responses[some] > 1
            self.ends[np.array(some)[~going_on]] = end
            kept = int(self.prompts[some][going_on].sum())
            copied = max(copied, end) + (self.of.copy_seconds(kept) if kept else 0.0)
            leaving.append((copied, tokens))
            room -= tokens
        self.time = max(copied, max(clock.free))

    def _passes(self, sequences: range) -> Iterator[list[int]]:
        """Yields the sequences whose prompts a pass reads."""
        some, total, most = list[int](), 0, min(self.of.pass_tokens, self.of.prefill.kv_tokens)
        for sequence in sequences:
            prompt = int(self.prompts[sequence])
            if some and total + prompt > most:
                yield some
                some, total = [], 0
            some.append(sequence)
            total += prompt
        yield some

    def _decode(self, waiting: deque[int]) -> None:
        """Decodes sequences to their ends; micro-batches have them copied in, in order, wherever there is room."""
        of, copied = self.of.decode, self.time
        batches = [_Arriving(of.batch_tokens, self.time) for _ in range(of.pipeline)]
        clock = StageClock([self.time] * of.pipeline)
        while active := [one for one in batches if one.running or one.arriving or waiting]:
            one = min(active, key=lambda batch: batch.ready)
            while waiting and self._whole(waiting[0]) <= one.room:
                sequence = waiting.popleft()
                one.room -= self._whole(sequence)
                copied = max(copied, one.ready) + self.of.copy_seconds(int(self.prompts[sequence]))
                one.arriving.append((copied, sequence))
            if one.arriving and not one.running:
                one.ready = max(one.ready, one.arriving[0][0])
            while one.arriving and one.arriving[0][0] <= one.ready:
                sequence = one.arriving.popleft()[1]
                one.join(sequence, int(self.prompts[sequence]), int(self.responses[sequence]) - 1)
            if not one.running:  # others have taken what waited
                continue
            self.most = max(self.most, sum(len(batch.running) for batch in batches))
            self._pass(one, clock, len(active) == 1 and not one.arriving)
        self.time = max(batch.ready for batch in batches)

    def _pass(self, one: _Arriving, clock: StageClock, alone: bool) -> None:
        """Runs a pass that decodes; all passes until a sequence ends where nothing else is there or comes."""
        of, sequences, context = self.of.decode, len(one.running), one.context + len(one.running)
        if alone and max(clock.free) <= one.ready:
            steps = one.steps_left
            one.ready += of.decode_seconds(sequences, context, steps)
            clock.wait_for(one.ready)
        else:
            steps = 1
            one.ready = clock.run(one.ready, of.decode(sequences, context))
        one.advance(steps)
        self.decodes += steps
        for sequence in one.ended():
            self.ends[sequence] = one.ready
            one.room += self._whole(sequence)
            one.context -= self._whole(sequence) - 1

    def _whole(self, sequence: int) -> int:
        return int(self.prompts[sequence] + self.responses[sequence])
