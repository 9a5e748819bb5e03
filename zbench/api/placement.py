"""The command zbench placement: which models of a job with rollouts share GPUs, and how many each set of them has."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from zbench.api.functions import CLUSTER, MODEL
from zbench.api.parts import cluster_named, machine_in, told, trained_named
from zbench.api.settings import Keys, command_settings, lengths_of_file, lengths_parser, titled, yaml_value
from zbench.console.console import say, show
from zbench.console.heap import keep_freed_memory
from zbench.console.meter import Meter
from zbench.console.sentence import not_among
from zbench.console.sheet import Sheet
from zbench.cost.cost import Cost
from zbench.describe.checks import check_whole_number
from zbench.describe.cluster import Cluster
from zbench.describe.job import TRAINING
from zbench.describe.model import Model
from zbench.describe.rollouts.stages import ALGORITHMS, PLACEMENTS, placed_sets
from zbench.describe.units import with_noun
from zbench.placement.layout import ModelLayout, ModelPlacement
from zbench.placement.mapping import MappingSearch, set_partitions
from zbench.placement.offers import PlacementOffers
from zbench.placement.prices import PACK_TOKENS, SHARDINGS, TRAINED, PlacedWork, PlacementPrices
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.generate import MEMORY_SHARE
from zbench.rollouts.generation_engines import layout_cost

SEARCHED = "searched"
_ROLES = ("critic", "reward", "cost", "reference")  # whose model may be another one than the actor's
_WORDS = ("algorithm", "updates", "pack_tokens", "nodes", "recompute", "sharding")
_KEPT = 2**30  # bytes: steps on many GPUs have arrays of tens of megabytes
_COLUMNS = ("GPUs", "placement", "seconds", "tokens/s", "reshard", "generate", "score", "train", "models: GPUs")
_SET_COLUMNS = ("models", "GPUs", "layout of each")
_USUAL = {
    "algorithm": "ppo",
    "updates": "1",
    "pack_tokens": str(PACK_TOKENS),
    "recompute": "full",
    "sharding": ",".join(SHARDINGS),
}
Found = dict[tuple[int, str], ModelPlacement | None]  # by GPUs and placement


def placement_words(words: Sequence[str]) -> int:
    """Searches for placements on each number of nodes and prints a table; returns the exit code."""
    parser = lengths_parser(
        "zbench placement",
        "Searches for the sets of a job's models that share GPUs.",
        {"PROMPTS": "prompts of every sequence", "RESPONSES": "responses of every sequence"},
        "algorithm=ppo, critic=MODEL, updates=8, nodes=1,2,4, cluster=..., model=... (docs/placement.md)",
    )
    given = parser.parse_args(list(words))
    with told():
        groups = ("cluster", "model", "world", *_WORDS, *_ROLES)
        chosen, keys = command_settings(given.settings, groups, _WORDS, "zbench placement")
        prices = _prices(_USUAL | chosen, keys, given.prompts, given.responses)
        counts = _nodes(chosen.get("nodes"), prices.cluster)
    keep_freed_memory(_KEPT)
    found = searched_placements(prices, counts)
    if not any(found.values()):
        most = with_noun(max(counts), "node")
        names = ", ".join(f"{role} {one.name}" for role, one in prices.models.items())
        raise ValueError(f"models {names} do not fit: no placement on {most} has room for them; use more nodes")
    cluster, work = prices.cluster, prices.work
    title = f"{_names(prices.models)} on {titled(cluster.name, keys['cluster'])}, "
    tokens = int(work.lengths.sum())
    rows = tuple(_row(gpus, name, one, tokens) for (gpus, name), one in found.items())
    show(Sheet(title + with_noun(len(work.prompts), "sequence"), _COLUMNS, rows).rich())
    gpus = max(one for (one, _), placed in found.items() if placed is not None)
    best = found[gpus, SEARCHED]
    assert best is not None
    sets = tuple((", ".join(one.models), str(one.gpus), _layouts(one.layouts)) for one in best.sets)
    show(Sheet(f"{SEARCHED} on {with_noun(gpus, 'GPU')}", _SET_COLUMNS, sets).rich())
    say("Seconds are simulated. Models of a set take turns, and sets work beside each other in each stage.")
    return 0


def searched_placements(prices: PlacementPrices, counts: Iterable[int]) -> Found:
    """Returns the fastest placement of each kind on each number of nodes of the prices' cluster; None: it has no
    room."""
    found: Found = {}
    each, roles = prices.cluster.gpus_per_node, tuple(prices.models)
    counts = list(counts)
    with Meter(len(counts), unit="size") as meter:

        def tell(doing: str) -> None:
            meter.show("placement", len(found) // (len(PLACEMENTS) + 1), doing=doing)

        every = PlacementOffers(replace(prices, tell=tell))
        for count in counts:
            gpus = count * each
            memory = prices.cluster.device.memory_bytes
            of = MappingSearch(gpus, prices.sizes, memory, every.of, prices.least, prices.keeps)
            for name in PLACEMENTS:
                found[gpus, name] = of.best([placed_sets(name, roles)])
            found[gpus, SEARCHED] = of.best(set_partitions(roles))
    return found


def _prices(chosen: Mapping[str, str], keys: Mapping[str, Keys], prompts: str, responses: str) -> PlacementPrices:
    """Returns the prices that the settings ask for.

    Raises:
        ValueError: one of them cannot be.
    """
    algorithm = chosen["algorithm"]
    if algorithm not in ALGORITHMS or algorithm == TRAINING.algorithm:
        raise ValueError(not_among("algorithm", algorithm, sorted(set(ALGORITHMS) - {TRAINING.algorithm})))
    stages = ALGORITHMS[algorithm]
    numbers = [yaml_value(chosen[name]) for name in ("updates", "pack_tokens")]
    for name, value in zip(("updates", "pack_tokens"), numbers, strict=True):
        check_whole_number(name, value, 1)
    shardings = chosen["sharding"].split(",")
    if wrong := [one for one in shardings if one not in TRAINED]:
        raise ValueError(f"sharding is {wrong[0]!r}; it takes some of {', '.join(TRAINED)}, as in zero3,zero1")
    columns = [lengths_of_file(prompts, "PROMPTS"), lengths_of_file(responses, "RESPONSES")]
    if len(columns[0]) != len(columns[1]):
        raise ValueError(
            f"there are {with_noun(len(columns[0]), 'prompt')} and {with_noun(len(columns[1]), 'response')}; each "
            "sequence has one"
        )
    cluster = cluster_named(chosen.get("cluster", CLUSTER), keys["cluster"])

    def model_of(role: str, name: str) -> Model:
        made, _ = trained_named(name, keys[role], None, {"recompute": (chosen["recompute"], {})})
        return machine_in(chosen.get("world"), cluster, made, keys["world"]).model

    actor = model_of("model", chosen.get("model", MODEL))
    for role in _ROLES:
        if (role in chosen or keys[role]) and role not in stages.models:
            raise ValueError(f"{role} is {chosen.get(role, keys[role])}; {algorithm} has no model of that name")
        if keys[role] and role not in chosen:
            raise ValueError(f"{role}.{next(iter(keys[role]))} is given without {role}=, the model whose key it is")
    _check_room(cluster, actor, int((columns[0] + columns[1]).max()))
    models = {role: model_of(role, chosen[role]) if role in chosen else actor for role in stages.models}
    machine = machine_in(chosen.get("world"), cluster, actor, keys["world"])
    return PlacementPrices(stages, models, machine.cluster, PlacedWork(columns[0], columns[1], *numbers), shardings)


def _check_room(cluster: Cluster, actor: Model, longest: int) -> None:
    """Raises ValueError where no replica has room for keys and values of the longest sequence."""
    rooms = list[int]()
    for gpus in (number for number in range(1, cluster.num_ranks + 1) if cluster.num_ranks % number == 0):
        with suppress(ValueError):  # slices that do not divide the model, or for which it is too large
            replica = layout_cost(Cost(cluster=cluster, model=actor), GenerateDegrees(1, gpus), MEMORY_SHARE)
            rooms.append(replica.batch_tokens)
    if rooms and longest > max(rooms):
        raise ValueError(
            f"a sequence has {longest} tokens, and no replica of {actor.name} on {cluster.name} has room for more than "
            f"{max(rooms)}: take shorter ones"
        )


def _nodes(word: str | None, cluster: Cluster) -> list[int]:
    """Reads nodes=1,2,4: all nodes of the cluster if it is not given.

    Raises:
        ValueError: one is no number of the cluster's nodes.
    """
    found = [yaml_value(one) for one in (word or str(cluster.num_nodes)).split(",")]
    for one in found:
        check_whole_number("nodes", one, 1, cluster.num_nodes)
    return found


def _names(models: Mapping[str, Model]) -> str:
    """Writes the models, those that several roles have once."""
    names = {role: one.name for role, one in models.items()}
    actor, *_ = names.values()
    return ", ".join([actor, *(f"{role} {name}" for role, name in names.items() if name != actor)])


def _row(gpus: int, name: str, one: ModelPlacement | None, tokens: int) -> tuple[str, ...]:
    if one is None:
        return (str(gpus), name, "no room", *[""] * (len(_COLUMNS) - 3))
    rate, stages = f"{tokens / one.seconds:,.0f}", (f"{seconds:.4g}" for seconds in one.stages)
    sets = "; ".join(f"{', '.join(each.models)}: {each.gpus}" for each in one.sets)
    return (str(gpus), name, f"{one.seconds:.4g}", rate, *stages, sets)


def _layouts(layouts: Sequence[ModelLayout]) -> str:
    return " | ".join(one.words for one in layouts)
