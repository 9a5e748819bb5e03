"""The command zbench reshard: what bringing weights from training to generation takes, by engine."""

from collections.abc import Sequence

from zbench.api.functions import CLUSTER, MODEL
from zbench.api.parts import cluster_named, machine_in, model_named, told
from zbench.api.settings import command_settings, titled
from zbench.console.command import Parser
from zbench.console.console import say, show
from zbench.console.sentence import not_among
from zbench.console.sheet import Sheet
from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import ENGINES, EVERY_ENGINE
from zbench.rollouts.reshard import PlayedResharding, played_resharding

_WORDS = ("train", "generate", "engine")
_COLUMNS = ("engine", "received, GiB", "peak, GiB", "kept twice, GiB", "seconds")


def reshard_words(words: Sequence[str]) -> int:
    """Plays the change from training to generation by each engine and prints a table; returns the exit code."""
    parser = Parser(prog="zbench reshard", description="What bringing weights from training to generation takes.")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="train=p-t-d, generate=p-t, engine=..., cluster=..., model=..., world=... (docs/rollouts.md)",
    )
    given = parser.parse_args(list(words))
    with told():
        groups = ("cluster", "model", "world", *_WORDS)
        chosen, keys = command_settings(given.settings, groups, _WORDS, "zbench reshard")
        if missing := [word for word in ("train", "generate") if word not in chosen]:
            raise ValueError(f"{missing[0]} is missing; zbench reshard takes train=p-t-d and generate=p-t")
        train, generate = TrainDegrees.of(chosen["train"]), GenerateDegrees.of(chosen["generate"])
        engines = chosen.get("engine", ",".join(ENGINES)).split(",")
        if wrong := [engine for engine in engines if engine not in EVERY_ENGINE]:
            raise ValueError(not_among("engine", wrong[0], EVERY_ENGINE))
        cluster = cluster_named(chosen.get("cluster", CLUSTER), keys["cluster"])
        model = model_named(chosen.get("model", MODEL), keys["model"])
        machine = machine_in(chosen.get("world"), cluster, model, keys["world"])
    cost = Cost(cluster=machine.cluster, model=machine.model)
    found = [played_resharding(engine, train, generate, cost) for engine in engines]
    rows = tuple(_row(one) for one in found)
    names = f"{titled(model.name, keys['model'])} on {titled(cluster.name, keys['cluster'])}"
    show(Sheet(f"{names}, {train} to {generate}", _COLUMNS, rows).rich())
    say("Bytes are of weights, of the GPU that has most of each; seconds are simulated, of all weights at once.")
    return 0


def _row(one: PlayedResharding) -> tuple[str, ...]:
    def most(sizes: Ints) -> str:
        return f"{int(sizes.max()) / 2**30:.3f}"

    told = one.bytes
    return one.engine, most(told.received), most(told.peak), most(told.redundant), f"{one.seconds:.4g}"
