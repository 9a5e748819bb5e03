"""The command zbench step: a whole step as text, of a plan file, or read back; proven either way, and played on the
plan file's machine, or on the one that the command is told."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from zbench.api.parts import cluster_named, machine_in, told, trained_named
from zbench.api.played_text import PlayedText, check_fits
from zbench.api.settings import Keys, command_settings
from zbench.console.command import Parser
from zbench.describe.links import Lanes
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.describe.units import in_bytes, with_noun
from zbench.describe.worlds import Machine
from zbench.planned.step import StepPlans
from zbench.planned.whole_file import read_text, write_whole
from zbench.planned.written_step import WrittenStep
from zbench.simulated.executor import Simulated
from zbench.step.byte_law import sent_by_purpose, stated_bytes
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.scanner import TextFault
from zbench.step.template import Step

_CALLED, _COMMAND = "step's text", "zbench step"


class _Given(NamedTuple):
    """A step that is given, with the machine to play it on, None where a text is told none, and its strategy."""

    written: WrittenStep
    machine: Machine | None
    strategy: StepStrategy


def step_words(words: Sequence[str]) -> int:
    """Builds a whole step of a plan file, or reads one of its text, proves it, tells what it has and plays it; returns
    the exit code."""
    parser = Parser(
        prog=_COMMAND, description="Builds the whole step of a plan file, or reads one; proves it and plays it."
    )
    parser.add_argument("file", metavar="FILE", help="a plan file, as written by zbench plan, or a step's text")
    parser.add_argument("--out", metavar="FILE", help="writes the step's text there (docs/step.md)")
    parser.add_argument("--trace", metavar="FILE", help="writes a Chrome/Perfetto trace of the step there")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="of a text: cluster=NAME model=NAME, their keys and the strategy's, as of zbench plan; of both: world=",
    )
    given = parser.parse_intermixed_args(list(words))
    with told():
        text = read_text(given.file, "file")
        read = _of_plans if text.lstrip().startswith("{") else _of_text
        found = read(given.file, text, given.settings)
        if found.machine is None and given.trace is not None:
            raise ValueError(f"--trace is {given.trace!r}, of a step that is played; {_NAMES_NONE}")
        if found.machine is not None:
            check_fits(found.written, *found.machine)
        print(_summary(found.written.step, None if found.machine is None else found.machine.cluster.lanes))
        if given.out is not None:
            write_whole(given.out, found.written.text, _CALLED)
            print(f"written to {given.out}")
        if found.machine is None:
            print(f"not played: {_NAMES_NONE}")
            return 0
        played = PlayedText.of(found.written, found.machine, found.strategy)
        print("\n".join(played.lines()))
        if given.trace is not None:
            played.write_trace(given.trace)
            print(f"trace written to {given.trace}")
    return 0


_NAMES_NONE = "a step's text names no cluster and no model, and is played with cluster=NAME model=NAME"


def _of_plans(path: str, _: str, settings: Sequence[str]) -> _Given:
    """Returns the step that is played of a plan file, on its machine.

    Raises:
        ValueError: a setting is none of the world's.
    """
    if other := [word for word in settings if not re.match(r"world\b", word)]:
        raise ValueError(
            f"{other[0]!r} is no setting of {_COMMAND} with a plan file, which names its cluster, model and strategy; "
            "it takes world=, for what is otherwise on that machine"
        )
    chosen, keys = command_settings(settings, ("world",), (), _COMMAND)
    plans = StepPlans.load(path)
    machine = machine_in(chosen.get("world"), plans.cluster, plans.model, keys["world"])
    step = Simulated(plans.cost_on(*machine), **plans.strategy.arguments).built(plans.batch, plans.plans)
    return _Given(WrittenStep(step, tuple(plans_of_layouts(plans.plans))), machine, plans.strategy)


def _of_text(path: str, text: str, settings: Sequence[str]) -> _Given:
    """Returns the step of a text, on the machine of the settings.

    Raises:
        ValueError: it says no step, or one that is wrong, or settings name half of a machine.
    """
    groups = ("cluster", "model", *STRATEGY_GROUPS, "world", "mask")
    chosen, keys = command_settings(settings, groups, ("mask",), _COMMAND)
    if settings and (missing := [name for name in ("cluster", "model") if name not in chosen]):
        raise ValueError(f"{_COMMAND} is given {settings[0]!r} and no {missing[0]}=NAME; {_NAMES_NONE}")
    try:
        written = WrittenStep.read(text)
    except TextFault as error:
        raise ValueError(f"the {_CALLED} is {path!r}; {error}") from error
    return _Given(written, *(_machine(chosen, keys) if settings else (None, StepStrategy())))


def _machine(chosen: dict[str, str], keys: dict[str, Keys]) -> tuple[Machine, StepStrategy]:
    """Returns the machine that settings name, and the strategy."""
    cluster = cluster_named(chosen["cluster"], keys["cluster"])
    strategy = {group: (chosen.get(group), keys[group]) for group in STRATEGY_GROUPS}
    model, own = trained_named(chosen["model"], keys["model"], chosen.get("mask"), strategy)
    return machine_in(chosen.get("world"), cluster, model, keys["world"]), own


def _summary(step: Step, lanes: Lanes | None) -> str:
    """Returns what a step has, and what its proof counted. lanes: of the machine that it is played on, over which
    shares of transfers are passed on; None: no machine is named, and bytes are from end to end.

    Raises:
        ValueError: it is wrong.
    """
    try:
        proven = prove_step(step)
    except StepError as error:
        raise ValueError(f"the step is wrong: {error}") from error
    hosts = f" and {with_noun(step.num_hosts, 'host')}" if step.num_hosts else ""
    templates, operations = with_noun(len(step.templates), "template"), with_noun(step.num_operations, "operation")
    sent = sent_by_purpose(stated_bytes(step, lanes=lanes))
    lines = [
        f"step of {with_noun(step.num_layers, 'layer')} on {with_noun(step.num_gpus, 'GPU')}{hosts}: "
        f"{templates}, played {with_noun(len(step.order), 'time')}, with {operations}",
        f"proven: {proven.touches:,} items that operations of templates read and write",
        *(f"sent for {purpose}: {in_bytes(size)}" for purpose, size in sent.items()),
    ]
    return "\n".join(lines)
