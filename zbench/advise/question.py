"""The question: whose lengths, on which cluster, which model, in which framework. An edge: hydra composes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.console.overrides import added, check_choices
from zbench.console.sentence import not_among
from zbench.describe.arrays import Ints
from zbench.describe.model import NONE, SHARDING, WHOLE
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN
from zbench.describe.strategies.strategy_keys import with_model_fields
from zbench.describe.strategy import ADAPTIVE, STRATEGY_GROUPS
from zbench.describe.units import with_noun
from zbench.describe.worlds import NOMINAL, World
from zbench.run.checks.yaml_units import check_units
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.target import from_yaml, make_part
from zbench.simulated.executor import Simulated
from zbench.simulated.known_steps import KnownSteps
from zbench.workloads.read_lengths import read_lengths
from zbench.workloads.rl_traces import RLTracesFile

BATCHES = 6  # by default; with fewer than 3 there is no interval
FRAMEWORKS = ("none", "megatron", "verl", "torchtitan")
SYSTEMS = ("nodewise", "flexsp", "zeppelin", "usp", "magi_dispatch")  # played whatever the framework is
BASELINE = "static_best"
MOST_KNOWN = 256  # steps that are kept to be played in other worlds
_USUAL = ("none", "sequential", "every_step", "causal")  # choices with which a framework does nothing of its own
# Settings, as of a run.
TAKEN = ("cluster", "model", *STRATEGY_GROUPS, "mask", "tokens_per_gpu", "seed", "steps", "workload")


@dataclass(frozen=True, slots=True)
class Question:
    """The question that an answer is to: a run's configuration with the lengths for its workload.

    path: of the lengths. lengths: int64 [n], tokens of every sequence in the file. framework: one of FRAMEWORKS.
    systems: played besides the framework's own. words: the settings as they were given. made: parts that were made so
    far, by world and keys of the model. known: steps of all of them.
    """

    path: str
    lengths: Ints
    framework: str
    systems: Sequence[str]
    words: Sequence[str]
    config: DictConfig
    made: dict[str, Parts] = field(default_factory=dict)
    known: KnownSteps = field(default_factory=lambda: KnownSteps(MOST_KNOWN))

    @property
    def settings(self) -> Settings:
        """The top-level keys, of which `steps` is the number of batches."""
        return Settings.of(self.config)

    @property
    def longest(self) -> int:
        """The most tokens that a sequence of a batch has."""
        return min(int(self.lengths.max()), int(self.config["workload"]["context_limit"]))

    @property
    def without_flags(self) -> list[str]:
        """The settings, as they were given, that are played and that no framework's flags say."""
        return [word for word in self.words if not _has_flags(*word.lstrip("+").split("=", 1))]

    def with_system(self, name: str) -> DictConfig:
        """Returns the configuration of a run with a system of conf/system."""
        config = self.config.copy()
        config["system"] = _yaml("system", name)
        return config

    def system_config(self, name: str, keys: Mapping[str, Any]) -> DictConfig:
        """Returns as much of a configuration as a system of conf/system is made of, some of its keys changed."""
        limit = {"context_limit": self.config["workload"]["context_limit"]}  # which systems' yamls refer to
        return OmegaConf.create({"workload": limit, "system": OmegaConf.merge(_yaml("system", name), dict(keys))})

    def parts(self, model: Mapping[str, Any] | None = None, world: str = NOMINAL) -> Parts:
        """Returns the parts of a run, made once. model: keys of the model, changed. world: of conf/world.

        Raises:
            ValueError: one of them cannot be.
        """
        name = f"{world} {sorted((model or {}).items())}"
        if name not in self.made:
            self.made[name] = self._parts(model or {}) if world == NOMINAL else self._world(model or {}, world)
        return self.made[name]

    def world(self, name: str) -> World:
        """Returns a world of conf/world."""
        world: World = make_part(from_yaml, OmegaConf.create({"world": _yaml("world", name)}), "world")
        return world

    def _parts(self, model: Mapping[str, Any]) -> Parts:
        config = self.config.copy()
        for group, keys in with_model_fields(config, model).items():
            config[group] = keys
        parts = Parts.of(config, self.settings)
        assert isinstance(parts.executor, Simulated), "advice is simulated"
        return replace(parts, executor=replace(parts.executor, known=self.known))

    def _world(self, model: Mapping[str, Any], name: str) -> Parts:
        """Returns the nominal parts as they are in another world."""
        nominal, world = self.parts(model), self.world(name)
        machine = world.of(nominal.nominal)
        cost = nominal.cost_of(*machine)
        executor = replace(nominal.executor, cost=cost)  # type: ignore[type-var]
        return replace(
            nominal, world=world, cluster=machine.cluster, model=machine.model, cost=cost, seen=cost, executor=executor
        )


def _has_flags(key: str, value: str) -> bool:
    """Returns whether a setting is no matter of flags, or is in those that frameworks are told (zbench.advise.framework
    has the model's sharding, recomputation, tensor parallelism and stages)."""
    if key == "sharding":
        return value in SHARDING
    group = key.partition(".")[0]
    own = group in ("memory", "overlap", "experts", "sync", "mask", "sharding") or key.startswith("parallel.expert")
    return not own or value in _USUAL or key == "sharding.strategy"


