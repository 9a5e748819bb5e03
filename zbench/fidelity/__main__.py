"""python -m zbench.fidelity: how well the simulator predicts what was measured, system by system.

    python -m zbench.fidelity executor=desk cluster=desk_2x4_a800 workload=longtail_4k steps=5 \\
        --systems ring,ulysses,zeppelin --out results/fidelity.jsonl     # measures, then compares
    python -m zbench.fidelity --out results/fidelity.jsonl               # compares what that file holds; --markdown

Runs are of executor=torch where neither executor= nor experiment= says otherwise. Every measured run of the record is
planned and simulated again from its own configuration, on the same batches: a whole step of executor=torch or desk as
the same whole step, with all of its strategy; one of attention's plans as the whole step that is told how it trained.
Exit codes: 0; 1 a run failed; 2 bad input; 130 stopped by Ctrl-C (what was measured stays in the record).
"""

import sys

from zbench.console.command import Parser, loading, ran
from zbench.describe.units import with_noun

with loading(__name__):
    import subprocess
    from collections.abc import Iterable, Mapping, Sequence
    from dataclasses import dataclass
    from statistics import median

    import numpy as np
    from omegaconf import OmegaConf
    from rich.table import Table

    from zbench import CONF
    from zbench.console.console import show
    from zbench.describe.arrays import Floats
    from zbench.record.flops import Facts
    from zbench.record.metrics import counted, counted_rounds, nic_bytes_per_step, nic_utilization
    from zbench.record.record import Line, Run
    from zbench.record.records import each, read_all
    from zbench.record.rows import label, setting
    from zbench.run.known import add_trust
    from zbench.run.replay import Replay

OWN = "torch"  # the executor that runs have where nothing else is said
BytesFor = Mapping[str, Sequence[float]]  # of every NIC, by what they are for
COLLECTIVES = ("parameters", "gradients")
MORE = 1.01  # times as many bytes, from which on it is told
_CHOSEN = "override /executor"  # in an experiment's yaml
LEAST_RANKED = 3  # systems: two are in the same order or in the other one, which is no correlation


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A system's steps, measured and simulated.

    of: system, workload and settings (zbench.record.rows). measured, simulated: mean seconds of a step. error: of the
    means, simulated against measured. errors: absolute, of each step, in rounds of each round, over which alone
    measured seconds even out. nic: mean utilisation of all NICs. bytes_error: of all that crossed NICs, measured
    against simulated (headers and acknowledgements are measured only). late: share of the steps by which messages were
    late on average (zbench.runtime.network.lateness); None: not on a desk. invalid: steps that do not count, with those
    of rounds that do not count whole. collectives: bytes of parameters and gradients that crossed NICs, measured over
    simulated: ranks of whole steps send these from GPU to GPU; None: none crossed, or they are not told apart."""

    of: Mapping[str, str]
    measured: float
    simulated: float
    errors: Sequence[float]
    nic_measured: float
    nic_simulated: float
    bytes_error: float
    late: float | None
    invalid: int
    collectives: float | None = None

    @property
    def error(self) -> float:
        """The relative error of the simulated seconds."""
        return self.simulated / self.measured - 1


def fidelity(run: Run, trust: bool = False) -> Fidelity:
    """Compares a run's steps with what the simulator predicts of them. trust: as of Replay.

    Raises:
        ValueError: the run was simulated itself, holds no step (in rounds no whole round) that counts, or cannot be
            planned again as it was.
    """
    none = f"the run of {label(run.start, 'system')} has no measured step that counts"
    if run.start["facts"]["simulated"] or not counted(run.steps):
        raise ValueError(none)
    replay = Replay.of(run, trust)
    rounds = counted_rounds(run.steps, run.start["config"].get("sync", {}))
    if not rounds:
        raise ValueError(f"{none}: a round does with all of its steps")
    played = replay.played_in_order(run.steps)
    steps = [run.steps[at] for one in rounds for at in one]
    predicted = [played[at] for one in rounds for at in one]
    facts = Facts.of(run.start["facts"])
    again = [
        {"seconds": one.seconds, "nic_tx_bytes": one.nic_tx_bytes, "nic_rx_bytes": one.nic_rx_bytes}
        for one in predicted
    ]
    seconds = [
        (_mean(run.steps[at]["seconds"] for at in one), _mean(played[at].seconds for at in one)) for one in rounds
    ]
    return Fidelity(
        {**{group: label(run.start, group) for group in ("system", "workload")}, **setting(run.start)},
        measured=float(np.mean([one for one, _ in seconds])),
        simulated=float(np.mean([other for _, other in seconds])),
        errors=[abs(other / one - 1) for one, other in seconds],
        nic_measured=float(np.mean(nic_utilization(facts, steps))),
        nic_simulated=float(np.mean(nic_utilization(facts, again))),
        bytes_error=sum(nic_bytes_per_step(steps)) / max(1.0, sum(nic_bytes_per_step(again))) - 1,
        late=_late(steps),
        invalid=len(run.steps) - len(steps),
        collectives=_over([step.get("nic_tx_for", {}) for step in steps], [one.nic_tx_for for one in predicted]),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _over(measured: Sequence[BytesFor], simulated: Sequence[BytesFor]) -> float | None:
    """Returns how many times as many bytes of collectives crossed NICs in some steps as in others."""
    sent = [sum(sum(one.get(name, ())) for name in COLLECTIVES for one in steps) for steps in (measured, simulated)]
    return sent[0] / sent[1] if all(sent) else None


def _late(steps: Sequence[Line]) -> float | None:
    told = [step["phases"]["late"] for step in steps if "late" in step.get("phases", {})]
    return sum(told) / sum(step["seconds"] for step in steps) if told else None


def order_in_words(found: Sequence[Fidelity]) -> str:
    """Says in words whether systems come out in the measured order; of a system's several runs the means count."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        seconds.setdefault(one.of["system"], []).append((one.measured, one.simulated))
    measured, simulated = np.array([np.mean(runs, axis=0) for runs in seconds.values()]).T
    if len(measured) == 1:
        return f"only {next(iter(seconds))} was measured, which has no order"
    if len(measured) < LEAST_RANKED:
        kept = bool((np.diff(measured) * np.diff(simulated) > 0).all())
        return f"{' and '.join(seconds)} are {'' if kept else 'not '}simulated in the measured order"
    value = np.corrcoef(_ranks(measured), _ranks(simulated))[0, 1]
    return f"rank correlation of the order of {with_noun(len(measured), 'system')} (Spearman): {value:.2f}"


