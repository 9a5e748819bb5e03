"""Sentences on numbers of layers that a run leaves open, `auto` (zbench.simulated.host_layers chooses them)."""

from collections.abc import Sequence

from zbench.cost.memory.needs import check_memory
from zbench.describe.checks import CHOSEN
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.simulated.host_layers import RECOMPUTED

_CAME_TO = {  # by key, what is chosen by it (zbench.simulated.host_layers.LayerCounts)
    RECOMPUTED: ("recomputed", "{} layers are recomputed"),
    "memory.parameter_layers": ("parameters", "parameters of {} layers are on hosts"),
    "memory.optimizer_layers": ("optimizer", "optimizer state of {} layers is on hosts"),
    "memory.carried_layers": ("carried", "gradients of {} layers wait for the next step"),
}


def check_run_fits(parts: Parts) -> None:
    """Refuses a run that no plan has room for, and says what open numbers came to.

    Raises:
        ValueError: no plan has room.
    """
    try:
        check_memory(parts.cost)
    except ValueError as error:
        told = f" ({_came_to(parts)})" if parts.nothing_fits else ""
        raise ValueError(f"{error}{told}") from error


def open_words(parts: Parts) -> list[str]:
    """Says so where a batch fits with none of the numbers of layers that were open."""
    if not parts.nothing_fits:
        return []
    return [f"{_came_to(parts)}; where a system can, a batch goes in several micro-batches."]


def _came_to(parts: Parts) -> str:
    keys = " and ".join(f"{key}={CHOSEN}" for key in parts.open_layers)
    told = [
        words.format(parts.chosen_layers[name]) for key, (name, words) in _CAME_TO.items() if key in parts.open_layers
    ]
    return f"{keys}: the first batch, even on all GPUs, fits with no number of layers, so {' and '.join(told)}"


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
