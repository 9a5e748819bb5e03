"""The parts of a run, made from its configuration. An edge: hydra is known here, torch is not."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zbench.cost.cost import Cost
from zbench.cost.job import cost_like, make_cost
from zbench.cost.memory.needs import check_layers_ahead
from zbench.cost.stage import in_whole_steps
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.job import TRAINING, RolloutJob
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.sync import EVERY, RoundSync
from zbench.describe.worlds import NOMINAL, Machine, World
from zbench.interfaces.abilities import HasContextLimit, SavesCheckpoints
from zbench.interfaces.dealt import undealt
from zbench.interfaces.protocols import Executor, System, Tracker, Workload
from zbench.record.words import link_words
from zbench.run.checks.contract import batch_of
from zbench.run.checks.price import check_size
from zbench.run.layer_counts import chosen_layers
from zbench.run.settings import PRECISIONS, Settings
from zbench.run.target import Make, expect, from_yaml, make_model, make_part, make_strategy, of_whole_step, other_models
from zbench.simulated.host_layers import LayerChoice, LayerCounts, candidate_counts, has_room, open_keys
from zbench.simulated.rollout_job import in_iterations

# Executors by their class, as `_target_` names it.
SIMULATED = "zbench.simulated.executor.Simulated"
TORCH = "zbench.runtime.step_executor.Torch"
DESK = "zbench.desk.step_executor.Desk"
RUN_WHOLE_STEPS = (TORCH, DESK)  # executors that train by whole steps
WHOLE_STEPS = (SIMULATED, *RUN_WHOLE_STEPS)  # executors of whole steps, which all of a strategy is for


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a run is put together from: everything but the system. cluster, model: as configured, in their
    world, where `cost` is of a stage, of groups of GPUs.

    nominal: the machine as configured, whatever the world. seen: the cost that planners see, which is of the nominal
    machine where that is all they are told. pipelines: what runs plans has pipelines that planners choose. tokens: of a
    batch. free: groups that every system chooses. layer_choice: of numbers of layers that the run leaves open
    (zbench.simulated.host_layers), by open_layers, its keys; nothing_fits: the first batch has room with none.
    """

    world: World
    nominal: Machine
    cluster: Cluster
    model: Model
    cost: Cost
    seen: Cost
    workload: Workload
    executor: Executor
    tracker: Tracker
    simulated: bool
    pipelines: bool
    tokens: int
    free: Sequence[str] = ()
    sync: RoundSync = EVERY
    job: RolloutJob = TRAINING
    layer_choice: LayerChoice | None = None
    open_layers: Sequence[str] = ()
    nothing_fits: bool = False

    @staticmethod
    def of(config: Mapping[str, Any], settings: Settings, make: Make = from_yaml) -> "Parts":
        """Makes the parts of a configuration. make: how a part is made of the configuration."""
        target = config["executor"].get("_target_")
        simulated = target == SIMULATED
        strategy = make_strategy(config, make)
        strategy.sync.check_run(settings.steps)
        nominal = _machine(config, settings, make, strategy, simulated or target in RUN_WHOLE_STEPS)
        world = _world(config, make, simulated)
        nodes = nominal.cluster.num_nodes
        nominal = nominal._replace(cluster=strategy.job.training_part(nominal.cluster))
        cluster, model = world.of(nominal)
        tokens = settings.tokens_per_gpu * nodes * cluster.gpus_per_node
        workload = make_part(make, config, "workload", seed=settings.seed, tokens=tokens)
        cost, whole_steps = make_cost(cluster, model), target in WHOLE_STEPS
        of_step = StepStrategy.of(strategy)
        usual = of_step.plans_pipelines and not strategy.job.has_rollouts  # forwards by themselves have none
        pipelines = whole_steps and usual and in_whole_steps(cost)
        parallel = strategy.parallel
        of_planners = parallel.expert_gpus, parallel.expert_tensor_parallel, strategy.overlap
        have = pipelines, whole_steps, *of_planners, of_step.sharding_overlap.layers_ahead
        drawn = strategy.experts, (settings.seed, None)  # what is drawn of it in a step is known with its batch
        cost = make_cost(cluster, model, *have).routed_by(*drawn)
        told = nominal if settings.planners_see == NOMINAL else Machine(cluster, model)  # what planners are told of
        choice, fits, open_layers = None, True, open_keys(model)
        if open_layers:
            batch, between = batch_of(workload, 0, tokens), strategy.experts.exchanges.reduces_between

            def planners(counts: LayerCounts) -> Cost:
                return make_cost(told.cluster, counts.of(told.model), *have).routed_by(*drawn)

            candidates = candidate_counts(cost, batch, between)
            choice = chosen_layers(config, batch, candidates, planners, make, of_step)
            counts = choice.counts
            model, nominal = counts.of(model), nominal._replace(model=counts.of(nominal.model))
            cost = make_cost(cluster, model, *have).routed_by(*drawn)
            fits = has_room(cost, batch)
        if whole_steps:
            check_layers_ahead(cost)
        seen = cost
        if settings.planners_see == NOMINAL:
            seen = make_cost(nominal.cluster, nominal.model, *have).routed_by(*drawn)
        settings.check_clock(config, simulated)
        training = {} if simulated else {"workload": workload, "check": settings.check, "resume": settings.resume}
        whole = of_whole_step(strategy, whole_steps)
        executor = make_part(make, config, "executor", cost=cost, **training, **whole)
        if strategy.job.has_rollouts:
            models = other_models(config, make, strategy, lambda model: world.of(Machine(nominal.cluster, model)).model)
            executor = in_iterations(executor, workload, strategy.job, models)
        tracker = make_part(make, config, "tracker")
        expect("workload", workload, "batch")
        expect("executor", executor, "step")
        expect("tracker", tracker, "log")
        settings.check_executor(executor)
        return Parts(
            world=world,
            nominal=nominal,
            cluster=cluster,
            model=model,
            cost=cost,
            seen=seen,
            workload=workload,
            executor=executor,
            tracker=tracker,
            simulated=simulated,
            pipelines=pipelines,
            tokens=tokens,
            free=settings.free_groups,
            sync=strategy.sync,
            job=strategy.job,
            layer_choice=choice,
            open_layers=open_layers,
            nothing_fits=not fits,
        )

    @property
    def chosen_layers(self) -> dict[str, int]:
        """The numbers of layers that were chosen for the run; none where it leaves none open."""
        return {} if self.layer_choice is None else asdict(self.layer_choice.counts)

    @property
    def told(self) -> Machine:
        """The machine that planners are told of."""
        return Machine(self.cluster, self.model) if self.seen == self.cost else self.nominal

    def cost_of(self, cluster: Cluster, model: Model) -> Cost:
        """Makes the cost model of this run's planners on another machine, or with another model.

        Raises:
            ValueError: the cluster or the model cannot be divided so.
        """
        return cost_like(self.cost, cluster, model, self.pipelines)

    def batch(self, step: int) -> Batch:
        """Returns the workload's batch of `step`, checked."""
        return batch_of(self.workload, step, self.tokens)

    def facts(self) -> dict[str, Any]:
        """Returns the facts of the cluster and the model that metrics and tables need (zbench.record.flops.Facts
        among them)."""
        cluster, model, device = self.cluster, self.model, self.cluster.device
        idle_experts, experts = model.num_experts - model.experts_per_token, model.num_layers - model.dense_layers
        changed = {} if self.world == World() else {"world": self.world.told(self.nominal)}
        return {
            "simulated": self.simulated,
            **({} if self.sync == EVERY else {"synchronous": False}),
            **({"generate_nodes": self.job.generate_nodes} if self.job.generate_nodes else {}),
            **({"set_nodes": beside} if (beside := self.job.nodes_beside(cluster.num_nodes)) else {}),
            **changed,
            **(
                {}
                if self.layer_choice is None
                else {"chosen_layers": self.chosen_layers, "closed_form_layers": self.layer_choice.told}
            ),
            **({"chosen_layers_fit": False} if self.nothing_fits else {}),
            **({"links": links} if (links := link_words(self.nominal.cluster)) else {}),
            "num_ranks": cluster.num_ranks,
            **({"num_tensor_parallel_groups": self.cost.ranks_of_stages} if self.cost.tp > 1 else {}),
            "num_gpus": cluster.num_ranks + (self.job.generate_nodes + beside) * cluster.gpus_per_node,
            **_fields(cluster, "num_nodes", "gpus_per_node", "nics_per_node", "num_nics", "nic_bandwidth"),
            **_fields(device, "peak_flops", "memory_bytes"),
            **_fields(
                model,
                "num_layers",
                "hidden",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "ffn_hidden",
                "vocab",
                "active_matmul_params",
                "head_params",
                "total_params",
            ),
            "cluster": cluster.name,
            "device": device.name,
            "model": model.name,
            "active_params": model.total_params - experts * model.ffn_params * idle_experts,
            **(
                {}
                if model.num_experts == 1
                else {"routed_params": experts * model.ffn_params * model.experts_per_token}
            ),
            "embedding_params": 0 if model.tied_embeddings else model.table_params,
            "tensor_parallel": self.cost.tp,
            "pipeline_parallel": self.cost.pp,
            **({"expert_gpus": self.cost.expert_gpus} if self.cost.expert_gpus > 1 else {}),
            "context_limit": self.workload.context_limit if isinstance(self.workload, HasContextLimit) else None,
        }

    def aside(self) -> Executor:
        """Returns the executor for a baseline: checkpoints are the run's own system's."""
        if not isinstance(self.executor, SavesCheckpoints) or self.executor.checkpoint_every is None:
            return self.executor
        return replace(self.executor, checkpoint_every=None)  # type: ignore[type-var]

    def repeats(self, system: System) -> bool:
        """Returns whether a recorded run of `system` can stand for a new one: simulated, by sources the fingerprint
        covers."""
        parts = (self.cluster, self.model, self.world, self.executor, undealt(system))
        return self.simulated and all(type(part).__module__.partition(".")[0] == "zbench" for part in parts)


