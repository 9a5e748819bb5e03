"""Sentences on numbers of layers that a run leaves open, `auto` (zbench.simulated.host_layers chooses them)."""

from collections.abc import Sequence

from zbench.cost.memory.needs import check_memory
from zbench.describe.checks import CHOSEN
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.describe.units import with_noun
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.simulated.host_layers import RECOMPUTED

_CAME_TO = {  # by key, what is chosen by it (zbench.simulated.host_layers.LayerCounts)
    RECOMPUTED: ("recomputed", "recomputes {}"),
    "memory.parameter_layers": ("parameters", "has parameters of {} on hosts"),
    "memory.optimizer_layers": ("optimizer", "has optimizer state of {} on hosts"),
    "memory.carried_layers": ("carried", "leaves gradients of {} to the next step"),
}


def check_run_fits(parts: Parts) -> None:
    """Refuses a run that no plan has room for, and says what open numbers came to.

    Raises:
        ValueError: no plan has room.
    """
    try:
        check_memory(parts.cost)
    except ValueError as error:
        told = f" ({_without_room(parts)})" if parts.nothing_fits else ""
        raise ValueError(f"{error}{told}") from error


def open_words(parts: Parts) -> list[str]:
    """Says what open numbers of layers came to, and so where a batch fits with none of them."""
    if not parts.open_layers:
        return []
    if not parts.nothing_fits:
        return [f"{_typed(parts)}: by the first batch the run {_came_to(parts)}."]
    return [f"{_without_room(parts)}; where a system can, a batch goes in several micro-batches."]


def _without_room(parts: Parts) -> str:
    return (
        f"{_typed(parts)}: the first batch, even on all GPUs, fits with no number of layers, so the run "
        f"{_came_to(parts)}"
    )


def _typed(parts: Parts) -> str:
    return " and ".join(f"{key}={CHOSEN}" for key in parts.open_layers)


def _came_to(parts: Parts) -> str:
    return " and ".join(
        words.format(with_noun(parts.chosen_layers[name], "layer"))
        for key, (name, words) in _CAME_TO.items()
        if key in parts.open_layers
    )


def check_pipelines(name: str, parts: Parts, plans: Sequence[Plan]) -> None:
    """Refuses plans with pipelines of their own where some layers of all stages are recomputed, by an open number.

    name: the system's.

    Raises:
        ValueError: they are such plans.
    """
    model = parts.model
    if RECOMPUTED in parts.open_layers and plans[0].pipelines is not None and model.recompute_layers != ALL_LAYERS:
        raise ValueError(
            f"{RECOMPUTED} is {CHOSEN}, which came to {parts.chosen_layers['recomputed']} of the {model.num_layers} "
            f"layers of {model.name}; {name} plans pipelines, each with stages of its own, and {RECOMPUTED} takes "
            f"{ALL_LAYERS} with them"
        )
