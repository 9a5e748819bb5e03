"""A GPU's place in a pipeline of stages that generate: what it gets from the stage before, and whom it sends to."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.describe.model import Model
from zbench.rollouts.degrees import GenerateDegrees
from zbench.runtime.rollouts.host_memory import HostWeights
from zbench.runtime.rollouts.policy import KeptKeys, PolicySlice
from zbench.runtime.stepping.weights import OUTSIDE


@dataclass
class StagePlace:
    """The place of a GPU in a replica's layout. first: the replica's first GPU; group: all of them; own: those of its
    stage, None where it is alone. number: of the stage; part: of the slice."""

    model: Model
    degrees: GenerateDegrees
    first: int
    gpu: int
    group: Any
    own: Any

    @property
    def number(self) -> int:
        """The number of the stage."""
        return (self.gpu - self.first) // self.degrees.tensor

    @property
    def part(self) -> int:
        """The number of the slice of its layers."""
        return (self.gpu - self.first) % self.degrees.tensor

    @property
    def layers(self) -> range:
        """The layers of the stage."""
        count = self.model.num_layers // self.degrees.pipeline
        return range(self.number * count, (self.number + 1) * count)

    @property
    def heads(self) -> range:
        """The kv heads of the slice."""
        count = self.model.num_kv_heads // self.degrees.tensor
        return range(self.part * count, (self.part + 1) * count)

    @property
    def is_last(self) -> bool:
        """Whether it is of the stage that makes words."""
        return self.number == self.degrees.pipeline - 1

    @property
    def teller(self) -> int:
        """The GPU that draws words and tells them to all: the first one of the last stage."""
        return self.first + self.degrees.num_gpus - self.degrees.tensor


@dataclass
class PolicyStage:
    """A stage of a policy with its weights. sent: messages to the next stage that may be under way yet."""

    place: StagePlace
    slice: PolicySlice
    sent: list[tuple[Any, Tensor]] = field(default_factory=list)

    @staticmethod
    def loaded(place: StagePlace, host: HostWeights) -> "PolicyStage":
        """Copies the weights of a place out of host memory."""
        names = [(name, layer) for layer in place.layers for name in ("g1", "wq", "wkv", "wo", "g2", "wz", "wd")]
        names += [("we", 0)] if place.number == 0 else []
        names += [("gl", 0), ("wh", 0)] if place.is_last else []
        cut = place.part, place.degrees.tensor
        held = {(name, layer): host.slice_of(name, layer, *cut) for name, layer in names}

        def weight(name: str, layer: int) -> Tensor:
            return held[name, 0 if name in OUTSIDE else layer]

        return PolicyStage(place, PolicySlice(place.model, weight, place.part, place.own, place.layers))

    def logits(self, new: list[list[int]], kept: list[KeptKeys]) -> Tensor | None:
        """Runs a micro-batch; returns the logits after the last new token of each sequence, None of stages that make no
        words. Collective in a stage; the same micro-batches in the same order on all stages."""
        counts, place = [len(tokens) for tokens in new], self.place
        if place.number == 0:
            x = self.slice.embedded(new)
        else:
            norm = self.slice.weight("g1", place.layers.start)
            x = torch.empty(sum(counts), place.model.hidden, dtype=norm.dtype)
            dist.recv(x, place.gpu - place.degrees.tensor, place.group)
        x = self.slice.through(x, counts, kept)
        if place.is_last:
            return self.slice.words(x, counts)
        self.sent = [(message, held) for message, held in self.sent if not message.is_completed()]
        self.sent.append((dist.isend(x, place.gpu + place.degrees.tensor, place.group), x))
        return None

    def end(self) -> None:
        """Waits until all messages are gone."""
        for message, _ in self.sent:
            message.wait()
        self.sent = []
