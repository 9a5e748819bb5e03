"""The command's own words: zbench plan LENGTHS --out FILE, zbench simulate FILE, zbench reshard, zbench generate,
zbench layers, zbench placement, zbench step and those of others.

A first word of the command line without `=` is one of these; everything else is a run's settings.
"""

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from zbench.api.functions import CLUSTER, MODEL, PIPELINES, SYSTEM, planned
from zbench.api.generate import generate_words
from zbench.api.layers import layers_words
from zbench.api.parts import cluster_named, machine_in, told, trained_named, world_named
from zbench.api.placement import placement_words
from zbench.api.reshard import reshard_words
from zbench.api.settings import command_settings, lengths_of_file, yaml_value
from zbench.api.whole_step import step_words
from zbench.console.command import Parser
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import of_gpu
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.describe.worlds import World
from zbench.interfaces.published import VARIANT
from zbench.planned.step import StepPlans
from zbench.simulated.executor import Simulated

_PLANNED = ("mask", VARIANT, PIPELINES)  # settings of plans that are one word
_GROUPS = {"cluster": CLUSTER, "model": MODEL, "system": SYSTEM}


def plan_words(words: Sequence[str]) -> int:
    """Plans the lengths of a file and writes a plan file; returns the exit code."""
    parser = Parser(prog="zbench plan", description="Plans the lengths of a file, and writes the plans into another.")
    parser.add_argument("lengths", metavar="LENGTHS", help="one length a line (.txt), or .npy, .npz, .jsonl, .parquet")
    parser.add_argument("--out", required=True, metavar="FILE", help="the plan file to write (docs/plan_file.md)")
    for group, usual in _GROUPS.items():
        parser.add_argument(f"--{group}", metavar="NAME", help=f"as {group}=NAME (default {usual})")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="cluster=..., system.KEY=..., world=..., mask=..., variant=published, pipelines=false",
    )
    given = parser.parse_intermixed_args(list(words))
    with told():
        groups = (*_GROUPS, *STRATEGY_GROUPS, "world", *_PLANNED)
        chosen, keys = command_settings(given.settings, groups, _PLANNED, "zbench plan")
        by_option = {group: getattr(given, group) for group in _GROUPS if getattr(given, group) is not None}
        chosen = _GROUPS | chosen | by_option
        lengths = lengths_of_file(given.lengths, "LENGTHS")
        cluster = cluster_named(chosen["cluster"], keys["cluster"])
        strategy = {group: (chosen.get(group), keys[group]) for group in STRATEGY_GROUPS}
        model, own = trained_named(chosen["model"], keys["model"], chosen.get("mask"), strategy)
        machine = machine_in(chosen.get("world"), cluster, model, keys["world"])
        how = {name: yaml_value(chosen[name]) for name in (VARIANT, PIPELINES) if name in chosen}
        step = planned(StepPlans((), lengths, *machine, strategy=own), chosen["system"], keys["system"], **how)
    step.save(given.out)
    print(f"{step}\n{_memory(step)}\nwritten to {given.out}: one step, with all lengths of {given.lengths}")
    return 0


def simulate_words(words: Sequence[str]) -> int:
    """Plays the step of a plan file and tells its figures; returns the exit code."""
    parser = Parser(prog="zbench simulate", description="Plays the step of a plan file on its cluster's clock.")
    parser.add_argument("file", metavar="FILE", help="a plan file, as written by zbench plan")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="world=NAME, world.KEY=VALUE (docs/worlds.md)",
    )
    given = parser.parse_args(list(words))
    with told():
        if other := [word for word in given.settings if re.match(r"(cluster|model)\b", word)]:
            raise ValueError(
                f"{other[0]!r} is no setting of zbench simulate: a plan file names its cluster and model; it takes "
                "world=, for what is otherwise on that machine"
            )
        chosen, keys = command_settings(given.settings, ("world",), (), "zbench simulate")
        world = world_named(chosen.get("world"), keys["world"])
        step = StepPlans.load(given.file)
        machine = machine_in(chosen.get("world"), step.cluster, step.model, keys["world"])
    with told():
        result = Simulated(step.cost_on(*machine), **step.strategy.arguments).step(step.batch, step.plans)
    print(f"{step}\n{_memory(step)}" + (f"\nplayed with {world.words}" if world != World() else ""))
    rate, share = step.batch.num_tokens / result.seconds, result.bound_seconds / result.seconds
    print(f"simulated: {result.seconds:.4g} s a step, {rate:,.0f} tokens/s, {share:.1%} of the bound")
    return 0


def _memory(step: StepPlans) -> str:
    peak = int(of_gpu(peak_bytes(step.plans, step.cost), step.cost.tp).max())
    capacity = step.cost.cluster.device.memory_bytes / step.cost.tp
    fits = "" if peak <= capacity else "; it does not fit"
    return f"memory of the fullest GPU: {peak / 2**30:.1f} of {capacity / 2**30:.1f} GiB{fits}"


_OWN: dict[str, Callable[[Sequence[str]], int]] = {
    "generate": generate_words,
    "layers": layers_words,
    "placement": placement_words,
    "plan": plan_words,
    "reshard": reshard_words,
    "simulate": simulate_words,
    "step": step_words,
}
# Commands with a folder of their own, which are imported when they are asked for.
_OTHERS = ("advise", "anchors", "check", "compare", "contribute", "critical", "report")


def run_sub_command(word: str, words: Sequence[str]) -> int:
    """Runs the command of that name with these words; returns its exit code.

    Raises:
        ValueError: there is no such command.
    """
    if word in _OWN:
        return _OWN[word](words)
    if word in _OTHERS:
        sys.argv = [f"zbench {word}", *words]
        return int(import_module(f"zbench.{word}.__main__").main())
    names = sorted({*_OWN, *_OTHERS})
    close = difflib.get_close_matches(word, names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(
        f"{word!r} cannot be read; settings are written key=value, and commands are {', '.join(names)}{hint}"
    )
