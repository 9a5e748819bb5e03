"""One process of replicas that generate as Seesaw does (arXiv 2503.06433): it reads prompts as a part of one layout and
makes words as a part of another.

Weights are copied from host memory whenever the layout changes; keys and values go by host memory, written by a thread
behind the passes that read prompts, and read by it behind passes that decode. All processes of a replica go through the
same turns: what they do follows from tokens alone, which the GPU that draws them tells to all.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.describe.units import with_noun
from zbench.rollouts.seesaw_phases import buffer_fills, prompt_passes
from zbench.runtime.rollouts.host_memory import HostKeys, HostWeights
from zbench.runtime.rollouts.policy import KeptKeys
from zbench.runtime.rollouts.policy_stage import PolicyStage, StagePlace
from zbench.runtime.rollouts.sampling import END, generator_of, sampled
from zbench.runtime.rollouts.seesaw_job import SeesawJob, SeesawReport


def opened_places(job: SeesawJob, gpu: int) -> tuple[StagePlace, StagePlace] | None:
    """Returns a GPU's places in both layouts, None of one that has none. Every process opens every group, as torch
    asks: collective over all."""
    found: list[StagePlace] = []
    for replica in range(job.replicas):
        first = replica * job.decode.num_gpus
        here = range(first, first + job.decode.num_gpus)
        group = dist.new_group(list(here))
        for degrees in (job.prefill, job.decode):
            stages = [list(here[at : at + degrees.tensor]) for at in range(0, len(here), degrees.tensor)]
            opened = [dist.new_group(stage) if degrees.tensor > 1 else None for stage in stages]
            if gpu in here:
                own = opened[(gpu - first) // degrees.tensor]
                found.append(StagePlace(job.model, degrees, first, gpu, group, own))
    return (found[0], found[1]) if found else None


@dataclass
class _Turns:
    """A micro-batch that decodes. room: tokens that it has room for yet. arriving: sequences that are copied in.
    drawn: (sequences, words, message) of its last pass, whose words are not taken yet."""

    room: int
    running: list[int] = field(default_factory=list)
    arriving: list[tuple[int, "Future[KeptKeys]"]] = field(default_factory=list)
    drawn: tuple[list[int], Tensor, Any] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has nothing to do."""
        return not (self.running or self.arriving or self.drawn)


