"""The question: whose lengths, on which cluster, which model, in which framework. An edge: hydra composes it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.console.overrides import check_choices
from zbench.console.sentence import not_among
from zbench.describe.arrays import Ints
from zbench.run.parts import Parts, Settings
from zbench.run.presets import Presets
from zbench.run.written import check_units
from zbench.workloads.read_lengths import read_lengths

BATCHES = 6  # by default; with fewer than 3 there is no interval
FRAMEWORKS = ("none", "megatron", "verl", "torchtitan")
SYSTEMS = ("nodewise", "flexsp", "zeppelin", "usp", "magi_dispatch")  # played whatever the framework is
BASELINE = "static_best"
TAKEN = ("cluster", "model", "mask", "tokens_per_gpu", "seed", "steps", "workload")  # settings, as of a run
_CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Question:
    """The question that an answer is to: a run's configuration with the lengths for its workload, without a system.

    path: of the lengths. lengths: int64 [n], tokens of every sequence in the file. framework: one of FRAMEWORKS.
    systems: played besides the framework's own. words: the settings as they were given. presets: what was composed so
    far, from which other systems and worlds are taken.
    """

    path: str
    lengths: Ints
    framework: str
    systems: Sequence[str]
    words: Sequence[str]
    config: DictConfig
    presets: Presets = field(default_factory=Presets)

    @property
    def settings(self) -> Settings:
        """The top-level keys, of which `steps` is the number of batches."""
        return Settings.of(self.config)

    def with_choice(self, group: str, choice: str) -> "Question":
        """Returns the question with another choice of a group, as its yaml has it."""
        node, _ = self.presets.plain(_CONFIG, group, {group: choice})
        return self._with(group, node)

    def with_keys(self, group: str, keys: Mapping[str, Any]) -> "Question":
        """Returns the question with other values of a group's keys."""
        return self._with(group, OmegaConf.merge(self.config[group], dict(keys))) if keys else self

    def parts(self) -> Parts:
        """Makes the parts of a run.

        Raises:
            ValueError: one of them cannot be.
        """
        return Parts.of(self.config, self.settings)

    def _with(self, group: str, node: Any) -> "Question":
        config = self.config.copy()
        OmegaConf.set_struct(config, False)
        config[group] = node
        return replace(self, config=config)


@contextmanager
def asked(path: str, words: Sequence[str]) -> Iterator[Question]:
    """Yields the question of a file of lengths and of settings, as in cluster=a800_4x8; other choices can be composed
    until it ends.

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
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        config = _composed(settings)
        lengths = _lengths(path, str(config["workload"]["field"]))
        _fill(config, path, lengths, settings)
        check_units(config.get("cluster"), config.get("world"))
        question = Question(path, lengths, own["framework"], _systems(own["systems"]), tuple(words), config)
        _check_batch(question)
        yield question


def _setting(word: str) -> str:
    """Returns a setting that a run takes, too.

    Raises:
        ValueError: it is none of TAKEN.
    """
    key, equals, _ = word.partition("=")
    group = key.lstrip("+").partition(".")[0].partition("/")[0].partition("@")[0]
    if not equals or group not in TAKEN or key == "workload":
        raise ValueError(
            f"{word!r} is no setting of zbench advise; it takes framework=, systems=, cluster=, model=, mask=, "
            "tokens_per_gpu=, seed=, steps= (the number of batches), and keys such as cluster.num_nodes=8, "
            "model.recompute=full, workload.field=length"
        )
    return word


def _composed(settings: Sequence[str]) -> DictConfig:
    """Composes the configuration of a run over a file of lengths, simulated."""
    check_choices(list(settings), (path.name for path in CONF.iterdir() if path.is_dir()))
    usual = ["workload=lengths_file", "executor=simulated", "tracker=none", f"steps={BATCHES}"]
    config = hydra.compose(_CONFIG, [*usual, *settings])
    OmegaConf.set_struct(config, False)
    return config


def _fill(config: DictConfig, path: str, lengths: Ints, settings: Sequence[str]) -> None:
    """Names the file in the configuration, and lets its longest sequence through unless a limit was given."""
    config["workload"]["path"] = path
    if not any(word.lstrip("+").startswith("workload.context_limit=") for word in settings):
        config["workload"]["context_limit"] = int(lengths.max())


def _lengths(path: str, name: str) -> Ints:
    """Reads the lengths; what is wrong is told of LENGTHS and not of the workload's key."""
    try:
        return read_lengths(path, name)
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
    parts, longest = question.parts(), int(question.lengths.max())
    limit = int(question.config["workload"]["context_limit"])
    longest, gpus = min(longest, limit), parts.cluster.num_ranks
    if longest > parts.tokens:
        raise ValueError(
            f"LENGTHS has a sequence of {longest:,} tokens, and tokens_per_gpu={question.settings.tokens_per_gpu} on "
            f"{gpus} GPUs makes batches of {parts.tokens:,}; it takes tokens_per_gpu={-(-longest // gpus)} or more, or "
            "workload.context_limit=, which cuts sequences"
        )


def label_of(question: Question) -> str:
    """Names cluster and model as their yamls do."""
    return f"{question.config['model']['name']} on {question.config['cluster']['name']}"


