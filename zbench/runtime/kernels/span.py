"""Names of what the device works on, for a profiler (zbench.speed.profile reads them); without one, a microsecond each.

The outermost name counts: a loss has matmuls and elementwise work of its own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch.profiler import record_function

PREFIX = "zbench: "
ATTENTION, ELEMENTWISE, LOSS = "attention", "norm, RoPE, SwiGLU", "cross-entropy"

Function = TypeVar("Function", bound=Callable[..., Any])


def named_span(name: str) -> record_function:
    """Names for a profiler what the device works on inside a block."""
    return record_function(PREFIX + name)


def in_span(name: str) -> Callable[[Function], Function]:
    """Decorates a function: all that it asks of the device is `name`."""

    def of(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with named_span(name):
                return function(*arguments, **named)

        return call  # type: ignore[return-value]

    return of