def _machine(
    config: Mapping[str, Any], settings: Settings, make: Make, strategy: TrainingStrategy, parallel: bool
) -> Machine:
    """Returns the cluster and the model as configured. parallel: the executor has tensor and pipeline parallelism.

    Raises:
        ValueError: one of them cannot be, or the executor cannot train so.
    """
    cluster, model = make_part(make, config, "cluster"), make_model(config, make, strategy)
    expect("cluster", cluster, "num_ranks", is_method=False)
    check_size(cluster.num_nodes, cluster.gpus_per_node, settings.tokens_per_gpu)
    for check, size in PRECISIONS.items():
        if check in settings.check:
            model = replace(model, element_bytes=size, lse_bytes=size)
    mask = Mask.of(settings.mask)
    if mask != CAUSAL:  # what a model of someone else's has no field for is asked for only where it is wanted
        model = replace(model, mask=mask)
    for kind in ("tensor", "pipeline"):
        count = getattr(model, f"{kind}_parallel")
        if count > 1 and not parallel:
            raise ValueError(
                f"parallel.{kind}_parallel is {count}; only executor=simulated, torch and desk have {kind} parallelism"
            )
    return Machine(cluster, model)


def _world(config: Mapping[str, Any], make: Make, simulated: bool) -> World:
    """Returns the world that is played.

    Raises:
        ValueError: it is none, or there is no clock to play it.
    """
    world = make_part(make, config, "world")
    if not isinstance(world, World):
        kind = type(world).__name__
        raise ValueError(f"world: {kind} is no zbench.describe.worlds.World, whose keys are what can be changed")
    if world != World() and not simulated:
        raise ValueError(
            f"world is not nominal ({world.words}); a world is of a described machine, so only executor=simulated has "
            "one, and what is measured takes world=nominal"
        )
    return world


def resolved(config: DictConfig) -> dict[str, Any]:
    """Returns the configuration as plain values, every interpolation resolved."""
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _fields(source: Any, *names: str) -> Mapping[str, Any]:
    return {name: getattr(source, name) for name in names}
