"""Trackers: where a run's figures go while it runs, besides the record. Nothing reads from them.

A tracker is a convenience and must never cost a number: it does not ask, does not wait long, and
whatever goes wrong inside it becomes one warning (`Careful`). `python -m zbench.track sync FILE` sends recorded runs
later.
"""

from zbench.track.careful import Careful, Nothing
from zbench.track.default import auto
from zbench.track.tensorboard import TensorBoard
from zbench.track.wandb import Wandb

__all__ = ["Careful", "Nothing", "TensorBoard", "Wandb", "auto"]
