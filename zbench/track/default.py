"""tracker=auto, the default: Weights & Biases where its package is installed, else none."""

from zbench.console.extras import installed
from zbench.interfaces.protocols import Tracker
from zbench.track.careful import Nothing
from zbench.track.wandb import Wandb


def installed_choice() -> str:
    """Returns the choice of conf/tracker that tracker=auto comes to on this machine."""
    return "wandb" if installed("wandb") else "none"


def auto(project: str, dir: str) -> Tracker:
    """Makes the tracker that tracker=auto comes to."""
    return Wandb(project, dir) if installed_choice() == "wandb" else Nothing()


def tracker_words(tracker: Tracker, name: str) -> str:
    """Says what tracks a run, and where. name: of the choice, or of what tracker=auto came to."""
    if isinstance(tracker, Nothing):
        return "Tracker: none, as wandb is not installed (pip install 'zbench[track]')."
    return f"Tracker: {name}, {tracker.where()}."
