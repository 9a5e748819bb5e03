"""The command zbench generate: the seconds of generation of sequences with known lengths, by tensor-parallel degree."""

from collections.abc import Sequence

from zbench.api.functions import CLUSTER, MODEL
from zbench.api.parts import cluster_named, machine_in, model_named, told
from zbench.api.settings import command_settings, lengths_of_file, titled, yaml_value
from zbench.console.command import Parser
from zbench.console.console import say, show
from zbench.console.sheet import Sheet
from zbench.cost.cost import Cost
from zbench.describe.checks import is_whole
from zbench.describe.units import with_noun
from zbench.rollouts.generate import MEMORY_SHARE, Generation, GenerationCost, generate

_WORDS = ("tensor", "memory_share")
_COLUMNS = ("tensor", "replicas", "seconds", "tokens/s", "slowest over mean", "passes", "most at once")


def generate_words(words: Sequence[str]) -> int:
    """Plays generation for each tensor-parallel degree and prints a table; returns the exit code."""
    parser = Parser(prog="zbench generate", description="Plays generation of sequences on all GPUs of a cluster.")
    lengths = "of every sequence, one length a line (.txt), or .npy, .npz, .jsonl, .parquet"
    parser.add_argument("prompts", metavar="PROMPTS", help=f"prompts {lengths}")
    parser.add_argument("responses", metavar="RESPONSES", help=f"responses {lengths}")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="tensor=1,2,4, memory_share=0.9, cluster=..., model=..., world=... (docs/rollouts.md)",
    )
    given = parser.parse_args(list(words))
    with told():
        groups = ("cluster", "model", "world", *_WORDS)
        chosen, keys = command_settings(given.settings, groups, _WORDS, "zbench generate")
        prompts = lengths_of_file(given.prompts, "PROMPTS")
        responses = lengths_of_file(given.responses, "RESPONSES")
        if len(prompts) != len(responses):
            raise ValueError(f"there are {len(prompts)} prompts and {len(responses)} responses; each sequence has one")
        degrees = [yaml_value(word) for word in chosen.get("tensor", "1").split(",")]
        if wrong := [one for one in degrees if not is_whole(one) or one < 1]:
            raise ValueError(f"tensor is {wrong[0]!r}; it takes degrees of at least 1, as in 1,2,4")
        share = yaml_value(chosen.get("memory_share", str(MEMORY_SHARE)))
        cluster = cluster_named(chosen.get("cluster", CLUSTER), keys["cluster"])
        model = model_named(chosen.get("model", MODEL), keys["model"])
        machine = machine_in(chosen.get("world"), cluster, model, keys["world"])
    cost = Cost(cluster=machine.cluster, model=machine.model)
    costs = [GenerationCost(cost, tensor, share) for tensor in degrees]
    found = [generate(prompts, responses, one, cluster.num_ranks // one.tensor) for one in costs]
    rows = tuple(_row(one.tensor, played) for one, played in zip(costs, found, strict=True))
    names = f"{titled(model.name, keys['model'])} on {titled(cluster.name, keys['cluster'])}"
    show(Sheet(f"{names}, {with_noun(len(prompts), 'sequence')}", _COLUMNS, rows).rich())
    say("Seconds are simulated, of the slowest replica.")
    return 0


def _row(tensor: int, one: Generation) -> tuple[str, ...]:
    seconds = float(one.seconds.max())
    slowest = f"{seconds / float(one.seconds.mean()):.3f}"
    rate = f"{one.tokens / seconds:,.0f}"
    return (
        str(tensor),
        str(len(one.seconds)),
        f"{seconds:.4g}",
        rate,
        slowest,
        *map(str, (one.decodes.max(), one.most.max())),
    )
