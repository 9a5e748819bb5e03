"""The kinds of functions that can be checked, by name."""

from zbench.check.attention import AttentionKind
from zbench.check.loss import LossKind
from zbench.check.share import FunctionKind


def function_kind(kind: str, over: str) -> FunctionKind:
    """Returns the kind of that name: "loss" or "attention". over: how losses of several processes are joined."""
    return LossKind(over) if kind == "loss" else AttentionKind()
