"""A figure's record: results/paper/NAME.jsonl, the traces it names, and the experiments that make it. An edge."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from zbench.cost.cost import Cost
from zbench.cost.ranks_of_gpus import with_ranks_of
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.describe.strategy import MODEL_FIELDS
from zbench.record.fingerprint import own_digest
from zbench.record.kinds import RECORD
from zbench.record.outputs import check_output
from zbench.record.record import Run, read
from zbench.record.rows import Row, rows
from zbench.record.writer import RecordError, RecordWriter
from zbench.trace.file import read_events

FOLDER = Path("results/paper")
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Records:
    """The record of a figure: finished runs, in order; the events (zbench.trace) of those that left a trace, by its
    path."""

    runs: Sequence[Run]
    traces: Mapping[str, Sequence[Event]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that zbench.record.rows derives from the runs, one for each."""
        return rows(self.runs)

    def trace(self, run: Run) -> Sequence[Event]:
        """Returns the events of a run that left a trace."""
        return self.traces[run.start["config"]["trace"]]

    @property
    def clusters(self) -> list[str]:
        """The names of the runs' clusters, each once."""
        return list(dict.fromkeys(str(run.start["facts"]["cluster"]) for run in self.runs))


def group_choice(run: Run, group: str) -> str:
    """Returns which of a group's yamls (system, workload, ...) a run chose."""
    return str(run.start["config"]["choices"][group])


def cost_of_run(run: Run) -> Cost:
    """Returns the cost model of a run, from the constants in its record."""
    config = run.start["config"]
    cluster, model = _plain(config["cluster"]), Model(**_plain(config["model"]), **_strategy_fields(config))
    device = Device(**_plain(cluster.pop("device")))
    cost = Cost(Cluster(**cluster, device=device), model)
    return with_ranks_of(cost, model.tensor_parallel, model.pipeline_parallel)


def _strategy_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a model that the groups of a run's strategy set."""
    return {field: config[group][key] for field, (group, key) in MODEL_FIELDS.items()}


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != "_target_"}


def load_records(name: str, folder: Path = FOLDER) -> Records:
    """Reads a figure's record and the traces that it names.

    Raises:
        ValueError: there is no record, it is not whole, or a trace that it names is missing.
    """
    path = folder / f"{name}.jsonl"
    remedy = f"python -m zbench.figures {name} --run makes it"
    if not path.is_file():
        raise ValueError(f"figure {name} has no record, {path}; {remedy}")
    runs, problems = read(str(path))
    if problems:
        raise ValueError(f"{problems[0]}; {remedy} anew")
    unfinished = [run for run in runs if run.status != "finished"]
    if unfinished or not runs:
        told = f"the run of line {unfinished[0].line} is {unfinished[0].status}" if unfinished else "it holds no run"
        raise ValueError(f"figure {name} has no whole record, {path}: {told}; {remedy} anew")
    if apart := [run for run in runs if "world" in run.start["facts"]]:
        told = f"the run of line {apart[0].line} is of the world {apart[0].start['facts']['world']}"
        raise ValueError(f"figure {name} is of nominal machines, and its record, {path}, is not: {told}; {remedy} anew")
    wanted = {trace for run in runs if isinstance(trace := run.start["config"]["trace"], str)}
    return Records(runs, {trace: _events(Path(trace), remedy) for trace in sorted(wanted)})


def _events(path: Path, remedy: str) -> list[Event]:
    try:
        return list(read_events(path))
    except ValueError as error:
        raise ValueError(f"{error}; {remedy} anew") from error


def check_experiments(name: str, records: Records, experiments: Sequence[str]) -> None:
    """Checks that a record is of the figure's experiments.

    Raises:
        ValueError: a run is of another experiment than the figure's.
    """
    others = {str(run.start["config"]["choices"].get("experiment")) for run in records.runs} - set(experiments)
    if others:
        raise ValueError(
            f"the record of figure {name} has runs of experiment {min(others)}; it takes those of "
            f"{', '.join(experiments)}, and python -m zbench.figures {name} --run makes it anew"
        )


def is_current(records: Records) -> bool:
    """Returns whether these very sources made all of the record."""
    return {run.start["fingerprint"]["sources"] for run in records.runs} == {own_digest()}


def make(name: str, experiments: Sequence[str], folder: Path = FOLDER) -> None:
    """Runs the experiments into the figure's record, which is replaced only by a whole one. Runs that a stopped command
    finished, by the same sources, are not made again.

    Raises:
        RecordError: an experiment failed; the message has its last words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    part = path.with_name(path.name + ".part")
    for file in (path, part):
        check_output(f"the record of figure {name}", file, RECORD)
    _keep_finished(part)
    for experiment in experiments:
        command = [sys.executable, "-m", "zbench", f"experiment={experiment}", f"out={part}", "rerun=false"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("zbench: ")] or ["no reason given"]
            raise RecordError(f"{shlex.join(['python', *command[1:]])} failed: {said[-1].removeprefix('zbench: ')}")
    part.replace(path)


def _keep_finished(part: Path) -> None:
    """Leaves those runs in a record, if there is one, that finished and that these very sources made."""
    if not part.is_file():
        return
    runs = [run for run in read(str(part))[0] if run.status == "finished"]
    part.unlink()
    if kept := [run for run in runs if run.start["fingerprint"]["sources"] == own_digest()]:
        writer = RecordWriter.open(str(part))
        for run in kept:
            for line in (run.start, run.about, *run.steps, run.end):
                if line is not None:
                    writer.append(line)
        writer.close()
