"""python -m zbench.predicted: measured steps of one GPU beside what the simulator makes of them, a row a workload.

    python -m zbench.predicted cluster/device=h200_measured --out results/gpu/predicted

Runs conf/experiment/one_gpu on six workloads, one record each in the folder --out; a workload whose record has a
finished run of the same sources and settings is not run again. Runs are of executor=torch, whole steps; each is then
simulated from its own record (zbench.run.replay), on the same batches, as the same whole steps. With
executor=torch_attention attention's plans are measured, and simulated as whole steps that are told how it trains.
Exit codes: 0 all six are measured, whatever their errors; 1 a run failed; 2 bad input, or something is to be measured
and there is no GPU; 130 stopped by Ctrl-C.
"""

import sys

from zbench.console.command import Parser, known_words, loading, ran

with loading(__name__):
    import shlex
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import contextmanager, suppress
    from dataclasses import dataclass
    from pathlib import Path
    from statistics import fmean, median

    from rich.table import Table

    from zbench.console.console import show
    from zbench.console.extras import need
    from zbench.interfaces.result import StepResult
    from zbench.record.fingerprint import source_digest
    from zbench.record.metrics import counted
    from zbench.record.record import Run, read
    from zbench.run.known import add_trust
    from zbench.run.replay import Replay

GOAL = 0.07  # of a workload's error, absolute
BAD_INPUT = 2  # exit code
ON_CPU = "executor.device=cpu"
WORKLOADS: Mapping[str, Sequence[str]] = {
    "fixed_4k": ("workload=fixed", "workload.length=4096"),
    "fixed_32k": ("workload=fixed", "workload.length=32768"),
    "longtail_32k": ("workload=longtail_32k",),
    "wikipedia": ("workload=wikipedia",),
    "prolong64k": ("workload=prolong64k",),
    "pystdlib": ("workload=pystdlib",),
}


@dataclass(frozen=True, slots=True)
class Row:
    """Means over a run's steps, in seconds, as (measured, simulated); attention is the time in its kernels, linear the
    rest of forward and backward. worst: the largest error of a step, absolute."""

    workload: str
    steps: int
    seconds: tuple[float, float]
    attention: tuple[float, float]
    linear: tuple[float, float]
    worst: float

    @property
    def error(self) -> float:
        """The relative error of the simulated step."""
        return error(self.seconds)


def error(pair: tuple[float, float]) -> float:
    """Tells of (measured, simulated) by how much the simulated one is larger, relative to the measured one."""
    return pair[1] / pair[0] - 1 if pair[0] > 0 else 0.0


def row(name: str, run: Run, trust: bool = False) -> Row:
    """Compares a workload's measured run with what the simulator predicts of it. trust: as of Replay.

    Raises:
        ValueError: the run has no step, or cannot be planned again as it was.
    """
    steps = counted(run.steps)
    if not steps:
        raise ValueError(f"{run.path} line {run.line}: the run of {name} has no measured step that counts")
    replay = Replay.of(run, trust)
    played = dict(zip((step["step"] for step in run.steps), replay.played_in_order(run.steps), strict=True))
    again: list[StepResult] = [played[step["step"]] for step in steps]
    return Row(
        name,
        len(steps),
        (fmean(step["seconds"] for step in steps), fmean(one.seconds for one in again)),
        (fmean(max(step["attention_seconds"]) for step in steps), fmean(max(one.attention_seconds) for one in again)),
        (fmean(max(step["linear_seconds"]) for step in steps), fmean(max(one.linear_seconds) for one in again)),
        max(abs(error((step["seconds"], one.seconds))) for step, one in zip(steps, again, strict=True)),
    )


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "what was measured is in the records, and the same command goes on")


