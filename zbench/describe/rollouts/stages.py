"""The stages of an iteration of rollouts by algorithm, and which of its models share GPUs. Pure data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

NO_ROLLOUTS = "none"  # a training step alone
ACTOR = "actor"  # the model that generates
GREEDY = "_of_greedy"  # behind the name of a model, of its score of greedy responses
PLACEMENTS = COLOCATE, SPLIT, STANDALONE = ("colocate", "split", "standalone")
_WITH_ACTOR = (ACTOR, "reference")  # of a split placement


@dataclass(frozen=True, slots=True)
class IterationStages:
    """The stages of an iteration. generations: how often the actor generates from every prompt. scores: models that
    read all sequences once, forward alone. trains: models that are trained on them."""

    generations: int
    scores: tuple[str, ...]
    trains: tuple[str, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The models of an iteration, each once, the actor first."""
        return tuple(dict.fromkeys([ACTOR, *map(_read_by, self.scores), *self.trains]))

    def reads(self, model: str) -> int:
        """Returns how often a model reads all sequences to score them."""
        return [_read_by(one) for one in self.scores].count(model)


def _read_by(score: str) -> str:
    """Returns the model that a score is of."""
    return score.removesuffix(GREEDY)


def placed_sets(placement: str, models: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the sets of models that share GPUs, the actor's first: in one, COLOCATE (as DeepSpeed-Chat has them); the
    actor and the reference apart from all others, SPLIT (NeMo-Aligner); each by itself, STANDALONE (OpenRLHF)."""
    if placement == STANDALONE:
        return tuple((one,) for one in models)
    with_actor = tuple(one for one in models if placement == COLOCATE or one in _WITH_ACTOR)
    others = tuple(one for one in models if one not in with_actor)
    return (with_actor, others) if others else (with_actor,)


# By algorithm. The data flow of the first three: HybridFlow (arXiv 2409.19256), figure 1, from memory; GRPO:
# DeepSeekMath (arXiv 2402.03300), section 4.1, which has no critic. ReMax (arXiv 2310.10505) takes the reward of a
# greedy response to the same prompt for its baseline.
ALGORITHMS: Mapping[str, IterationStages] = MappingProxyType({
    NO_ROLLOUTS: IterationStages(0, (), ("actor",)),
    "ppo": IterationStages(1, ("reference", "reward", "critic"), ("actor", "critic")),
    "remax": IterationStages(2, ("reference", "reward", "reward_of_greedy"), ("actor",)),
    "safe_rlhf": IterationStages(1, ("reference", "reward", "cost", "critic"), ("actor", "critic")),
    "grpo": IterationStages(1, ("reference", "reward"), ("actor",)),
})  # fmt: skip
