"""tracker=tensorboard: event files that `tensorboard --logdir` shows, a folder a run. Needs no torch and no network."""

import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zbench.console.extras import need
from zbench.interfaces.protocols import Tracked

_EVENTS = "events.out.tfevents.*"
_ODD = re.compile(r"[^\w .,=+@%-]", re.ASCII)  # in a run's name: what a folder's name had better not have
_LONGEST = 150  # letters of a run's name; the folder's has the run's id as well, and may have 255


@dataclass(slots=True)
class TensorBoard:
    """A run's scalars, its configuration as text, and its files, in dir/NAME, RUN_ID.

    The name is a record's text, made fit for a folder; the id is a name already (zbench.record.record).
    """

    dir: str
    _folder: Path = field(default=Path(), init=False)
    _writer: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        need("tensorboard", "tracker=tensorboard")

    def start(self, run: Tracked) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = Path(self.dir) / f"{_ODD.sub('-', run.name)[:_LONGEST]}, {run.id}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for old in self._folder.glob(_EVENTS):  # of this very run, sent before: else every point is there twice
                old.unlink()
        except OSError as error:
            raise ValueError(f"tracker.dir is {self.dir!r}; it cannot be written: {error.strerror}") from error
        self._writer = EventFileWriter(str(self._folder))
        told = {**run.config, "run": run.id, "group": run.group, "job_type": run.kind, "tags": list(run.tags)}
        self._text("config", "    " + json.dumps(told, indent=2).replace("\n", "\n    "))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()])

    def curves(self, step: int, title: str, interval: float, lines: Mapping[str, Sequence[float]]) -> None:
        """Writes lines as scalars: microseconds of the step stand where steps do elsewhere."""
        for name, values in lines.items():
            for at, value in enumerate(values):
                self.log(round(1e6 * interval * at), {f"{title}, step {step}/{name}": value})

    def attach(self, name: str, path: str) -> None:
        shutil.copy(path, self._folder / f"{name}{Path(path).suffix}")

    def finish(self, status: str, figures: Mapping[str, float]) -> None:
        if self._writer is not None:
            self.log(0, {f"run/{name}": value for name, value in figures.items()})
            self._text("status", status)
            self._writer.close()
            self._writer = None

    def where(self) -> str:
        return f"in {self.dir}; tensorboard --logdir {self.dir} shows them"

    def _text(self, tag: str, words: str) -> None:
        """Writes Markdown, as TensorBoard's text plugin takes it."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        about = create_summary_metadata(display_name=None, description=None)
        self._add(0, [Summary.Value(tag=tag, metadata=about, tensor=make_tensor_proto([words.encode()]))])

    def _add(self, step: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))
