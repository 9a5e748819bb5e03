"""Makes and checks combinations of a system, a model and a cluster of conf/. An edge: hydra."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product, zip_longest
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from zbench import CONF
from zbench.console.signals import stop_in
from zbench.correctness.adversarial import KINDS, adversarial_batches
from zbench.correctness.cover import Combination
from zbench.correctness.reference.step_check import check_step
from zbench.correctness.strategy_choices import StrategyChoice, StrategyChoices, choice_cover
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import check_memory
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.run.choices import choices, missing_package
from zbench.run.system import make_system
from zbench.run.target import from_yaml, make_model, make_strategy

GROUPS = ("system", "model", "cluster")
CHUNKS_A_GPU = 2  # of a batch, where chunks are cut: at least, where no GPU has fewer tokens than others
Made = TypeVar("Made")
_SENTENCE = re.compile(r"(system|model|cluster|sharding|parallel)[\w.]* is [^\n]+[;,] [^\n]+")


@dataclass(frozen=True, slots=True)
class CombinationVerdict:
    """The verdict on a combination that was checked. choice: of a strategy, None as the model has it.
    fitting, too_large: how many batches were as they should be, and fitted the described GPUs' memory or did not.
    refused: the sentence with which zbench says that it cannot be, "" if it can. skipped: the package that the system
    needs and that is not installed. failures: what is wrong, batch by batch."""

    combination: Combination
    fitting: int = 0
    too_large: int = 0
    refused: str = ""
    skipped: str = ""
    failures: tuple[str, ...] = ()
    choice: StrategyChoice | None = None


@dataclass(slots=True)
class Combinations:
    """Reads conf/ once and makes combinations' parts from it. tokens_per_gpu, seed: of the batches that are tried.
    names: those of each of GROUPS that are wanted, in that order; none: all. most_nodes: clusters of more nodes are
    tried with this many; None: all are tried as their yamls have them."""

    tokens_per_gpu: int
    seed: int = 0
    names: Sequence[Sequence[str]] = ()
    most_nodes: int | None = None
    systems: Mapping[str, DictConfig] = field(init=False)
    costs: Mapping[tuple[str, str], Cost | str] = field(init=False)
    strategies: Mapping[str, TrainingStrategy] = field(init=False)
    strategy_choices: StrategyChoices = field(init=False)
    _possible: dict[tuple[str, str], list[StrategyChoice]] = field(default_factory=dict, init=False)
    _factories: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        found: dict[str, dict[str, DictConfig]] = {group: {} for group in GROUPS}
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            for row in zip_longest(*(self.names or map(choices, GROUPS))):
                chosen = {group: name for group, name in zip(GROUPS, row, strict=True) if name}
                config = compose("config", [f"{group}={name}" for group, name in chosen.items()])
                if self.most_nodes is not None:
                    config.cluster.num_nodes = min(config.cluster.num_nodes, self.most_nodes)
                for group, name in chosen.items():
                    found[group][name] = config
        self.systems = found["system"]
        self.strategy_choices = StrategyChoices.of(max(self.tokens_per_gpu // CHUNKS_A_GPU, 1))
        self.strategies = {model: make_strategy(config) for model, config in found["model"].items()}
        models: dict[str, Model | str] = {
            name: _made(partial(make_model, config, strategy=self.strategies[name]))
            for name, config in found["model"].items()
        }
        clusters: dict[str, Cluster | str] = {
            name: _made(partial(instantiate, config.cluster, _convert_="all"))
            for name, config in found["cluster"].items()
        }
        pairs = product(models.items(), clusters.items())
        self.costs = {(model, cluster): _cost(a, b) for (model, a), (cluster, b) in pairs}

    def can_be(self, model: str, cluster: str) -> bool:
        """Returns whether there is a cost model of this model on this cluster."""
        return isinstance(self.costs[model, cluster], Cost)

    def choices(self, combinations: Sequence[Combination]) -> dict[Combination, StrategyChoice]:
        """Returns which recomputation, memory, experts' GPUs and schedule each combination is tried with, all of them
        for every system; none for one that cannot be."""
        return choice_cover(combinations, self._choices_of, self._can_have, self.seed)

    def _can_have(self, combination: Combination, choice: StrategyChoice) -> bool:
        cost = self.costs[combination.model, combination.cluster]
        strategy = self.strategies[combination.model]
        return isinstance(cost, Cost) and self.strategy_choices.can_be(cost, strategy, choice)

    def _choices_of(self, combination: Combination) -> list[StrategyChoice]:
        pair = combination.model, combination.cluster
        if pair not in self._possible:
            cost = self.costs[pair]
            strategy = self.strategies[combination.model]
            self._possible[pair] = [] if isinstance(cost, str) else self.strategy_choices.possible(cost, strategy)
        return self._possible[pair]

    def check(
        self, combination: Combination, kinds: Sequence[str] = KINDS, choice: StrategyChoice | None = None
    ) -> CombinationVerdict:
        """Tries a batch of each of `kinds` on a combination, and returns the verdict. choice: one that it can have;
        None: as the model's yaml has it."""
        cost = self.costs[combination.model, combination.cluster]
        if isinstance(cost, str):
            return _refused(combination, cost)
        strategy = USUAL_STRATEGY
        if choice is not None:
            cost, strategy = self.strategy_choices.made(cost, self.strategies[combination.model], choice)
        if package := missing_package(combination.system):
            return CombinationVerdict(combination, skipped=package)
        make = partial(make_system, self.systems[combination.system], cost, partial(self._factory, combination.system))
        try:
            system = make()
        except ValueError as error:
            return _refused(combination, str(error))
        fitting, too_large = 0, 0
        failures: list[str] = []
        batches = adversarial_batches(cost, self.tokens_per_gpu, self.seed)
        for kind in kinds:
            try:
                checked = check_step(system, make, cost, batches[kind], strategy)
            except Exception as error:  # whatever a system raises on a batch is what is looked for
                if stop_in(error):
                    raise KeyboardInterrupt from error
                failures.append(f"batch {kind}: {type(error).__name__}: {error}")
                continue
            failures += [f"batch {kind}: {fault}" for fault in checked.faults]
            fitting += not checked.faults and not checked.memory
            too_large += not checked.faults and bool(checked.memory)
        return CombinationVerdict(combination, fitting, too_large, failures=tuple(failures), choice=choice)

    def _factory(self, system: str, config: Mapping[str, Any], group: str) -> Callable[..., Any]:
        """Returns what makes a group's part of a system's configuration: hydra resolves it once, which takes half as
        long as a check."""
        if (system, group) not in self._factories:
            self._factories[system, group] = from_yaml(config, group)
        return self._factories[system, group]


def _made(make: Callable[[], Made]) -> Made | str:
    """Returns what a yaml makes, or the sentence that says why it makes nothing."""
    try:
        return make()
    except ValueError as error:
        return str(error)


def _cost(model: Model | str, cluster: Cluster | str) -> Cost | str:
    """Returns the cost model, or the sentence that says why there is none."""
    if isinstance(cluster, str):
        return cluster
    if isinstance(model, str):
        return model
    try:
        cost = make_cost(cluster, model)
        check_memory(cost)
    except ValueError as error:
        return str(error)
    return cost


def _refused(combination: Combination, told: str) -> CombinationVerdict:
    if _SENTENCE.fullmatch(told):
        return CombinationVerdict(combination, refused=told)
    return CombinationVerdict(combination, failures=(f"it is refused in words that name no key and its value: {told}",))
