"""The strategy of a step beside its model's fields as plain values, by the names of its fields, and back. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import DRAWN, WITH_LAYER, Experts
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.planned.plan_values import check_plan_keys

STRATEGY = "strategy"  # the key of a plan file, which has it only where something of it is not as usual
_INNER = {"experts": Experts, "exchanges": ExchangeOverlap}
# Left out where they are so, as in files from before there were others.
_LATER = {
    "adaptive_recompute": USUAL_STRATEGY.adaptive_recompute,
    "expert_tensor_parallel": USUAL_STRATEGY.expert_tensor_parallel,
    "collectives": USUAL_STRATEGY.collectives,
}
_LATER_OF_EXPERTS = {"routing": DRAWN, "gradients": WITH_LAYER}


def strategy_values(strategy: StepStrategy) -> dict[str, Any]:
    """Returns a strategy's fields under its key; nothing of a usual one, as in files from before there was another."""
    if strategy == USUAL_STRATEGY:
        return {}
    values = _less(asdict(strategy), _LATER)
    return {STRATEGY: values | {"experts": _less(values["experts"], _LATER_OF_EXPERTS)}}


def _less(values: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values but for those that are as usual."""
    return {name: one for name, one in values.items() if name not in usual or one != usual[name]}


def strategy_of(found: Mapping[str, Any], where: str) -> StepStrategy:
    """Returns the strategy that `strategy_values` wrote into a file's values.

    Raises:
        ValueError: something is missing, unknown, or no such choice.
    """
    if STRATEGY not in found:
        return USUAL_STRATEGY
    values = {**_LATER, **found[STRATEGY]} if isinstance(found[STRATEGY], Mapping) else found[STRATEGY]
    check_plan_keys(values, [one.name for one in fields(StepStrategy)], where)
    if isinstance(values["experts"], Mapping):
        values = {**values, "experts": {**_LATER_OF_EXPERTS, **values["experts"]}}
    for name, kind in _INNER.items():
        check_plan_keys(values[name], [one.name for one in fields(kind)], f"{where}.{name}")
    try:
        return StepStrategy(**{**values, **{name: kind(**values[name]) for name, kind in _INNER.items()}})
    except TypeError as error:
        raise ValueError(f"{where} has a choice of a type that it cannot be: {error}") from error