def _main() -> int:
    parser = Parser(prog="python -m zbench.predicted", description="Simulated against measured, by workload.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of a run, as for python -m zbench")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"of {', '.join(WORKLOADS)} (default all)")
    parser.add_argument("--config-dir", help="a folder of your own choices, as for python -m zbench")
    parser.add_argument("--out", type=Path, default=Path("results/predicted"), help="folder of the records")
    add_trust(parser)
    asked = parser.parse_args()
    need("torch", "python -m zbench.predicted")
    names = known_words("--workloads", asked.workloads, WORKLOADS)
    own = [] if asked.config_dir is None else ["--config-dir", asked.config_dir]
    rows, failed = [], []
    with _folder(asked.out):
        for name in names:
            path = asked.out / f"{name}.jsonl"
            words = [*own, "experiment=one_gpu", *WORKLOADS[name], *asked.overrides, f"out={path}"]
            run = _finished(path, words)
            if run is None:
                if _measure(path, words) == BAD_INPUT:  # which it has told, and would be the next one's too
                    return BAD_INPUT
                run = _finished(path, words)
            if run is None:
                failed.append(name)
            else:
                rows.append(row(name, run, asked.trust))
    _print(rows, failed)
    return 1 if failed else 0


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Makes a folder and those above it, to write there; those that were made and are empty in the end are removed, so
    that a command that is refused leaves nothing.

    Raises:
        ValueError: it cannot be made.
    """
    try:
        made = [one for one in (path, *path.parents) if not one.exists()]  # the deepest first
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out is {str(path)!r}; it takes a folder: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # not empty, or gone already: it stays as it is
            for one in made:
                one.rmdir()


def _measure(path: Path, words: Sequence[str]) -> int:
    """Measures in a run of its own; returns it, and its exit code; what went wrong it has told.

    Raises:
        ValueError: there is no GPU, and nobody said that a CPU is to do.
    """
    if ON_CPU not in words and not _has_gpu():
        raise ValueError(
            "executor.device is not 'cpu'; whole layers are measured on a GPU, and torch finds no CUDA device on this "
            f"machine ({ON_CPU} model=tiny tokens_per_gpu=512 steps=1 tries the path on a CPU)"
        )
    print(f"predicted: measuring {path.stem}", file=sys.stderr, flush=True)
    return subprocess.run([sys.executable, "-m", "zbench", *words], stdout=subprocess.DEVNULL).returncode


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _finished(path: Path, words: Sequence[str]) -> Run | None:
    """Returns the last whole run of the record with exactly these words, by the sources that are here."""
    if not path.exists():
        return None
    sources = source_digest()
    same = [
        run
        for run in read(str(path))[0]
        if run.status == "finished"
        and run.start["fingerprint"]["sources"] == sources
        and run.start.get("command") == shlex.join(["python", "-m", "zbench", *words])
    ]
    return same[-1] if same else None


def _print(rows: Sequence[Row], failed: Sequence[str]) -> None:
    table = Table(title=f"mean seconds of a step; error: simulated against measured; the goal is {GOAL:.0%}")
    for title in (
        "workload",
        "steps",
        "measured",
        "simulated",
        "error",
        "worst step",
        "attention: measured",
        "error",
        "linear: measured",
        "error",
    ):
        table.add_column(title, justify="left" if title == "workload" else "right")
    for one in rows:
        table.add_row(
            one.workload,
            f"{one.steps}",
            f"{one.seconds[0]:.4g}",
            f"{one.seconds[1]:.4g}",
            f"{one.error:+.1%}",
            f"{one.worst:.1%}",
            f"{one.attention[0]:.4g}",
            f"{error(one.attention):+.1%}",
            f"{one.linear[0]:.4g}",
            f"{error(one.linear):+.1%}",
        )
    told = "nothing was measured"
    if rows:
        show(table)
        errors = [abs(one.error) for one in rows]
        within = f"{sum(error <= GOAL for error in errors)} of {len(rows)} measured workloads are within {GOAL:.0%}"
        told = f"median error {median(errors):.1%}, worst {max(errors):.1%}; {within}"
    not_run = f"; not measured: {', '.join(failed)}" if failed else ""
    print(f"predicted: {told}{not_run}")


if __name__ == "__main__":
    sys.exit(main())
