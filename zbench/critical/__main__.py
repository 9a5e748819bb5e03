"""python -m zbench.critical RECORD [--run N] [--step N] [-o FILE]: which operation waited for which in a whole step."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    from zbench.console.console import say, show
    from zbench.critical.told import told_path
    from zbench.record.kinds import PATH
    from zbench.record.outputs import check_apart, check_output, whole_file
    from zbench.record.record import Line, Run
    from zbench.record.records import read_all
    from zbench.record.rows import label
    from zbench.run.known import add_trust
    from zbench.run.replay import Replay


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "nothing was written")


def _main() -> int:
    parser = Parser(prog="python -m zbench.critical", description="The critical path of a whole step, simulated.")
    parser.add_argument("record", metavar="RECORD", help="a record, as written by python -m zbench out=FILE")
    parser.add_argument(
        "--run", type=int, metavar="N", help="the run, counted from 1 as zbench compare does (the last)"
    )
    parser.add_argument("--step", type=int, metavar="N", help="the step's number (the run's first)")
    parser.add_argument("-o", "--out", metavar="FILE", help="writes the list as Markdown, too")
    add_trust(parser)
    arguments = parser.parse_args()
    if arguments.out is not None:
        check_output("--out", arguments.out, PATH)
        check_apart({"--out": arguments.out}, [arguments.record])
    run, line = chosen_step(read_all([arguments.record]), arguments.run, arguments.step)
    replay = Replay.of(run, arguments.trust)
    if replay.of_attention:
        other = label(run.start, "executor")
        raise ValueError(
            f"the run has executor={other}; a critical path takes a run of whole steps, as of executor=simulated, or "
            "of torch or desk, whose steps are played as they are described"
        )
    batch, plans = replay.step(line)
    told = told_path(*replay.whole_steps.all_layers(batch, plans), run.start, line)
    say(told.head)
    for sheet in (told.made, told.listed):
        show(sheet.rich())
    if arguments.out is not None:
        with whole_file("--out", arguments.out, PATH) as stream:
            stream.write("\n".join([f"{told.head}\n", told.made.markdown(), told.listed.markdown()]).encode())
    return 0


def chosen_step(runs: list[Run], number: int | None, step: int | None) -> tuple[Run, Line]:
    """Returns the run and the step's line that are asked for. number: of the run, from 1; None: the last. step: its
    number; None: the run's first.

    Raises:
        ValueError: there is no such run, or no such step in it.
    """
    if number is not None and not 1 <= number <= len(runs):
        raise ValueError(f"--run is {number}; the record has runs 1 to {len(runs)}")
    run = runs[-1 if number is None else number - 1]
    lines = [line for line in run.steps if step is None or line["step"] == step]
    if not lines and step is None:
        raise ValueError("the run has no finished step; a critical path takes one")
    if not lines:
        raise ValueError(f"--step is {step}; the run has steps {', '.join(str(line['step']) for line in run.steps)}")
    return run, lines[0]


if __name__ == "__main__":
    sys.exit(main())
