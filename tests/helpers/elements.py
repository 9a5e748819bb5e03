"""What steps hold of whole parameters, looked up once for all changes between them."""

from collections.abc import Callable, Sequence

import pytest

from zbench.step import switch_law
from zbench.step.elements import ElementHolders, elements_held
from zbench.step.template import Items, Step


def held_once(steps: Sequence[Step], patch: pytest.MonkeyPatch) -> Callable[[Step, Items], ElementHolders]:
    """Returns `elements_held` of what these steps begin and end with, which the law of changes asks for up to six times
    for each pair of them."""
    held = {(id(step), id(items)): elements_held(step, items) for step in steps for items in (step.begins, step.ends)}

    def elements_of(step: Step, items: Items) -> ElementHolders:
        return held[id(step), id(items)]

    patch.setattr(switch_law, "elements_held", elements_of)
    return elements_of
