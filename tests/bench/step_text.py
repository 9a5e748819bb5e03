"""Milliseconds of a core to write a step as text and to read it back.

python -m tests.bench.step_text   # a step of five layers and three micro-batches: 67 kB of text
"""

from collections.abc import Callable
from dataclasses import replace
from time import process_time

from tests.helpers.steps import MODEL, plan_of
from zbench.describe.overlap import StepOverlap
from zbench.step.passes.build import whole_step
from zbench.step.reading.read import read_step
from zbench.step.text import step_text

ROUNDS = 7


def least(call: Callable[[], object]) -> float:
    """Returns the milliseconds of the quickest of some calls."""
    found = []
    for _ in range(ROUNDS):
        began = process_time()
        call()
        found.append(1e3 * (process_time() - began))
    return min(found)


def main() -> None:
    plans = [plan_of([9, 2], 2, 2, first=at * 2) for at in range(3)]
    model = replace(MODEL, num_layers=5, num_kv_heads=4)
    step = whole_step(model, plans, 2, "2", StepOverlap(1, 900), "selective", stages=2)
    text = step_text(step)
    write, read = least(lambda: step_text(step)), least(lambda: read_step(text))
    print(f"{len(text)} characters: {write:.1f} ms to write, {read:.1f} ms to read")


if __name__ == "__main__":
    main()
