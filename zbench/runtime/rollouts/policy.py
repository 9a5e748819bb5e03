"""A GPU's slice of a policy, of all its layers or of a stage's, and the responses that its tensor-parallel group
generates with keys and values kept.

All GPUs of a group have the same logits to the bit, as sums are reduced once and then handed round, so all of them draw
the same tokens. A prompt is read at once; after it each sequence goes on by a token a pass until it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.describe.arrays import Floats, Ints
from zbench.describe.model import Model
from zbench.describe.units import with_noun
from zbench.rollouts.experience import Rollout
from zbench.runtime.kernels.elementwise import gated, normed, rotate
from zbench.runtime.rollouts.sampling import END, generator_of, likeliest, sampled
from zbench.runtime.training.transformer import rope


@dataclass
class KeptKeys:
    """The keys and values of a sequence's tokens, [tokens, 2, kv heads, their dimension], by layer."""

    layers: dict[int, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.layers.values()))) if self.layers else 0

    def append(self, layer: int, more: Tensor) -> Tensor:
        """Adds tokens to a layer and returns all that it has."""
        before = self.layers.get(layer)
        self.layers[layer] = more if before is None else torch.cat([before, more])
        return self.layers[layer]


class PassWatch(Protocol):
    """A watch of a group's sequences from pass to pass, while they are generated."""

    def after_pass(self, ended: Mapping[int, Rollout], live: Sequence[int]) -> Sequence[int]:
        """Is told what has ended in a pass, by number, and what is live; returns what of it goes on."""


