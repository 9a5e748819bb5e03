"""tracker=wandb: Weights & Biases, online where this machine is logged in and the server answers, else offline.

It never asks for a login and waits for nothing long.
"""

import netrc
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zbench.console.extras import need
from zbench.interfaces.protocols import Tracked
from zbench.track.careful import first_line

_ANSWER_SECONDS = 4.0  # how long the server may take to answer at all
_INIT_SECONDS = 15.0  # to open a run, once it has answered
_FINISH_SECONDS = 20.0  # to take the last metrics; what it has not taken stays on disk for `wandb sync`


@dataclass(slots=True)
class Wandb:
    """A tracker that makes one wandb run a run, under the run's own id: what is sent twice is not there twice."""

    project: str
    dir: str
    _mode: Any = field(default=None, init=False)
    _run: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        need("wandb", "tracker=wandb")

    def start(self, run: Tracked) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its reports of itself wait for a network, too
        import wandb  # half a second: only for those who track

        Path(self.dir).mkdir(parents=True, exist_ok=True)  # else wandb picks a place of its own
        self._mode = self._mode or wandb_mode()
        wandb.setup(wandb.Settings(silent=True, mode=self._mode))
        limits: dict[str, Any] = {"init_timeout": _INIT_SECONDS, "finish_timeout": _FINISH_SECONDS}
        settings = wandb.Settings(silent=True, console="off", **limits)
        arguments: dict[str, Any] = {
            "project": self.project,
            "dir": self.dir,
            "name": run.name,
            "id": run.id,
            "resume": "allow",
            "group": run.group,
            "job_type": run.kind,
            "tags": list(run.tags),
            "config": {**run.config, "run": run.id},
            "settings": settings,
        }
        try:
            self._run = wandb.init(mode=self._mode, **arguments)
        except Exception as error:  # of many kinds: no access, no such entity, no network after all
            if self._mode == "offline":
                raise
            reason = f"wandb does not answer ({first_line(error)})"
            print(f"zbench: {reason}; its runs are kept offline in {self.dir}/wandb", file=sys.stderr)
            self._mode = "offline"
            self._run = wandb.init(mode=self._mode, **arguments)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def curves(self, step: int, title: str, interval: float, lines: Mapping[str, Sequence[float]]) -> None:
        import wandb

        moments = [interval * at for at in range(max(map(len, lines.values())))]
        plot = wandb.plot.line_series(moments, list(lines.values()), list(lines), title, "seconds of the step")
        self._run.log({title: plot}, step=step)

    def attach(self, name: str, path: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"{name}-{self._run.id}", type=name)
        artifact.add_file(path)
        self._run.log_artifact(artifact)

    def finish(self, status: str, figures: Mapping[str, float]) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.summary.update({**figures, "status": status})
            run.finish(exit_code=0 if status == "finished" else 1)

    def where(self) -> str:
        return f"offline in {self.dir}/wandb" if self._mode == "offline" else f"with wandb, mode {self._mode}"


def wandb_mode() -> str:
    """Returns wandb's own WANDB_MODE where set, except that it must not make wandb ask for a login or wait for a
    network."""
    asked = os.environ.get("WANDB_MODE") or "online"
    if asked != "online":
        return asked
    server = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    return "online" if is_logged_in(server) and server_answers(server) else "offline"


def is_logged_in(server: str) -> bool:
    """Returns whether wandb would find a key: in its variable or in the netrc file. Touches no network."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    names = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for path in filter(Path.is_file, (Path(name).expanduser() for name in names)):
        with suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(path).authenticators(urlsplit(server).hostname or ""):
                return True
    return False


def server_answers(server: str) -> bool:
    """Returns whether the server says anything at all within a few seconds (name lookup included, hence the thread)."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(OSError, ValueError):
            with suppress(urllib.error.HTTPError):  # an error page is an answer
                urllib.request.urlopen(server, timeout=_ANSWER_SECONDS).close()
            answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_ANSWER_SECONDS)
    return bool(answers)
