"""A verdict on one case: relative errors of everything compared, or why nothing could be compared.

An error is the norm of the difference over the norm of the reference (Frobenius), both in float64. NaN is an error that
no limit allows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

# The largest relative error that counts as exact: rounding of a few dozen sums in the piece's own numbers.
LIMITS = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}
Tensors = Mapping[str, Tensor]


class WrongAnswer(Exception):
    """A function returned or left something that cannot be compared; the message says what."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one process to one case: its tensors on the CPU; or in words why there are none. refused: the
    function raised NotImplementedError, by which it says that it does not take such a case."""

    tensors: Tensors | None
    told: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case. about: the case in words. errors: relative error of everything compared, by name; empty
    where nothing could be. told: what is wrong besides, in words. line: the command that shows it again."""

    case: str
    about: str
    limit: float
    errors: Mapping[str, float]
    told: str
    refused: bool
    line: str

    @property
    def exact(self) -> bool:
        """Whether everything was compared and no error is above the limit."""
        return bool(self.errors) and not self.told and all(error <= self.limit for error in self.errors.values())

    @property
    def failed(self) -> bool:
        """Whether the function is wrong here: neither exact nor refused."""
        return not self.exact and not self.refused


def relative_errors(found: Tensors, wanted: Tensors) -> dict[str, float]:
    """Returns the relative error of everything in `wanted`.

    Raises:
        WrongAnswer: something has another shape than wanted.
    """
    out = {}
    for name, want in wanted.items():
        got = found[name].detach().cpu().double()
        if got.shape != want.shape:
            raise WrongAnswer(f"{name} has shape {tuple(got.shape)}; {tuple(want.shape)} would be right")
        size = float(want.norm())
        out[name] = float((got - want).norm()) / size if size > 0 else float(got.norm())
    return out


def answer_of(function_name: str, asked: Callable[[], Tensors]) -> Answer:
    """Calls `asked`, which asks the function, and turns whatever it raises into words."""
    try:
        return Answer({name: one.detach().cpu() for name, one in asked().items()})
    except WrongAnswer as error:
        return Answer(None, str(error))
    except NotImplementedError as error:
        return Answer(None, f"not taken: {_line(error) or 'it raised NotImplementedError'}", refused=True)
    except (Exception, SystemExit) as error:  # sys.exit(0) of a function is no success of the check's
        return Answer(None, f"{function_name} raised {type(error).__name__}: {_line(error)}")


def verdict_summary(verdicts: Sequence[Verdict], named: str, dtype: str) -> str:
    """Says in a sentence or two how many cases are exact, and whether the errors are those of narrower numbers."""
    exact, refused = sum(one.exact for one in verdicts), sum(one.refused for one in verdicts)
    failed = [one for one in verdicts if one.failed]
    told = f"{named}: {exact} of {len(verdicts)} cases exact" + (f", {refused} not taken" if refused else "")
    narrow = next((name for name, limit in LIMITS.items() if limit > LIMITS[dtype] and _within(failed, limit)), None)
    if failed and narrow:
        told += f"; the errors are those of {narrow} numbers, and dtype={narrow} allows for them"
    return told


def shown_error(error: float) -> str:
    """Writes a relative error: as a percentage where it is one of size, else as a power of ten."""
    if isnan(error):
        return "NaN"
    return f"{error:.1%}" if error >= 1e-3 else f"{error:.0e}" if error > 0 else "0"


def as_dtype(name: str) -> torch.dtype:
    """Returns torch's dtype of that name, one of LIMITS."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _within(failed: Sequence[Verdict], limit: float) -> bool:
    return all(one.errors and not one.told and all(error <= limit for error in one.errors.values()) for one in failed)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