@dataclass(frozen=True)
class PolicySlice:
    """A GPU's slice of a policy. weight: by its name in a step and its layer, the GPU's slice. part: which one it is.
    group: the GPUs of all slices, None where there is one. stage: the layers that the GPU has, None: all."""

    model: Model
    weight: Callable[[str, int], Tensor]
    part: int
    group: Any
    stage: range | None = None

    def responses(
        self,
        prompts: Mapping[int, Ints],
        limit: int,
        drawn: tuple[int, int] | None,
        tell: Callable[[str], None],
        watch: PassWatch | None = None,
    ) -> dict[int, Rollout]:
        """Returns responses to prompts, by number. limit: of tokens of a response. drawn: the seed and the iteration
        that tokens are drawn with; None: each is the likeliest. watch: that may end some before their time."""

        def rollout(number: int) -> Rollout:
            return Rollout(np.array(found[number], np.int64), len(prompts[number]), np.array(likelihoods[number]))

        found = {number: prompt.tolist() for number, prompt in prompts.items()}
        likelihoods: dict[int, list[float]] = {number: [] for number in prompts}
        kept = {number: KeptKeys() for number in prompts}
        draws = {number: generator_of(*drawn, number) for number in prompts} if drawn is not None else {}
        live, length = list(prompts), 0
        while live:
            tell(f"generating token {length} of {with_noun(len(live), 'sequence')}")
            new = [found[number][len(kept[number]) :] for number in live]
            logits = self.logits(new, [kept[number] for number in live])
            for number, row in zip(live, logits, strict=True):
                token, likelihood = sampled(row, draws[number]) if draws else likeliest(row)
                found[number].append(token)
                likelihoods[number].append(likelihood)
            length += 1
            ended = [number for number in live if found[number][-1] == END or length == limit]
            live = [number for number in live if number not in ended]
            if watch is not None:
                live = list(watch.after_pass({number: rollout(number) for number in ended}, live))
        return {number: rollout(number) for number in prompts}

    def likelihoods(self, of: Rollout) -> Floats:
        """Returns the negative log-likelihood of each token of a response, by a pass of the whole sequence."""
        read = of.tokens[:-1].tolist()
        hidden = self.through(self.embedded([read]), [len(read)], [KeptKeys()])
        logs = self._head(hidden[of.prompt - 1 :]).double().log_softmax(1)
        found: Floats = -logs.gather(1, torch.from_numpy(of.response)[:, None])[:, 0].numpy()
        return found

    def logits(self, new: Sequence[Sequence[int]], kept: Sequence[KeptKeys]) -> Tensor:
        """Returns the logits after the last of the new tokens of each sequence, [sequences, words]."""
        counts = [len(tokens) for tokens in new]
        return self.words(self.through(self.embedded(new), counts, kept), counts)

    def embedded(self, new: Sequence[Sequence[int]]) -> Tensor:
        """Returns the embedding of the new tokens of all sequences, [tokens, hidden]."""
        tokens, table = torch.tensor([token for some in new for token in some]), self.weight("we", 0)
        words = tokens - self.part * len(table)
        here = (words >= 0) & (words < len(table))
        return self._summed(table[torch.where(here, words, 0)] * here[:, None])

    def through(self, x: Tensor, counts: list[int], kept: Sequence[KeptKeys]) -> Tensor:
        """Returns what the layers here make of x [tokens, hidden]. counts: new tokens of each sequence."""
        before = [len(one) for one in kept]
        at = [torch.arange(begin, begin + count) for begin, count in zip(before, counts, strict=True)]
        turns = rope(torch.cat(at), self.model.head_dim)
        for layer in range(self.model.num_layers) if self.stage is None else self.stage:
            x = self._layer(layer, x, turns, counts, kept)
        return x

    def words(self, x: Tensor, counts: list[int]) -> Tensor:
        """Returns the logits after the last new token of each sequence, [sequences, words]. x: behind all layers."""
        return self._head(x[torch.tensor(counts).cumsum(0) - 1])

    def _head(self, x: Tensor) -> Tensor:
        """Returns the logits of all words after tokens x [tokens, hidden]."""
        mine = normed(x, self.weight("gl", 0)) @ self.weight("wh", 0).T
        if self.group is None:
            return mine
        every = [torch.empty_like(mine) for _ in range(self.group.size())]
        dist.all_gather(every, mine.contiguous(), self.group)
        return torch.cat(every, 1)

    def _layer(
        self, layer: int, x: Tensor, turns: tuple[Tensor, Tensor], counts: list[int], kept: Sequence[KeptKeys]
    ) -> Tensor:
        def weight(name: str) -> Tensor:
            return self.weight(name, layer)

        n = normed(x, weight("g1"))
        q = rotate(torch.einsum("tc,hdc->thd", n, weight("wq")), *turns)
        kv = torch.einsum("tc,gkdc->tkgd", n, weight("wkv"))
        kv = torch.stack((rotate(kv[:, 0], *turns), kv[:, 1]), 1)
        o = [
            _attended(own, one.append(layer, more))
            for own, more, one in zip(q.split(counts), kv.split(counts), kept, strict=True)
        ]
        y = x + self._summed(torch.einsum("thd,hdc->tc", torch.cat(o), weight("wo")))
        z = torch.einsum("tc,kfc->tkf", normed(y, weight("g2")), weight("wz"))
        return y + self._summed(gated(z.flatten(1)) @ weight("wd"))

    def _summed(self, x: Tensor) -> Tensor:
        """Returns the sum of what the slices have."""
        if self.group is not None:
            dist.all_reduce(x, group=self.group)
        return x


def _attended(q: Tensor, kv: Tensor) -> Tensor:
    """Returns the causal attention of a sequence's last tokens, q [t, heads, d], to all of its tokens, kv [s, 2, kv
    heads, d]."""
    spread = kv.repeat_interleave(q.shape[1] // kv.shape[2], 2)
    scores = torch.einsum("thd,shd->hts", q, spread[:, 0]) / q.shape[2] ** 0.5
    later = torch.arange(len(kv)) > torch.arange(len(kv) - len(q), len(kv))[:, None]
    chances = scores.masked_fill(later, -torch.inf).softmax(2)
    return torch.einsum("hts,shd->thd", chances, spread[:, 1])
