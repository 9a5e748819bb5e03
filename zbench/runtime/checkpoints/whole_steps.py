"""Checkpoints of runs of whole steps, as seen without torch: they say of themselves besides what rests where between
two steps, as text, and how many labels the last one had, whose mean loss gradients that rest there are of."""

from collections.abc import Mapping
from typing import Any

from zbench.describe.checks import is_whole
from zbench.runtime.checkpoints.folder import checkpoint_description
from zbench.step.passes.memory.resting_step import resting_step
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

_RESTS, _LABELS = "rests", "tokens_of_last_step"  # whose labels count


def described(run: Mapping[str, Any], next_step: int, after: Step, num_labels: int) -> tuple[Step, dict[str, Any]]:
    """Returns what rests between two steps, as a step, and what a checkpoint says of itself there. run: what the run
    is, by name; after: a step that begins with what rests; num_labels: of the step before, those that
    count."""
    rests = resting_step(after)
    meta = {"next_step": next_step, "run": run, _RESTS: step_text(rests), _LABELS: num_labels}
    return rests, meta


def resting_then(path: str) -> tuple[Step, int]:
    """Returns what rests between the two steps that a checkpoint was taken between, and the labels of the one before
    that count.

    Raises:
        ValueError: it is none of a run of whole steps.
    """
    told = checkpoint_description(path)
    text, labels = told.get(_RESTS), told.get(_LABELS)
    try:
        if not isinstance(text, str) or not is_whole(labels) or labels < 1:
            raise ValueError("it does not say what rests where")
        return read_step(text), labels
    except ValueError as error:
        raise ValueError(
            f"resume is {path!r}; it takes the checkpoint of a run of executor=torch with sync=every_step ({error})"
        ) from error


def check_of_attention(path: str) -> None:
    """Refuses to go on from a checkpoint of whole steps with plans of attention.

    Raises:
        ValueError: it is one.
    """
    if "GPUs of a worker" in checkpoint_description(path)["run"]:
        raise ValueError(
            f"resume is {path!r}; it is a checkpoint of executor=torch, and executor=torch_attention takes its own"
        )