def _ranks(values: Floats) -> Floats:
    """Returns each value's rank, counted from a half; those that are equal have the mean of theirs."""
    ordered = np.sort(values)
    found: Floats = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
    return found


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "what was measured is in the record")


def measuring(overrides: Sequence[str]) -> list[str]:
    """Returns the words of a run with an executor that measures: the one that they name, or that the experiment has
    which they name; torch otherwise.

    Raises:
        ValueError: it is simulated, so that nothing would be measured.
    """
    pairs = [word.partition("=")[::2] for word in overrides]
    of_experiments = [_executor_of(value) for key, value in pairs if key == "experiment"]
    given = [value for value in (*of_experiments, *(value for key, value in pairs if key == "executor")) if value]
    if given and given[-1] == "simulated":
        raise ValueError("executor is 'simulated'; it takes one that measures, as torch and desk do")
    return list(overrides) if given else [f"executor={OWN}", *overrides]


def _executor_of(experiment: str) -> str | None:
    """Returns the executor that an experiment chooses; None where it chooses none, or is none that is here."""
    path = CONF / "experiment" / f"{experiment}.yaml"
    found = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    chosen = found.get("defaults", []) if isinstance(found, dict) else []
    return next((str(one[_CHOSEN]) for one in chosen if _CHOSEN in one), None)


def _main() -> int:
    parser = Parser(prog="python -m zbench.fidelity", description="Simulated against measured, by system.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of a run, as for python -m zbench")
    parser.add_argument("--systems", default="ring,ulysses,zeppelin", help="to measure (default ring,ulysses,zeppelin)")
    parser.add_argument("--out", default="results/fidelity.jsonl", help="the record (default results/fidelity.jsonl)")
    parser.add_argument("--markdown", action="store_true", help="the table for a document")
    add_trust(parser)
    asked = parser.parse_args()
    if asked.overrides:
        words = measuring(asked.overrides)
        for system in asked.systems.split(","):
            own = [f"system={system}", "baseline=null", "tracker=none", f"out={asked.out}"]
            done = subprocess.run([sys.executable, "-m", "zbench", *words, *own], stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                return done.returncode
    measured = [run for run in read_all([asked.out]) if not run.start["facts"]["simulated"] and run.steps]
    for run in measured:
        if not counted(run.steps):
            print(f"zbench: no step of {label(run.start, 'system')} counts: this machine was too busy", file=sys.stderr)
    found = each([run for run in measured if counted(run.steps)], lambda run: fidelity(run, asked.trust))
    if not found:
        raise ValueError(
            f"--out is {asked.out}; it holds no measured run that counts, and without KEY=VALUE nothing is measured"
        )
    _print(found, asked.markdown)
    return 0


def _print(found: Sequence[Fidelity], markdown: bool) -> None:
    several = [key for key in found[0].of if key != "system" and len({one.of[key] for one in found}) > 1]
    titles = [
        *several,
        "system",
        "measured",
        "simulated",
        "error",
        "steps: median, worst",
        "NICs measured",
        "simulated",
        "bytes",
        "late",
        "do not count",
    ]
    rows = [
        [
            *(one.of[group] for group in several),
            one.of["system"],
            f"{one.measured:.3f}",
            f"{one.simulated:.3f}",
            f"{one.error:+.1%}",
            f"{median(one.errors):.1%}, {max(one.errors):.1%}",
            f"{one.nic_measured:.1%}",
            f"{one.nic_simulated:.1%}",
            f"{one.bytes_error:+.1%}",
            "-" if one.late is None else f"{one.late:.1%}",
            f"{one.invalid}",
        ]
        for one in found
    ]
    if markdown:
        for row in (titles, ["---"] * len(titles), *rows):
            print(f"| {' | '.join(row)} |")
        print()
    else:
        table = Table(title="mean seconds a step; NIC utilisation, mean of all NICs")
        for at, title in enumerate(titles):
            table.add_column(title, justify="right" if at > len(several) else "left")
        for row in rows:
            table.add_row(*row)
        show(table)
    errors = [abs(one.error) for one in found]
    print(f"error of the means: median {median(errors):.1%}, worst {max(errors):.1%}")
    for place in dict.fromkeys(tuple(one.of[group] for group in several) for one in found):
        mine = [one for one in found if tuple(one.of[group] for group in several) == place]
        print(f"{', '.join(place)}: {order_in_words(mine)}" if place else order_in_words(mine))
    if more := [one for one in found if (one.collectives or 0) > MORE]:
        times = max(one.collectives or 0 for one in more)
        print(
            f"gathers and reductions of {', '.join(dict.fromkeys(one.of['system'] for one in more))} went from GPU to "
            f"GPU, up to {times:.2g} times the bytes over NICs of the collectives that are simulated; with "
            "sharding.collectives=hierarchical both are the same"
        )


if __name__ == "__main__":
    sys.exit(main())
