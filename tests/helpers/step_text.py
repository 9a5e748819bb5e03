"""A step's text form, there and back."""

from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text


def is_read_as_written(step: Step) -> bool:
    """Whether what is read from a step's text is written as the same text."""
    text = step_text(step)
    return step_text(read_step(text)) == text
