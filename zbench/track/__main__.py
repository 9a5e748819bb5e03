"""python -m zbench.track sync FILE... [--tracker NAME] [--set KEY=VALUE] [--timeline]: sends recorded runs later.

An edge: no torch.
"""

import sys

from zbench.console.command import Parser, loading, ran
from zbench.describe.units import with_noun

with loading(__name__):
    import tempfile
    from collections.abc import Sequence
    from pathlib import Path

    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from zbench import CONF
    from zbench.interfaces.protocols import Tracker
    from zbench.record.flops import Facts
    from zbench.record.metrics import nic_curves
    from zbench.record.record import Run
    from zbench.record.records import read_all
    from zbench.record.rows import rows
    from zbench.run.known import add_trust
    from zbench.run.replay import Replay
    from zbench.track.names import CURVES, TIMELINE, of_run, step_figures, tracked


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "runs sent before are kept; sync sends a run again without doubling it")


def _main() -> int:
    names = sorted(path.stem for path in (CONF / "tracker").glob("*.yaml") if path.stem not in ("auto", "none"))
    parser = Parser(prog="python -m zbench.track", description="Sends recorded runs to a tracker.")
    parser.add_argument("action", choices=["sync"], help="sync: send every run of the records")
    parser.add_argument("files", nargs="+", metavar="FILE", help="records, as written by python -m zbench out=FILE")
    parser.add_argument("--tracker", choices=names, default="wandb", help="a choice of conf/tracker (default wandb)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of that choice's yaml")
    parser.add_argument(
        "--timeline", action="store_true", help="simulate the first step of every run again and send its timeline, too"
    )
    add_trust(parser)
    arguments = parser.parse_args()
    runs = read_all(arguments.files)
    tracker = _tracker(arguments.tracker, arguments.set)
    sync(runs, tracker, arguments.timeline, arguments.trust)
    print(f"{with_noun(len(runs), 'run')} sent; {'it is' if len(runs) == 1 else 'they are'} {tracker.where()}")
    return 0


def sync(runs: Sequence[Run], tracker: Tracker, timeline: bool, trust: bool = False) -> None:
    """Sends every run with its steps, as if it ran now; a run is told apart by its id. trust: as of Replay."""
    for run, row in zip(runs, rows(runs), strict=True):
        replay = Replay.of(run, trust) if timeline and run.steps else None  # before anything is sent
        tracker.start(tracked(run.start))
        facts = Facts.of(run.start["facts"])
        for line in run.steps:
            tracker.log(line["step"], step_figures(facts, line))
            if line.get("nic_series"):
                tracker.curves(line["step"], CURVES, line["nic_series"]["interval"], nic_curves(facts, line))
        if replay is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{TIMELINE}.json"
                batch, plans = replay.step(run.steps[0])
                replay.whole_steps.traced_step(batch, plans, str(path))
                tracker.attach(TIMELINE, str(path))
        tracker.finish(run.status, of_run(row))


def _tracker(name: str, settings: Sequence[str]) -> Tracker:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[f"+tracker={name}", *(f"tracker.{setting}" for setting in settings)])
    made: Tracker = instantiate(config.tracker, _convert_="all")
    return made


if __name__ == "__main__":
    sys.exit(main())
