"""The kinds of functions that can be checked, by name."""

from zbench.check.attention import Attention
from zbench.check.loss import Loss
from zbench.check.share import Subject


def subject_of(kind: str, over: str) -> Subject:
    """Returns the subject of that kind: "loss" or "attention". over: how losses of several processes are joined."""
    return Loss(over) if kind == "loss" else Attention()