def _yaml(group: str, name: str) -> Any:
    return OmegaConf.load(CONF / group / f"{name}.yaml")


def read_question(path: str, words: Sequence[str]) -> Question:
    """Returns the question of a file of lengths and of settings, as in cluster=a800_4x8.

    Raises:
        ValueError: the file holds no lengths, a setting is none of TAKEN, or has a value that cannot be.
    """
    own = {"framework": FRAMEWORKS[0], "systems": ",".join(SYSTEMS)}
    settings = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in own:
            own[key] = value
        else:
            settings.append(_setting(word))
    if own["framework"] not in FRAMEWORKS:
        raise ValueError(not_among("framework", own["framework"], FRAMEWORKS))
    config = _composed(settings)
    check_units(config.get("cluster"), config.get("world"), config.get("job"))
    again = config["recompute"]["granularity"]
    for key, value, usual in (
        ("memory.mlp_chunk_tokens", config["memory"]["mlp_chunk_tokens"], WHOLE),
        ("memory.offload", config["memory"]["offload"], NONE),
        ("memory.parameter_layers", config["memory"]["parameter_layers"], NONE),
        ("recompute.layers", config["recompute"].get("layers", ALL_LAYERS), ALL_LAYERS),
        ("parallel.stage_layers", config["parallel"].get("stage_layers", EVEN), EVEN),
        ("recompute.granularity", again, "none, selective or full" if again == ADAPTIVE else again),
    ):
        if value != usual:
            raise ValueError(f"{key} is {value}; advice has no flags that say it, so it takes {usual}")
    lengths = _lengths(path, config["workload"])
    _fill(config, path, lengths, settings)
    question = Question(path, lengths, own["framework"], _systems(own["systems"]), tuple(words), config)
    _check_batch(question)
    return question


def _setting(word: str) -> str:
    """Returns a setting that a run takes, too.

    Raises:
        ValueError: it is none of TAKEN.
    """
    key, equals, _ = word.partition("=")
    group = key.lstrip("+").partition(".")[0].partition("/")[0].partition("@")[0]
    if not equals or group not in TAKEN or key.lstrip("+") in ("workload", "workload.path"):
        raise ValueError(
            f"{word!r} is no setting of zbench advise; it takes framework=, systems=, cluster=, model=, "
            f"{'=, '.join(STRATEGY_GROUPS)}=, mask=, tokens_per_gpu=, seed=, steps= (the number of batches), and keys "
            "such as cluster.num_nodes=8, parallel.tensor_parallel=2, workload.field=length"
        )
    return word


def _composed(settings: Sequence[str]) -> DictConfig:
    """Composes the configuration of a run over a file of lengths, simulated."""
    check_choices(list(settings), (path.name for path in CONF.iterdir() if path.is_dir()))
    jobs = [word.partition("=")[2] for word in settings if word.lstrip("+").startswith("job=")]
    kind = "lengths_file" if set(jobs) <= {"training"} else "rl_traces_file"
    usual = [f"workload={kind}", "executor=simulated", "tracker=none", f"steps={BATCHES}"]
    with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        config = hydra.compose("config", [*usual, *map(added, settings)])
    OmegaConf.set_struct(config, False)
    return config


def _fill(config: DictConfig, path: str, lengths: Ints, settings: Sequence[str]) -> None:
    """Names the file in the configuration, and lets its longest sequence through unless a limit was given."""
    config["workload"]["path"] = path
    if not any(word.lstrip("+").startswith("workload.context_limit=") for word in settings):
        config["workload"]["context_limit"] = int(lengths.max())


def _lengths(path: str, workload: Mapping[str, Any]) -> Ints:
    """Reads the lengths, of prompts and responses together where the workload has both; what is wrong is told of
    LENGTHS and not of the workload's key."""
    try:
        if "field" in workload:
            return read_lengths(path, str(workload["field"]))
        keys = {name: workload[name] for name in ("prompt_field", "response_field", "context_limit")}
        return RLTracesFile(0, 1, path, **keys).lengths
    except ValueError as error:
        told = str(error).replace(" (workload.path=FILE)", "").replace("workload.path is", "LENGTHS is")
        raise ValueError(told) from error


def _systems(words: str) -> tuple[str, ...]:
    """Reads systems=nodewise,usp.

    Raises:
        ValueError: one is unknown, or is the baseline, which is played anyway.
    """
    known = {path.stem for path in (CONF / "system").glob("*.yaml")} - {BASELINE}
    names = tuple(dict.fromkeys(name.strip() for name in words.strip("[]").split(",")))
    for name in names:
        if name not in known:
            raise ValueError(not_among("systems", name, sorted(known)))
    return names


def _check_batch(question: Question) -> None:
    """Refuses a sequence that no batch could hold whole.

    Raises:
        ValueError: the longest has more tokens than a batch.
    """
    parts, longest = question.parts(), question.longest
    gpus = parts.cluster.num_ranks
    if longest > parts.tokens:
        raise ValueError(
            f"LENGTHS has a sequence of {longest:,} tokens, and tokens_per_gpu={question.settings.tokens_per_gpu} on "
            f"{with_noun(gpus, 'GPU')} makes batches of {parts.tokens:,}; it takes "
            f"tokens_per_gpu={-(-longest // gpus)} or more, or workload.context_limit=, which cuts sequences"
        )
