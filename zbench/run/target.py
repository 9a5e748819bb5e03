"""The object that a group's yaml names by its `_target_`, and the model with what the groups of its strategy say.

An edge: hydra is known here, torch is not.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from zbench import CONF
from zbench.console.sentence import not_among, unexpected_key
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import Experts
from zbench.describe.job import OTHER_MODELS, TRAINING, RolloutJob
from zbench.describe.model import Model
from zbench.describe.rollouts.stages import ALGORITHMS
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.strategies.strategy_keys import typed_key
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.strategy import MODEL_FIELDS, STRATEGY_GROUPS, Parallel, Recompute, Sharding, TrainingMemory
from zbench.describe.sync import EVERY, RoundSync
from zbench.interfaces.published import Published, published_of
from zbench.record.renamed import gone_target, old_key, old_keys, renamed
from zbench.run.checks.contract import guarded
from zbench.simulated.rollout_job import no_iterations

logging.getLogger("hydra.utils").addHandler(logging.NullHandler())  # it logs what is told as one sentence here

Make = Callable[[Mapping[str, Any], str], Callable[..., Any]]  # what makes the part of a group, called with the rest

_STRATEGY = {
    "sharding": Sharding,
    "recompute": Recompute,
    "memory": TrainingMemory,
    "parallel": Parallel,
    "overlap": ExchangeOverlap,
    "experts": Experts,
    "sync": RoundSync,
    "job": RolloutJob,
}
# What sets the arguments that a run gives its parts, which their yaml must not have: they would be recorded, not used.
_SET = {
    "seed": "seed={}",
    "tokens": "tokens_per_gpu, which times the number of GPUs is that",
    "check": "check={}",
    "cost": "the keys of cluster and model",
    "resume": "resume={}",
    "workload": "workload to the name of one",
    **{field: f"{typed_key(field)}={{}}" for field in MODEL_FIELDS},
    "window": "sharding.window={}",
    "gradient_bucket": "sharding.gradient_bucket={}",
    "collectives": "sharding.collectives={}",
    "expert_parallel": "parallel.expert_parallel={}",
    "expert_tensor_parallel": "parallel.expert_tensor_parallel={}",
    "experts": "experts to the name of a schedule",
    "exchanges": "overlap to the name of a method",
    "sync": "sync to the name of a method",
}


def from_yaml(config: Mapping[str, Any], group: str) -> Callable[..., Any]:
    """Makes the part that a group's yaml names, whatever that is, with the yaml's keys.

    It is a partial, which keeps hydra from copying what it is called with into its own containers.

    Raises:
        ValueError: a key has to be given, one of hydra's has a bad value, or it names what is no choice any more.
    """
    node = config[group]
    if told := gone_target(node.get("_target_")):
        raise ValueError(told)
    for key in sorted(OmegaConf.missing_keys(node)):
        raise ValueError(f"{key} has to be given, as in {key}=...")
    try:
        made: Callable[..., Any] = instantiate(node, _partial_=True, _convert_="all")
    except TypeError as error:  # of hydra's own keys, as _recursive_: 5
        raise ValueError(f"{group} cannot be made from its yaml: {error}") from error
    return made


def make_part(make: Make, config: Mapping[str, Any], group: str, **arguments: Any) -> Any:
    """Makes the object that a group's `_target_` names: `make` resolves it, and it is called with the group's keys and
    `arguments`.

    Raises:
        ValueError: no such target, or an earlier version's; its yaml has one of `arguments`; it does not take what it
            is called with; or it fails.
    """
    node = config[group]
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ValueError(f"{group} has no _target_; its yaml has to name one, as in _target_: zbench.systems.ring.Ring")
    _check_moved(OmegaConf.to_container(node) if OmegaConf.is_config(node) else node, group)
    for key in arguments:
        if key in node:
            raise ValueError(f"{group}.{key} is given by the run; set {_SET[key].format(node[key])}")
    factory = make(config, group)
    keys = " and ".join(["the keys of its yaml", *([", ".join(arguments)] if arguments else [])])
    try:
        return guarded(getattr(factory, "func", factory), "", keys, lambda: factory(**arguments))
    except TypeError as error:  # a key the class does not know, or a value of a type it does not check itself
        if told := unexpected_key(error, group, getattr(factory, "func", factory), arguments):
            raise ValueError(told) from error
        raise ValueError(f"{group}: {node['_target_']} cannot be made from its yaml: {error}") from error


def make_strategy(config: Mapping[str, Any], make: Make = from_yaml) -> TrainingStrategy:
    """Makes what the groups of a strategy say.

    Raises:
        ValueError: one of them cannot be.
    """
    made = {group: make_part(make, config, group) for group in STRATEGY_GROUPS}
    for group, kind in _STRATEGY.items():
        if not isinstance(made[group], kind):
            raise ValueError(
                f"{group}: {type(made[group]).__name__} is no {kind.__module__}.{kind.__name__}, whose keys are what "
                "can be set"
            )
    if not made["job"].has_rollouts and set(config["job"]) - {"_target_", "algorithm"}:
        raise ValueError(
            f"job.algorithm is {TRAINING.algorithm}, beside keys of jobs with rollouts; it takes "
            f"{', '.join(sorted(set(ALGORITHMS) - {TRAINING.algorithm}))}, and job=training trains alone"
        )
    return TrainingStrategy(**made)


def make_model(config: Mapping[str, Any], make: Make = from_yaml, strategy: TrainingStrategy | None = None) -> Model:
    """Makes a configuration's model, with the fields that its strategy sets; None: of the configuration.

    Raises:
        ValueError: it cannot be.
    """
    strategy = strategy or make_strategy(config, make)
    model: Model = make_part(make, config, "model", **strategy.model_fields)
    expect("model", model, "num_layers", is_method=False)
    return model


def other_models(
    config: Mapping[str, Any], make: Make, strategy: TrainingStrategy, in_world: Callable[[Model], Model]
) -> dict[str, Model]:
    """Returns the models of a job with rollouts that are other ones than the actor's, by what they are in it, with the
    run's strategy. in_world: what a model is in the run's world.

    Raises:
        ValueError: there is no such model, or it cannot be.
    """
    found, folder = dict[str, Model](), CONF / "model"
    for role in OTHER_MODELS:
        if (name := getattr(strategy.job, role)) is None:
            continue
        names = sorted(path.stem for path in folder.glob("*.yaml"))
        if name not in names:
            raise ValueError(not_among(f"job.{role}", str(name), names))
        yaml: Any = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
        keys = {key: value for key, value in yaml.items() if key != "defaults"}  # of a strategy, which is the run's
        found[role] = in_world(make_model({**config, "model": OmegaConf.create(keys)}, make, strategy))
    return found


def of_whole_step(strategy: TrainingStrategy, plays: bool) -> dict[str, Any]:
    """Returns the arguments that executors of whole steps alone take of a strategy. plays: whether it is one.

    Raises:
        ValueError: another executor is given one that it does not read.
    """
    own = StepStrategy.of(strategy)
    if plays:
        return own.arguments | {"sync": strategy.sync}
    own.check_attention_alone(strategy.model_fields)
    check_steps_alone(strategy)
    return {}


def check_steps_alone(strategy: TrainingStrategy) -> None:
    """Refuses rounds of local steps and iterations of rollouts, which are no part of one step.

    Raises:
        ValueError: workers come together in rounds, or the job has rollouts.
    """
    if strategy.sync.in_rounds:
        raise ValueError(
            f"sync is {strategy.sync.method}; only runs with executor=simulated, torch or desk "
            f"have that, all else takes {EVERY.method}"
        )
    if strategy.job.has_rollouts:
        raise no_iterations(strategy.job)


def _check_moved(node: Any, group: str) -> None:
    """Refuses a `_target_` or a key that was zbench's own in an earlier version and has another name today, inner ones
    too.

    A package of the user's may be called as one of zbench's was, so what can be found is not refused.

    Raises:
        ValueError: it says today's name.
    """
    if isinstance(node, Mapping):
        target = node.get("_target_")
        today = renamed({"_target_": target})["_target_"]
        if today != target and found_object(target) is None:
            raise ValueError(f"{group}._target_ is {target}; that is {today} now")
        for key in sorted(old_keys(target) & set(node)):
            raise ValueError(old_key(f"{group}.{key}", target, node[key]))
        inner = [(f"{group}.{key}", value) for key, value in node.items()]
    else:
        inner = [(f"{group}[{i}]", value) for i, value in enumerate(node)]
    for name, value in inner:
        if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
            _check_moved(value, name)


def found_object(target: object) -> Any:
    """Returns what a `_target_` names; None where nothing can be found by that name."""
    try:
        return get_object(str(target))
    except Exception:  # whatever a module does while it is imported
        return None


def keys_and_published(system: Any) -> tuple[dict[str, Any], Published]:
    """Returns the keys of a system's configuration, and the published values of its class."""
    keys: Any = OmegaConf.to_container(system) if OmegaConf.is_dict(system) else {}
    return keys, published_of(found_object(keys.get("_target_")))


def expect(group: str, made: Any, name: str, is_method: bool = True) -> None:
    """Refuses a part without what a `group` has to have.

    Raises:
        ValueError: it has no `name`, or it is no method.
    """
    kind = type(made).__name__
    if not hasattr(made, name):
        raise ValueError(f"{group}: {kind} has no {name} (zbench.interfaces.protocols says what a {group} needs)")
    if is_method and not callable(getattr(made, name)):
        raise ValueError(f"{group}: {kind}.{name} is no method (zbench.interfaces.protocols says what a {group} needs)")
