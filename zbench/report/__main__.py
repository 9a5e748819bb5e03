"""python -m zbench.report FILE... [-o report.html] [--steps 0,3 | all]: recorded runs as a page for a browser."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    import shlex
    from collections.abc import Sequence
    from datetime import UTC, datetime
    from pathlib import Path
    from typing import Any

    from zbench.console.meter import Meter
    from zbench.cost.cost import Cost
    from zbench.describe.units import with_noun
    from zbench.plans.plan import Plan
    from zbench.record.flops import CONVENTIONS, Facts
    from zbench.record.kinds import PAGE
    from zbench.record.outputs import check_apart, check_output, whole_file
    from zbench.record.record import Line, Run
    from zbench.record.records import read_all
    from zbench.record.words import convention_words, doubt_words
    from zbench.report.about import TokenBlocks
    from zbench.report.advice import advice_told, is_advice
    from zbench.report.columns import MOST_EVENTS
    from zbench.report.inside import critical_path_table, homes, timeline
    from zbench.report.measured import measured_timeline
    from zbench.report.measured_steps import is_of_whole_steps, measured_step_timeline
    from zbench.report.overview import SERIES, SHARES, overview, rounded, step_overview
    from zbench.report.page import encoded, page
    from zbench.run.known import Unknown, add_trust
    from zbench.run.replay import Replay
    from zbench.standing.cells import cells_by_world
    from zbench.standing.survival import survivals
    from zbench.trace.file import recorded

MOST_BYTES = 30e6  # of steps looked into; browsers open such a page within seconds
_SAME = 1e-9  # relative: a step simulated again by the same sources


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "no page was written")


def _main() -> int:
    parser = Parser(prog="python -m zbench.report", description="Recorded runs as one page for a browser.")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="records, as written by python -m zbench out=FILE, or answers of zbench advise --json",
    )
    parser.add_argument("-o", "--out", default="report.html", metavar="FILE", help="the page (default report.html)")
    parser.add_argument(
        "--steps",
        default="first",
        metavar="STEPS",
        help="steps of every run to look into: first (default), all, or numbers as in 0,5",
    )
    parser.add_argument(
        "--convention", choices=list(CONVENTIONS), default="zbench", help="how MFU counts FLOPs (docs/metrics.md)"
    )
    add_trust(parser)
    arguments = parser.parse_args()
    check_output("--out", arguments.out, PAGE)
    check_apart({"--out": arguments.out}, arguments.files)
    for path in arguments.files:
        _check_readable(path)
    answers = [path for path in dict.fromkeys(arguments.files) if is_advice(path)]
    advice = [advice_told(path) for path in answers]
    records = [path for path in arguments.files if path not in answers]
    runs = read_all(records) if records else []
    steps, left_out = looked_into(steps_to_show(runs, arguments.steps), arguments.trust)
    found = overview(runs, arguments.convention)
    text = page(
        {
            "files": arguments.files,
            "command": shlex.join(["python", "-m", "zbench.report", *sys.argv[1:]]),
            "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "convention": " ".join([convention_words(arguments.convention), *doubt_words(found)]),
            "shares": SHARES,
            "series": SERIES,
            "left_out": left_out,
            "runs": found,
            "steps": steps,
            "worlds": worlds_told(runs),
            "advice": advice,
        }
    )
    with whole_file("--out", arguments.out, PAGE) as stream:
        stream.write(text.encode("utf-8", "replace"))  # a record's text may hold half a surrogate pair
    size = Path(arguments.out).stat().st_size / 1e6
    told = f"{with_noun(len(advice), 'answer')}, " if advice else ""
    print(
        f"{arguments.out}: {told}{with_noun(len(runs), 'run')}, {with_noun(len(steps), 'step')} to look into, "
        f"{size:.1f} MB"
    )
    for words in left_out:
        print(words)
    return 0


def _check_readable(path: str) -> None:
    """Refuses what cannot be read, before it is known whether it is a record or an answer.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        told = f"FILE {path!r} cannot be read: {error.strerror}; it takes records and answers of zbench advise --json"
        raise ValueError(told) from error


