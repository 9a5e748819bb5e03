"""A search for a static configuration whose layers may differ, as far as whole steps have it: stages of unequal numbers
of layers, and recomputation of some layers of each.

Of every mesh on every layout the settings are ranked by arithmetic (zbench.systems.static_best.layer_settings), and the
fastest is a candidate. Candidates race as those with one strategy for all layers do
(zbench.systems.static_best.search), the best of which is one of them at last, so that layers that differ are chosen
only where they are faster.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from zbench.cost.cost import Cost
from zbench.describe.checks import FEWEST
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.interfaces.study import Choice, Sample, Study
from zbench.simulated.compared import ComparedSteps
from zbench.systems.common.mesh_groups import METHODS
from zbench.systems.common.mesh_packs import Batching
from zbench.systems.common.mesh_plans import least_degree
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.mesh import Mesh
from zbench.systems.static_best.candidate import BY_LAYER, Candidate, KnownPlays
from zbench.systems.static_best.layer_settings import LayerSetting, LayerSettings, Works
from zbench.systems.static_best.search import (
    ONCE,
    ROUNDS,
    Race,
    Rival,
    divisors,
    first_choice,
    last_batches,
    parallel_layouts,
    race_of,
    raced,
    ranked,
    ranked_layouts,
)

NEXT = 3  # further settings of the best meshes that are played at last: a judgement
MORE = 8  # parts of a stage's layers, one of which more is recomputed where a step's account has less room: a judgement


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """A mesh, the settings that it may have, the fastest by arithmetic first, and the seconds of that one. known: what
    candidates have found of steps."""

    model: Model
    mesh: Mesh
    cost_of: Callable[[Model], Cost]
    settings: Sequence[LayerSetting]
    known: KnownPlays
    seconds: float = inf

    def candidate(self, setting: LayerSetting) -> Candidate:
        """Returns the candidate of a setting."""
        model = setting.model(self.model)
        mesh = replace(self.mesh, cost=self.cost_of(model), pack_tokens=setting.pack_tokens)
        return Candidate(model, mesh, BY_LAYER, self.known)

    def fitting(self, setting: LayerSetting, race: Race) -> Candidate | None:
        """Returns the candidate of a setting with as many more layers recomputed as it takes to have room for the hard
        batch, by the account of its step; None where all of them are too few."""
        while True:
            found = self.candidate(setting)
            if race.fits(found):
                return found
            more = max(1, max(setting.cut) // MORE)
            again = tuple(min(one + more, most) for one, most in zip(setting.again, setting.cut, strict=True))
            if again == setting.again:
                return None
            setting = replace(setting, again=again)


def search_by_layer(study: Study, free: Sequence[str], batching: Batching) -> Choice:
    """Returns the fastest candidate that fits.

    Raises:
        ValueError: none does, or what runs has no steps whose layers differ.
    """
    check_by_layer(study)
    sample = Sample.of(study)
    free = [name for name in free if name != "recompute"]
    race, meshes, keeping = race_of(study, sample), list[MeshSettings](), replace(study, model=study.model.keeping_all)
    for model, cost in parallel_layouts(keeping, free):
        if model.pipeline_parallel > 1 and model.sharding not in ONCE:
            continue  # settings of theirs take four times the seconds of all others
        study.tell(f"layers: tensor parallelism {model.tensor_parallel}, stages {model.pipeline_parallel}")
        meshes += mesh_settings(model, cost, study.cost_of, batching, race)
    study.tell("layers: playing the better ones")
    (_, better), (more, best) = ROUNDS
    near = sorted((one for one in meshes if one.seconds < inf), key=lambda one: one.seconds)
    fitting = ((one, found) for one in near if (found := one.fitting(one.settings[0], race)) is not None)
    of_mesh = {found: one for one, found in islice(fitting, better)}
    then = sample.some(min(more, study.judged))
    timed = raced(of_mesh, then, study.clock, best)
    finalists, some, sizes = ranked(timed)[:best], sample.some(study.judged), list[Candidate]()
    for one in finalists:
        others = (of_mesh[one].fitting(setting, race) for setting in of_mesh[one].settings[1 : 1 + NEXT])
        sizes += ranked(raced([one, *filter(None, others)], some, study.clock))[:1]
    last = last_batches(study, sample)
    mine = raced(sizes, last, study.clock)
    every = (one.seconds(race.few) for one in finalists), (its for its, _ in timed), (its for its, _ in mine)
    rival = Rival(*(min(found, default=inf) for found in every))
    alike = ranked_layouts(study, sample, free, batching, race, rival)[:1]
    return first_choice(ranked([*((one.seconds(last, study.clock), one) for one in alike), *mine]), study, sample)


def check_by_layer(study: Study) -> None:
    """Refuses runs that have no steps whose layers differ.

    Raises:
        ValueError: the run's clock plays others, or its strategy leaves no layer a choice.
    """
    clock = None if study.trains else study.clock(study.cost_of(study.model))
    executor = clock.executor if isinstance(clock, ComparedSteps) else None
    if executor is None or executor.adaptive_recompute or not executor.plays_steps_alone:
        raise ValueError(
            "system.search is layers; it takes executor=simulated with recompute=none, selective, chunked or full, "
            "sync=every_step and job=training, and with others system.search takes uniform"
        )
    study.model.check_alike("system.search is layers, whose costs are those of layers of one kind")
    model = study.model
    if model.layers_on_hosts and not model.activations_on_hosts:
        raise ValueError(
            f"system.search is layers and {model.told_of_hosts}; inputs are on hosts where all layers are recomputed, "
            "so it takes activations, or system.search uniform"
        )
    if model.layers_on_hosts and FEWEST in (model.offload_layers, model.offload_tokens):
        key = "offload_layers" if model.offload_layers == FEWEST else "offload_tokens"
        raise ValueError(
            f"system.search is layers and memory.{key} is {FEWEST}; how many layers are recomputed is chosen by what "
            f"is on hosts, so it takes a number or {ALL_LAYERS}, or system.search uniform"
        )


def mesh_settings(
    model: Model, cost: Cost, cost_of: Callable[[Model], Cost], batching: Batching, race: Race
) -> Iterator[MeshSettings]:
    """Yields meshes of every method, of degrees from the least on that holds the longest sequence with all layers
    recomputed, until one is slower than the one before, with their settings."""
    ranks, longest = cost.cluster.num_ranks, int(race.hard.lengths.max())
    least = least_degree(longest, fitting_tokens(cost_of(replace(model, recompute="full"))), ranks)
    work: Works = {}
    for method in METHODS:
        before = inf
        alone = method == METHODS[0]  # of one rank all methods have the same plans
        for degree in (one for one in divisors(ranks) if one >= least and (one > 1 or alone)):
            mesh = Mesh(cost, method, degree, batching)
            settings = LayerSettings.of(mesh, cost_of, race.few, longest, work).found()
            found = MeshSettings(model, mesh, cost_of, settings, race.known)
            if not settings:
                continue
            seconds = found.candidate(settings[0]).seconds(race.few)
            yield replace(found, seconds=seconds)
            if before < seconds < inf:
                break
            before = seconds
