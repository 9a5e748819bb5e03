"""The command zbench step: a whole step as text, of a plan file, or read back, proven either way."""

from collections.abc import Sequence

from zbench.api.parts import told
from zbench.console.command import Parser
from zbench.describe.units import in_bytes, with_noun
from zbench.planned.step import StepPlans
from zbench.planned.whole_file import read_text, write_whole
from zbench.simulated.executor import Simulated
from zbench.step.byte_law import sent_by_purpose, stated_bytes
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.reading.scanner import TextFault
from zbench.step.template import Step
from zbench.step.text import step_text

_CALLED = "step's text"


def step_words(words: Sequence[str]) -> int:
    """Builds a whole step of a plan file, or reads one of its text, proves it, and tells what it has; returns the exit
    code."""
    parser = Parser(prog="zbench step", description="Builds the whole step of a plan file, or reads one; proves it.")
    parser.add_argument("file", metavar="FILE", help="a plan file, as written by zbench plan, or a step's text")
    parser.add_argument("--out", metavar="FILE", help="writes the step's text there (docs/step.md)")
    given = parser.parse_args(list(words))
    with told():
        text = read_text(given.file, "file")
        step = _of_plans(given.file) if text.lstrip().startswith("{") else _of_text(given.file, text)
    print(_summary(step))
    if given.out is not None:
        write_whole(given.out, step_text(step), _CALLED)
        print(f"written to {given.out}")
    return 0


def _of_plans(path: str) -> Step:
    """Returns the step that is played of a plan file."""
    plans = StepPlans.load(path)
    return Simulated(plans.cost, **plans.strategy.arguments).built(plans.batch, plans.plans)


def _of_text(path: str, text: str) -> Step:
    """Returns the step of a text.

    Raises:
        ValueError: it says no step, or one that is wrong.
    """
    try:
        return read_step(text)
    except TextFault as error:
        raise ValueError(f"the {_CALLED} is {path!r}; {error}") from error


def _summary(step: Step) -> str:
    """Returns what a step has, and what its proof counted.

    Raises:
        ValueError: it is wrong.
    """
    try:
        proven = prove_step(step)
    except StepError as error:
        raise ValueError(f"the step is wrong: {error}") from error
    hosts = f" and {with_noun(step.num_hosts, 'host')}" if step.num_hosts else ""
    templates, operations = with_noun(len(step.templates), "template"), with_noun(step.num_operations, "operation")
    sent = sent_by_purpose(stated_bytes(step))
    lines = [
        f"step of {with_noun(step.num_layers, 'layer')} on {with_noun(step.num_gpus, 'GPU')}{hosts}: "
        f"{templates}, played {with_noun(len(step.order), 'time')}, with {operations}",
        f"proven: {proven.touches:,} items that operations of templates read and write",
        *(f"sent for {purpose}: {in_bytes(size)}" for purpose, size in sent.items()),
    ]
    return "\n".join(lines)
