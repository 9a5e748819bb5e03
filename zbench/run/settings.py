"""The top-level keys of a run, checked. An edge: hydra is known here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from zbench.describe.checks import check_boolean, check_choice, check_whole_number
from zbench.describe.mask import Mask
from zbench.describe.worlds import NOMINAL
from zbench.interfaces.abilities import TracesSteps
from zbench.run.fastest import FREE

PRECISIONS = {"exact": 8, "float32": 4}  # bytes of an element: what these checks compute in
CHECKS = (*PRECISIONS, "bytes")
PLANNERS_SEE = ("world", NOMINAL)  # the world that is played, or the nominal machine whatever is played


@dataclass(frozen=True, slots=True)
class Settings:
    """The top-level keys of a run, checked."""

    steps: int
    seed: int
    tokens_per_gpu: int
    out: str
    baseline: str | None
    trace: str | None
    check: Sequence[str]
    resume: str | None
    rerun: bool = True
    planners_see: str = "world"
    mask: str = "causal"
    free_groups: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("seed", 0), ("tokens_per_gpu", 1)):
            check_whole_number(name, getattr(self, name), least)
        for check in self.check:
            if check not in CHECKS:
                raise ValueError(f"check is {check!r}; it takes {' or '.join(CHECKS)}, a list of them, or null")
        if set(PRECISIONS) <= set(self.check):
            raise ValueError("check holds exact and float32; a run computes in float64 or in float32, so it takes one")
        for name, kind in (
            ("out", "a file"),
            ("baseline", "a system or null"),
            ("trace", "a file or null"),
            ("resume", "the folder of a checkpoint or null"),
        ):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (value is None and kind.endswith("null")):
                raise ValueError(f"{name} is {value!r}; it takes the name of {kind}")

        check_boolean("rerun", self.rerun)
        free = self.free_groups
        if set(free) - set(FREE) or len(set(free)) < len(free):
            raise ValueError(f"free_groups is {list(free)}; it takes a list of {' and '.join(FREE)}, or []")
        check_choice("planners_see", self.planners_see, PLANNERS_SEE)
        Mask.of(self.mask)

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Settings":
        """Reads the settings of a composed configuration."""
        given = {name: config[name] for name in Settings.__dataclass_fields__}
        check = given["check"]
        given["check"] = () if check is None else tuple(check) if OmegaConf.is_list(check) else (check,)
        free = given["free_groups"]
        given["free_groups"] = tuple(free) if isinstance(free, list) or OmegaConf.is_list(free) else (str(free),)
        return Settings(**given)

    def check_clock(self, config: Mapping[str, Any], simulated: bool) -> None:
        """Raises ValueError where a setting is of executors that are simulated, or of those that are not, and this one
        is of the other kind."""
        if self.planners_see != "world" and not simulated:
            raise ValueError(
                f"planners_see is {self.planners_see}; only executor=simulated plays another machine than planners "
                "know, and what is measured takes planners_see=world"
            )
        if self.free_groups and not simulated:
            free = list(self.free_groups)
            raise ValueError(f"free_groups is {free}; only with executor=simulated does a system choose them")
        for name in ("check", "resume"):
            if getattr(self, name) and simulated:
                raise ValueError(f"{name} is {config[name]}; it needs an executor that trains, as in executor=torch")

    def check_executor(self, executor: Any) -> None:
        """Raises ValueError where an executor cannot do what the settings ask of it."""
        if self.resume and executor.first_step >= self.steps:
            raise ValueError(
                f"steps is {self.steps}; resume={self.resume} goes on with step {executor.first_step}, counted from 0, "
                f"so it takes at least {executor.first_step + 1}"
            )
        if self.trace is not None and not isinstance(executor, TracesSteps):
            raise ValueError(
                f"trace is {self.trace}; the run's executor traces no steps, executor=simulated and those that train do"
            )