def worlds_told(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns, for every place with several worlds, the ranges, as a table, and what survives, in sentences
    (zbench.standing.survival)."""
    out = []
    try:
        for one in survivals(runs, cells_by_world(runs)):
            columns, rows = one.ranges()
            out.append({"title": one.title, "columns": columns, "rows": rows, "lines": one.lines()})
    except ValueError as error:  # batches that cannot be compared; the rest of the page can be shown
        out.append({"title": "Worlds that cannot be compared", "columns": [], "rows": [], "lines": [f"{error}."]})
    return out


def steps_to_show(runs: Sequence[Run], steps: str) -> list[tuple[Run, Line]]:
    """Returns the steps to look into: every run's first, then every run's next, so that a page too large lacks late
    ones.

    Raises:
        ValueError: `steps` is neither first, all nor numbers, or no run has a step of such a number.
    """
    words = steps.split(",")
    if steps not in ("first", "all") and not all(word.strip().isdecimal() for word in words):
        raise ValueError(f"--steps is {steps!r}; it takes first, all, or numbers separated by commas, as in 0,5")
    numbers = set() if steps in ("first", "all") else {int(word) for word in words}
    found = [
        (place, run, line)
        for run in runs
        for place, line in enumerate(run.steps)
        if steps == "all" or (steps == "first" and place == 0) or line["step"] in numbers
    ]
    if not found and any(run.steps for run in runs):
        raise ValueError(f"--steps is {steps!r}; no run of the records has such a step")
    return [(run, line) for _, run, line in sorted(found, key=lambda one: one[0])]


def looked_into(wanted: Sequence[tuple[Run, Line]], trust: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Returns (what the page has of each step, by 'RUN/STEP'; what had to be left out, in sentences). trust: as of
    Replay."""
    out: dict[str, Any] = {}
    left_out, size = [], 0
    replays: dict[str, Replay | ValueError] = {}
    with Meter(len(wanted)) as meter:
        for number, (run, line) in enumerate(wanted):
            found = look_inside(run, line, replays, trust)
            size += len(encoded(found))
            if size > MOST_BYTES:
                left_out.append(
                    f"{len(wanted) - number} of {len(wanted)} steps are left out: the page would be larger than "
                    f"{MOST_BYTES / 1e6:.0f} MB. Fewer runs or --steps have room for others."
                )
                break
            out[f"{run.start['run']}/{line['step']}"] = found
            meter.show("looking into", number + 1)
    left_out += [str(told) for told in replays.values() if isinstance(told, Unknown)]
    drawable = {key: step for key, step in out.items() if "homes" in step and "undrawn" not in step}
    if dense := [key for key, step in drawable.items() if step["timeline"] is None]:
        left_out.append(
            f"The timelines of {len(dense)} steps are left out: they have more than {MOST_EVENTS:,} events. "
            "trace=FILE writes one for Perfetto."
        )
    return out, left_out


def look_inside(run: Run, line: Line, replays: dict[str, Replay | ValueError], trust: bool = False) -> dict[str, Any]:
    """Looks into a step: returns what the record says, and its plans, made again; where that fails, why, in `problem`.
    Of a measured step that was traced the timeline is its trace; where that is gone, why, in `untraced`. Of others it
    is simulated, as a whole step; where there is none of its configuration, why, in `undrawn`.

    replays: by run, those made so far. trust: as of Replay.
    """
    found: dict[str, Any] = {"record": step_overview(Facts.of(run.start["facts"]), line)}
    plans: tuple[Plan, ...] = ()
    cost: Cost | None = None
    blocks = TokenBlocks()
    try:
        replay = replays.get(run.start["run"])
        if isinstance(replay, ValueError):
            raise replay
        replay = replays[run.start["run"]] = replay or Replay.of(run, trust)
        batch, plans = replay.step(line)
        cost = replay.cost
        executor = replay.whole_steps
        found |= {"homes": homes(plans, cost), "timeline": None}
        try:
            found["timeline"] = timeline(batch, plans, executor)
            blocks = TokenBlocks.of(executor, batch, plans)
        except ValueError as error:
            found["undrawn"] = str(error)
        if not replay.of_attention:
            found["critical"] = critical_path_table(batch, plans, executor, run.start, line)
        if run.start["facts"].get("simulated") and not replay.of_attention:
            executor.start()
            again = executor.step(replay.parts.workload.batch(line["step"]), plans).seconds
            again += line.get("phases", {}).get("switch", 0.0)
            if abs(again - line["seconds"]) > _SAME * line["seconds"]:
                found["again_seconds"] = rounded(again)
    except ValueError as error:
        replays.setdefault(run.start["run"], error)
        found["problem"] = str(error)
    if not run.start["facts"].get("simulated") and line.get("trace") is not None:
        try:
            events = recorded(line["trace"], Path(run.path).parent)
            if is_of_whole_steps(events):
                found["timeline"] = measured_step_timeline(events, blocks, run.start["facts"]["num_gpus"])
            else:
                found["timeline"] = measured_timeline(events, plans, cost)
        except ValueError as error:
            found["untraced"] = str(error)
        except (KeyError, TypeError, IndexError, AttributeError):  # events that our own writers do not make
            found["untraced"] = "its trace holds events that zbench does not write"
    return found


if __name__ == "__main__":
    sys.exit(main())
