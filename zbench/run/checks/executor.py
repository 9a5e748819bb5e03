"""Checks that the executor of a run can do what its settings ask."""

from collections.abc import Mapping
from typing import Any

from zbench.interfaces.abilities import TracesSteps
from zbench.run.settings import Settings


def check_clock(settings: Settings, config: Mapping[str, Any], simulated: bool) -> None:
    """Raises ValueError where a setting is of executors that are simulated, or of those that are not, and this one is
    of the other kind."""
    if settings.planners_see != "world" and not simulated:
        raise ValueError(
            f"planners_see is {settings.planners_see}; only executor=simulated plays another machine than "
            "planners know, and what is measured takes planners_see=world"
        )
    if settings.free_groups and not simulated:
        free = list(settings.free_groups)
        raise ValueError(f"free_groups is {free}; only with executor=simulated does a system choose them")
    for name in ("check", "resume"):
        if getattr(settings, name) and simulated:
            raise ValueError(f"{name} is {config[name]}; it needs an executor that trains, as in executor=torch")


def check_executor(settings: Settings, executor: Any) -> None:
    """Raises ValueError where an executor cannot do what the settings ask of it."""
    if settings.resume and executor.first_step >= settings.steps:
        raise ValueError(
            f"steps is {settings.steps}; resume={settings.resume} goes on with step {executor.first_step}, counted "
            f"from 0, so it takes at least {executor.first_step + 1}"
        )
    if settings.trace is not None and not isinstance(executor, TracesSteps):
        raise ValueError(
            f"trace is {settings.trace}; the run's executor traces no steps, executor=simulated and those that train do"
        )
