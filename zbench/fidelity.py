"""python -m zbench.fidelity: how well the simulator predicts what was measured, system by system.

    python -m zbench.fidelity executor=desk cluster=desk_2x4_a800 workload=longtail_4k steps=5 \\
        --systems ring,ulysses,zeppelin --out results/fidelity.jsonl     # measures, then compares
    python -m zbench.fidelity --out results/fidelity.jsonl               # compares what that file holds

Every measured run of the record is planned and simulated again from its own configuration, on the same batches.
Exit codes: 0; 1 a run failed; 2 bad input; 130 stopped by Ctrl-C (what was measured stays in the record).
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from zbench.command import Parser, ran
from zbench.compare import label
from zbench.metrics import Facts, counted, nic_bytes, nic_utilization
from zbench.record import Run, read
from zbench.replay import Replay


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A system's steps, measured and simulated. seconds: means. error: of the means, simulated against measured.
    errors: absolute, of each step. nic: mean utilisation of all NICs. bytes_error: of all that crossed NICs, measured
    against simulated (headers and acknowledgements are measured only). invalid: steps that do not count."""

    system: str
    measured: float
    simulated: float
    errors: Sequence[float]
    nic_measured: float
    nic_simulated: float
    bytes_error: float
    invalid: int

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1


def fidelity(run: Run) -> Fidelity:
    """
    Raises:
        ValueError: the run was simulated itself, holds no step that counts, or cannot be planned again as it was.
    """
    name = label(run.start, "system")
    steps = counted(run.steps)
    if run.start["facts"]["simulated"] or not steps:
        raise ValueError(f"{run.path} line {run.line}: the run of {name} has no measured step that counts")
    replay = Replay.of(run)
    predicted = [replay.parts.executor.step(*replay.step(step)) for step in steps]
    facts = Facts.of(run.start["facts"])
    again = [{"seconds": one.seconds, "nic_tx_bytes": one.nic_tx_bytes, "nic_rx_bytes": one.nic_rx_bytes}
             for one in predicted]  # fmt: skip
    seconds = [(step["seconds"], one.seconds) for step, one in zip(steps, predicted, strict=True)]
    return Fidelity(
        name,
        measured=float(np.mean([one for one, _ in seconds])),
        simulated=float(np.mean([other for _, other in seconds])),
        errors=[abs(other / one - 1) for one, other in seconds],
        nic_measured=float(np.mean(nic_utilization(facts, steps))),
        nic_simulated=float(np.mean(nic_utilization(facts, again))),
        bytes_error=sum(nic_bytes(steps)) / max(1.0, sum(nic_bytes(again))) - 1,
        invalid=len(run.steps) - len(steps),
    )


def rank_correlation(found: Sequence[Fidelity]) -> float:
    """Spearman's, of the systems' order by measured and by simulated seconds; 1 where the order is the same."""
    first, second = (
        np.argsort(np.argsort(list(x))) for x in ((f.measured for f in found), (f.simulated for f in found))
    )
    return float(np.corrcoef(first, second)[0, 1]) if len(found) > 1 else 1.0


def main() -> int:
    return ran(_main, "what was measured is in the record")


def _main() -> int:
    parser = Parser(prog="python -m zbench.fidelity", description="Simulated against measured, by system.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of a run, as for python -m zbench")
    parser.add_argument("--systems", default="ring,ulysses,zeppelin", help="to measure (default ring,ulysses,zeppelin)")
    parser.add_argument("--out", default="results/fidelity.jsonl", help="the record (default results/fidelity.jsonl)")
    asked = parser.parse_args()
    if asked.overrides:
        for system in asked.systems.split(","):
            own = [f"system={system}", "baseline=null", "tracker=none", f"out={asked.out}"]
            done = subprocess.run([sys.executable, "-m", "zbench", *asked.overrides, *own], stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                return done.returncode
    runs, problems = read(asked.out)
    for problem in problems:
        print(f"zbench: {problem}", file=sys.stderr)
    measured = [run for run in runs if not run.start["facts"]["simulated"] and run.steps]
    for run in measured:
        if not counted(run.steps):
            print(f"zbench: no step of {label(run.start, 'system')} counts: this machine was too busy", file=sys.stderr)
    found = [fidelity(run) for run in measured if counted(run.steps)]
    if not found:
        raise ValueError(
            f"--out is {asked.out}; it holds no measured run that counts, and without KEY=VALUE nothing is measured"
        )
    _print(found)
    return 0


def _print(found: Sequence[Fidelity]) -> None:
    table = Table(title="mean seconds a step; NIC utilisation, mean of all NICs")
    for title in ("system", "measured", "simulated", "error", "of steps: median", "worst", "NIC measured", "simulated",
                  "bytes", "invalid"):  # fmt: skip
        table.add_column(title, justify="left" if title == "system" else "right")
    for one in found:
        table.add_row(
            one.system, f"{one.measured:.3f}", f"{one.simulated:.3f}", f"{one.error:+.1%}", f"{median(one.errors):.1%}",
            f"{max(one.errors):.1%}", f"{one.nic_measured:.1%}", f"{one.nic_simulated:.1%}", f"{one.bytes_error:+.1%}",
            f"{one.invalid}",
        )  # fmt: skip
    Console(width=140).print(table)
    errors = [abs(one.error) for one in found]
    print(f"error of the means: median {median(errors):.1%}, worst {max(errors):.1%}")
    print(f"rank correlation of the systems' order (Spearman): {rank_correlation(found):.2f}")


if __name__ == "__main__":
    sys.exit(main())