class SeesawRank:
    """A process of a replica. places: in the layouts that read and decode. tell: what it does, as text."""

    def __init__(
        self,
        job: SeesawJob,
        places: tuple[StagePlace, StagePlace],
        weights: HostWeights,
        keys: HostKeys,
        tell: Callable[[str], None],
    ) -> None:
        self.job, self.places, self.weights, self.keys, self.tell = job, places, weights, keys, tell
        self.tokens: dict[int, list[int]] = {}
        self.prompt: dict[int, int] = {}
        self.spans: dict[int, range] = {}
        self.kept: dict[int, KeptKeys] = {}
        self.stage: PolicyStage | None = None
        self.loads = self.most = 0

    def generate(self, prompts: Sequence[Ints]) -> SeesawReport:
        """Generates a response to each prompt of the replica's share, even and in order. Collective in a replica.

        Raises:
            ValueError: a sequence may become longer than a micro-batch has room for, or a prompt than host memory.
        """
        job = self.job
        mine = np.array_split(np.arange(len(prompts)), job.replicas)[self.places[0].first // job.decode.num_gpus]
        self.tokens = {number: prompts[number].tolist() for number in mine.tolist()}
        self.prompt = {number: len(tokens) for number, tokens in self.tokens.items()}
        longest, room = max(self.prompt.values(), default=0) + job.limit, job.gpu_tokens // job.decode.pipeline
        if longest > room:
            raise ValueError(f"a sequence may have {longest} tokens; a micro-batch has room for {room}")
        numbers, lengths = list(self.tokens), np.array(list(self.prompt.values()), np.int64)
        with ThreadPoolExecutor(1) as copies:
            for first, end in buffer_fills(lengths, job.host_tokens):
                begins = np.concatenate([[0], lengths[first:end].cumsum()]).tolist()
                self.spans = {numbers[first + at]: range(*begins[at : at + 2]) for at in range(end - first)}
                self._load(self.places[0])
                self._prefill(numbers[first:end], copies)
                left = deque(number for number in numbers[first:end] if not self._has_ended(number))
                if left:
                    self._load(self.places[1])
                    self._decode(left, copies)
        found = {number: np.array(tokens, np.int64) for number, tokens in self.tokens.items()}
        return SeesawReport(found, self.loads, self.weights.copied, self.keys.written, self.keys.read, self.most)

    # -- inside ---------------------------------------------------------------------------------------
    def _load(self, place: StagePlace) -> None:
        """Takes up a layout, unless it is the one that is there."""
        if self.stage is not None and self.stage.place.degrees == place.degrees:
            return
        self.tell(f"loading weights of layout {place.degrees}")
        self.stage = None  # lets go of the other ones before there is memory for these
        self.stage = PolicyStage.loaded(place, self.weights)
        self.loads += 1

    def _prefill(self, numbers: Sequence[int], copies: ThreadPoolExecutor) -> None:
        """Reads prompts; each pass's keys and values are copied out behind the next ones."""
        assert self.stage is not None, "a layout is loaded"
        leaving = deque[tuple[Future[None], int]]()
        words, room = torch.zeros(len(numbers), dtype=torch.int64), self.job.gpu_tokens
        lengths = np.array([self.prompt[number] for number in numbers], np.int64)
        for some in prompt_passes(lengths, min(self.job.pass_tokens, self.job.gpu_tokens)):
            own, tokens = numbers[some], int(lengths[some].sum())
            self.tell(f"reading {with_noun(len(own), 'prompt')}")
            while room < tokens:
                done, freed = leaving.popleft()
                done.result()
                room += freed
            kept = [KeptKeys() for _ in own]
            logits = self.stage.logits([self.tokens[number] for number in own], kept)
            leaving.append((copies.submit(self._put, own, kept), tokens))
            room -= tokens
            if logits is not None:
                words[some] = self._words(own, logits)
        for done, _ in leaving:
            done.result()
        self.stage.end()
        place = self.stage.place
        dist.broadcast(words, place.teller, place.group)
        for number, word in zip(numbers, words.tolist(), strict=True):
            self.tokens[number].append(word)
        dist.barrier(place.group)  # all have written before anyone reads

    def _decode(self, waiting: deque[int], copies: ThreadPoolExecutor) -> None:
        """Decodes sequences to their ends, micro-batches in turns."""
        assert self.stage is not None, "a layout is loaded"
        place = self.stage.place
        count = place.degrees.pipeline
        batches = [_Turns(self.job.gpu_tokens // count) for _ in range(count)]
        while waiting or not all(one.is_done for one in batches):
            for one in batches:
                self._take_words(one)
                self._join(one)
                while waiting and self._whole(waiting[0]) <= one.room:
                    number = waiting.popleft()
                    one.room -= self._whole(number)
                    one.arriving.append((number, copies.submit(self._fetch, number)))
                if not one.running:
                    self._join(one)
                self.most = max(self.most, sum(len(each.running) for each in batches))
                if one.running:
                    self._pass(one)
        self.stage.end()
        dist.barrier(place.group)  # all have read before anyone writes again

    def _join(self, one: _Turns) -> None:
        """Takes in sequences whose copies were begun."""
        for number, copied in one.arriving:
            self.kept[number] = copied.result()
            one.running.append(number)
        one.arriving = []

    def _pass(self, one: _Turns) -> None:
        """Decodes a token of each sequence; its word is told when the micro-batch has its next turn."""
        assert self.stage is not None, "a layout is loaded"
        self.tell(f"decoding {with_noun(len(one.running), 'sequence')}")
        place = self.stage.place
        new = [self.tokens[number][-1:] for number in one.running]
        logits = self.stage.logits(new, [self.kept[number] for number in one.running])
        words, message = torch.zeros(len(one.running), dtype=torch.int64), None
        if place.gpu == place.teller:
            assert logits is not None, "the last stage makes words"
            words[:] = self._words(one.running, logits)
            message = dist.broadcast(words, place.teller, place.group, async_op=True)
        one.drawn = list(one.running), words, message

    def _take_words(self, one: _Turns) -> None:
        """Appends the words of the last pass, and lets go of sequences that have ended."""
        if one.drawn is None:
            return
        assert self.stage is not None, "a layout is loaded"
        numbers, words, message = one.drawn
        if message is None:
            dist.broadcast(words, self.stage.place.teller, self.stage.place.group)
        else:
            message.wait()
        for number, word in zip(numbers, words.tolist(), strict=True):
            self.tokens[number].append(word)
            if self._has_ended(number):
                one.running.remove(number)
                one.room += self._whole(number)
                del self.kept[number]
        one.drawn = None

    def _words(self, numbers: Sequence[int], logits: Tensor) -> Tensor:
        """Draws a word of each sequence, by a generator of its own that goes on where its last word was drawn."""
        found = []
        for number, row in zip(numbers, logits, strict=True):
            rng = generator_of(self.job.seed, 0, number)
            rng.random(len(self.tokens[number]) - self.prompt[number])
            found.append(sampled(row, rng)[0])
        return torch.tensor(found)

    def _put(self, numbers: Sequence[int], kept: Sequence[KeptKeys]) -> None:
        for number, one in zip(numbers, kept, strict=True):
            for layer, own in one.layers.items():
                self.keys.put(self.spans[number], layer, self.places[0].heads, own)

    def _fetch(self, number: int) -> KeptKeys:
        place = self.places[1]
        return KeptKeys({layer: self.keys.take(self.spans[number], layer, place.heads) for layer in place.layers})

    def _has_ended(self, number: int) -> bool:
        tokens, prompt = self.tokens[number], self.prompt[number]
        return tokens[-1] == END or len(tokens) - prompt >= self.job.limit

    def _whole(self, number: int) -> int:
        return self.prompt[number] + self.job.limit
