"""The command zbench generate: the seconds of generation of sequences with known lengths, by engine and layout."""

from collections.abc import Mapping, Sequence

from zbench.api.functions import CLUSTER, MODEL
from zbench.api.parts import cluster_named, machine_in, model_named, told
from zbench.api.settings import command_settings, lengths_of_file, lengths_parser, titled, yaml_value
from zbench.console.console import say, show
from zbench.console.sentence import not_among
from zbench.console.sheet import Sheet
from zbench.cost.cost import Cost
from zbench.describe.checks import check_whole_number, is_whole
from zbench.describe.job import CHUNKED, CONTINUOUS, GENERATION_ENGINES, SEESAW
from zbench.describe.units import check_unit, parse, with_noun
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.generate import MEMORY_SHARE
from zbench.rollouts.generation_engines import (
    CHUNK_TOKENS,
    HOST_BYTES,
    PASS_TOKENS,
    EngineLimits,
    EnginePlay,
    every_layout,
    layout_cost,
    played_engines,
)

ALL = "all"
_WORDS = ("tensor", "layouts", "engine", "memory_share", "pass_tokens", "chunk", "host_kv")
_COLUMNS = (
    "engine",
    "prefill",
    "decode",
    "replicas",
    "seconds",
    "tokens/s",
    "slowest over mean",
    "passes",
    "most at once",
    "changes",
)


def generate_words(words: Sequence[str]) -> int:
    """Plays generation by each engine on each layout and prints a table; returns the exit code."""
    parser = lengths_parser(
        "zbench generate",
        "Plays generation of sequences on all GPUs of a cluster.",
        {"PROMPTS": "prompts of every sequence", "RESPONSES": "responses of every sequence"},
        "tensor=1,2,4 or layouts=1-2,2-4 or all, engine=continuous,chunked,seesaw, memory_share=0.9, "
        "pass_tokens=2048, chunk=512, host_kv='80 GiB', cluster=..., model=..., world=... (docs/rollouts.md)",
    )
    given = parser.parse_args(list(words))
    with told():
        groups = ("cluster", "model", "world", *_WORDS)
        chosen, keys = command_settings(given.settings, groups, _WORDS, "zbench generate")
        prompts = lengths_of_file(given.prompts, "PROMPTS")
        responses = lengths_of_file(given.responses, "RESPONSES")
        if len(prompts) != len(responses):
            raise ValueError(
                f"there are {with_noun(len(prompts), 'prompt')} and {with_noun(len(responses), 'response')}; each "
                "sequence has one"
            )
        engines = chosen.get("engine", CONTINUOUS).split(",")
        if wrong := [one for one in engines if one not in GENERATION_ENGINES]:
            raise ValueError(not_among("engine", wrong[0], GENERATION_ENGINES))
        limits = _limits(chosen)
        for name, engine in (("chunk", CHUNKED), ("host_kv", SEESAW)):
            if name in chosen and engine not in engines:
                raise ValueError(f"{name} is {chosen[name]}; it is of engine={engine}, which is not among the engines")
        layouts = _layouts(chosen)
        share = yaml_value(chosen.get("memory_share", str(MEMORY_SHARE)))
        cluster = cluster_named(chosen.get("cluster", CLUSTER), keys["cluster"])
        model = model_named(chosen.get("model", MODEL), keys["model"])
        machine = machine_in(chosen.get("world"), cluster, model, keys["world"])
    cost = Cost(cluster=machine.cluster, model=machine.model)
    longest = int((prompts + responses).max())
    costs = [layout_cost(cost, one, share) for one in layouts] or every_layout(cost, share, longest)
    found = played_engines(prompts, responses, costs, engines, limits)
    rows = tuple(_row(played) for played in found)
    names = f"{titled(model.name, keys['model'])} on {titled(cluster.name, keys['cluster'])}"
    show(Sheet(f"{names}, {with_noun(len(prompts), 'sequence')}", _COLUMNS, rows).rich())
    if len(found) > 1:
        best = {one.engine: one for one in sorted(found, key=lambda one: -one.seconds)}
        say("Fastest: " + "; ".join(f"{one}, {one.seconds:.4g} s" for one in best.values()) + ".")
    say("Layouts are p-t: p stages of t GPUs each. Seconds are simulated, of the slowest replica.")
    return 0


def _limits(chosen: Mapping[str, str]) -> EngineLimits:
    numbers = {}
    for name, usual in (("pass_tokens", PASS_TOKENS), ("chunk", CHUNK_TOKENS)):
        numbers[name] = yaml_value(chosen.get(name, str(usual)))
        check_whole_number(name, numbers[name], 1)
    host = yaml_value(chosen.get("host_kv", f"{HOST_BYTES / 2**30:g} GiB"))
    check_unit("host_kv", host, "bytes")
    size = parse("host_kv", host, "bytes")
    if not 0 < size < float("inf"):
        raise ValueError(f"host_kv is {host!r}; it takes bytes of a GPU's share of host memory, above 0")
    return EngineLimits(numbers["pass_tokens"], numbers["chunk"], size)


def _layouts(chosen: Mapping[str, str]) -> list[GenerateDegrees]:
    """Returns the layouts that are asked for; none where all are."""
    if "layouts" in chosen and "tensor" in chosen:
        raise ValueError("tensor and layouts are both given; tensor=4 is layouts=1-4, so it takes one of them")
    if "layouts" in chosen:
        texts = chosen["layouts"].split(",")
        if texts != [ALL] and any(text.isalpha() for text in texts):
            raise ValueError(f"layouts is {chosen['layouts']!r}; it takes {ALL}, or p-t (pipeline, tensor), as in 1-2")
        return [] if texts == [ALL] else [GenerateDegrees.of(text, "layouts") for text in texts]
    degrees = [yaml_value(word) for word in chosen.get("tensor", "1").split(",")]
    if wrong := [one for one in degrees if not is_whole(one) or one < 1]:
        raise ValueError(f"tensor is {wrong[0]!r}; it takes degrees of at least 1, as in 1,2,4")
    return [GenerateDegrees(1, one) for one in degrees]


def _row(one: EnginePlay) -> tuple[str, ...]:
    found = one.found
    slowest = f"{one.seconds / float(found.seconds.mean()):.3f}"
    numbers = int(found.decodes.max()), int(found.most.max()), one.reloads
    return (
        one.engine,
        str(one.prefill),
        str(one.decode),
        str(len(found.seconds)),
        f"{one.seconds:.4g}",
        f"{found.tokens / one.seconds:,.0f}",
        slowest,
        *map(str, numbers),
    )
