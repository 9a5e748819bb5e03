"""Layouts that generation changes between on processes, and what each process loads and copies, by arithmetic of its
own. No torch, which the driver is to be without."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.correctness.loop.cases import POLICY
from zbench.describe.arrays import Ints
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.weights import step_weights
from zbench.runtime.rollouts.seesaw_job import SeesawJob

FOUR_LAYERS = replace(POLICY, num_layers=4)  # a stage each on four processes
PROMPTS, LONGEST = 14, 8
LIMIT = 20  # tokens of a response
HOST_TOKENS = 24  # so that host memory is full several times
PASS_TOKENS = 8
IN_A_BATCH = 2  # sequences that each micro-batch has room for


@dataclass(frozen=True)
class SeesawCase:
    """A pair of layouts. replicas: that follow one another."""

    prefill: GenerateDegrees
    decode: GenerateDegrees
    replicas: int

    def __str__(self) -> str:
        return f"{self.prefill} to {self.decode}" + (f" x {self.replicas}" if self.replicas > 1 else "")

    def job(self, seed: int) -> SeesawJob:
        """Returns what processes are told."""
        room = self.decode.pipeline * IN_A_BATCH * (LONGEST + LIMIT)
        return SeesawJob(
            FOUR_LAYERS, self.prefill, self.decode, self.replicas, HOST_TOKENS, room, PASS_TOKENS, LIMIT, seed
        )


def seesaw_cases(ranks: int) -> list[SeesawCase]:
    """Lists all pairs of different layouts on up to so many processes, most of them first; on one there is none."""
    found = []
    for each in range(ranks, 1, -1):
        degrees = [GenerateDegrees(each // tensor, tensor) for tensor in (1, 2, 4) if each % tensor == 0]
        fitting = [one for one in degrees if FOUR_LAYERS.num_layers % one.pipeline == 0]
        found += [
            SeesawCase(one, other, replicas)
            for replicas in range(ranks // each, 0, -1)
            for one in fitting
            for other in fitting
            if one != other
        ]
    return found


def seesaw_prompts(seed: int) -> list[Ints]:
    """Draws prompts of 1 to LONGEST tokens."""
    rng = np.random.default_rng([seed, len("seesaw")])
    return [rng.integers(1, FOUR_LAYERS.vocab, int(size)) for size in rng.integers(1, LONGEST + 1, PROMPTS)]


@dataclass(frozen=True)
class ExpectedRank:
    """The loads of weights of a process, and bytes of weights, and of keys and values to the host and from it."""

    loads: int
    weights: int
    written: int
    read: int


def expected_ranks(case: SeesawCase, prompts: Sequence[Ints], tokens: Mapping[int, Ints]) -> list[ExpectedRank]:
    """Returns what each process has to have done. tokens: prompt and response of each sequence, from one process."""
    return list(_expected(case, prompts, tokens))


def _expected(case: SeesawCase, prompts: Sequence[Ints], tokens: Mapping[int, Ints]) -> Iterator[ExpectedRank]:
    model, size = FOUR_LAYERS, case.decode.num_gpus
    token_bytes = 2 * model.num_kv_heads * model.head_dim * model.num_layers * model.element_bytes // size
    for share in np.array_split(np.arange(len(prompts)), case.replicas):
        own = [(len(prompts[number]), len(tokens[number]) > len(prompts[number]) + 1) for number in share]
        loads = decodes = 0
        decoded = True  # the layout that reads prompts is not there yet
        for fill in _fills(own):
            loads, decoded = loads + decoded, any(goes_on for _, goes_on in fill)
            decodes += decoded
        written = token_bytes * sum(prompt for prompt, _ in own)
        read = token_bytes * sum(prompt for prompt, goes_on in own if goes_on)
        for gpu in range(size):
            weights = loads * _weights(case.prefill, gpu) + decodes * _weights(case.decode, gpu)
            yield ExpectedRank(loads + decodes, weights, written, read)


def _fills(own: Sequence[tuple[int, bool]]) -> list[list[tuple[int, bool]]]:
    """Returns sequences, (tokens of the prompt, ...), in the groups that fill host memory."""
    found, room = list[list[tuple[int, bool]]](), 0
    for one in own:
        if one[0] > room:
            found.append([])
            room = HOST_TOKENS
        found[-1].append(one)
        room -= one[0]
    return found


def _weights(layout: GenerateDegrees, gpu: int) -> int:
    """Returns the bytes of weights of a GPU of a layout."""
    model, stage = FOUR_LAYERS, gpu // layout.tensor
    own = [one for one in step_weights(model) if one.layer * layout.pipeline // model.num_layers == stage]
    return model.element_bytes * sum(one.elements // (layout.tensor if one.is_cut else 1) for one in own)
