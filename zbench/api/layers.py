"""The command zbench layers: a strategy for every layer by itself, beside one for all of them, by arithmetic."""

from collections import Counter
from collections.abc import Sequence

from zbench.api.functions import CLUSTER, MODEL
from zbench.api.parts import cluster_named, machine_in, model_named, told
from zbench.api.played_layers import played_layers
from zbench.api.settings import command_settings, lengths_of_file, lengths_parser, titled, yaml_value
from zbench.console.console import say, show
from zbench.console.sheet import Sheet
from zbench.cost.by_layer.decision_tree import AGAIN, SHARDED, TENSOR, LayerStrategy
from zbench.cost.by_layer.search import LayerPlan, LayerSearch
from zbench.cost.by_layer.stage_cuts import balance
from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import bracketed
from zbench.describe.units import with_noun

_WORDS = ("recompute", "play")
_LEVELS = ("none", "selective", "full")
_COLUMNS = ("search", "seconds", "micro-batches", "layers of the stages", "fullest (GiB)", "balance: time, bytes")
_PLAYED_COLUMNS = ("played", "simulated seconds", "fullest (GiB)", "layers recomputed")
_STAGE_COLUMNS = ("stage", "seconds of a micro-batch", "GiB", "layers with each strategy")
PLAYED, SOME, ALIKE, EVEN, BALANCED = (
    "one for all layers, which a run plays",
    "the same, but for recomputation, by layer, and stages",
    "one for all layers",
    "by layer, even stages",
    "by layer, balanced stages",
)


def layers_words(words: Sequence[str]) -> int:
    """Searches for strategies for a batch and prints a table; returns the exit code."""
    parser = lengths_parser(
        "zbench layers",
        "Searches for the strategy of every layer of a model.",
        {"LENGTHS": "lengths of every sequence of a batch"},
        "recompute=none,full, play=true, cluster=..., model=..., world=... (docs/layers.md)",
    )
    given = parser.parse_args(list(words))
    with told():
        chosen, keys = command_settings(given.settings, ("cluster", "model", "world", *_WORDS), _WORDS, "zbench layers")
        again = tuple(chosen.get("recompute", ",".join(AGAIN)).split(","))
        if wrong := [one for one in again if one not in _LEVELS]:
            raise ValueError(f"recompute is {wrong[0]!r}; it takes some of {', '.join(_LEVELS)}, as in none,full")
        play = yaml_value(chosen.get("play", "false"))
        if not isinstance(play, bool):
            raise ValueError(f"play is {play!r}; it takes true or false")
        lengths = lengths_of_file(given.lengths, "LENGTHS")
        cluster = cluster_named(chosen.get("cluster", CLUSTER), keys["cluster"])
        model = model_named(chosen.get("model", MODEL), keys["model"])
        machine = machine_in(chosen.get("world"), cluster, model, keys["world"])
        model.check_alike("strategies by layer have costs of layers of one kind")
        search = LayerSearch(Cost(cluster=machine.cluster, model=machine.model), lengths, again)
        found = {
            PLAYED: search.alike(search.is_played_even),
            SOME: search.recomputed(),
            ALIKE: search.alike(),
            EVEN: search.even(),
            BALANCED: search.balanced(),
        }
        best = found[BALANCED]
        if best is None:
            raise ValueError(
                f"model {model.name} does not fit: no strategy of its layers on {with_noun(cluster.num_ranks, 'GPU')} "
                f"has room for a sequence of {int(lengths.max()):,} tokens; use more nodes, or shorter sequences"
            )
    rows = tuple(_row(name, plan) for name, plan in found.items())
    names = f"{titled(model.name, keys['model'])} on {titled(cluster.name, keys['cluster'])}"
    show(Sheet(f"{names}, {with_noun(len(lengths), 'sequence')}", _COLUMNS, rows).rich())
    stages = tuple(
        (str(at), f"{best.stages[at]:.4g}", f"{best.room[at] / 2**30:.1f}", _stage(mine))
        for at, mine in enumerate(best.strategies)
    )
    show(Sheet(f"{BALANCED}: {best.seconds:.4g} s", _STAGE_COLUMNS, stages).rich())
    say("Seconds are by arithmetic and not played. Steps have one parallelism for all layers.")
    for number, name in (("first", PLAYED), ("second", SOME)):
        if (plan := found[name]) is not None:
            say(f"The {number} is played with {' '.join(_keys(plan))}")
    if play:
        with told():
            mine = [(name, one) for name in (PLAYED, SOME) if (one := found[name]) is not None]
            rows = tuple(_played(name, one, machine.cluster, machine.model, lengths) for name, one in mine)
        show(Sheet("Whole steps of the first two, proven and played", _PLAYED_COLUMNS, rows).rich())
    return 0


def _played(name: str, plan: LayerPlan, cluster: Cluster, model: Model, lengths: Ints) -> tuple[str, ...]:
    found = played_layers(plan, cluster, model, lengths)
    peak = int(found.memory.peak[: cluster.num_ranks].max())
    out = "; does not fit" if peak > cluster.device.memory_bytes else ""
    again = ", ".join(map(str, _again(plan)))
    return name, f"{found.seconds:.4g}", f"{peak / 2**30:.1f}{out}", again


def _again(plan: LayerPlan) -> list[int]:
    """Returns how many layers of every stage are recomputed."""
    return [sum(one.recompute != "none" for one in mine) for mine in plan.strategies]


def _row(name: str, plan: LayerPlan | None) -> tuple[str, ...]:
    if plan is None:
        return name, "none fits", *[""] * (len(_COLUMNS) - 2)
    cut, fullest = ", ".join(map(str, plan.cut)), f"{max(plan.room) / 2**30:.1f}"
    even = f"{balance(plan.stages):.3f}, {balance(plan.room):.3f}"
    return name, f"{plan.seconds:.4g}", str(plan.micro_batches), cut, fullest, even


def _stage(layers: Sequence[LayerStrategy]) -> str:
    """Returns a stage's strategies in words, each with how many layers have it."""
    return "; ".join(f"{count} {one}" for one, count in Counter(layers).items())


def _keys(plan: LayerPlan) -> list[str]:
    """Returns the keys of a run that has the plan's strategies, which differ in recomputation alone."""
    one, again = plan.strategies[0][0], _again(plan)
    sharding = "zero3" if one.degree(SHARDED) > 1 else "none"
    keys = [f"parallel.tensor_parallel={one.degree(TENSOR)}", f"parallel.pipeline_parallel={len(plan.cut)}"]
    keys += [f"parallel.stage_layers={bracketed(plan.cut)}"] if len(set(plan.cut)) > 1 else []
    level = next((one.recompute for mine in plan.strategies for one in mine if one.recompute != "none"), "none")
    keys += [f"sharding={sharding}", f"recompute={level}"]
    some = 0 < sum(again) < sum(plan.cut)
    return keys + ([f"recompute.layers={again[0] if len(set(again)) == 1 else bracketed(again)}"] if some else [])
