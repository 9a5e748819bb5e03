"""python -m zbench.compare FILE... [--json | --pivot FIGURES | --losses STEPS] [--convention NAME]: a table of runs.
python -m zbench.compare BASE NEW --fail-over 2%: exit code 1 where a run of NEW is worse than BASE's
(zbench.compare.gate).
"""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    import json
    from collections.abc import Sequence

    from zbench.compare.gate import DEFAULT, check_metrics, gate, percentage
    from zbench.compare.losses import losses
    from zbench.compare.pivot import FIGURES, TIME, check_figures, pivot
    from zbench.describe.units import with_noun
    from zbench.record.flops import CONVENTIONS
    from zbench.record.records import read_all
    from zbench.record.rows import Row, rows


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "nothing was written")


def _main() -> int:
    parser = Parser(prog="python -m zbench.compare", description="A table of recorded runs.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="records, as written by python -m zbench out=FILE")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON list instead of a table")
    form.add_argument(
        "--pivot",
        metavar="FIGURES",
        type=lambda text: text.split(","),
        help="markdown, systems down and workloads across, with these figures in every cell "
        f"(separated by commas, of {', '.join(FIGURES)}; {TIME} is all parts of a step's seconds)",
    )
    form.add_argument(
        "--losses",
        metavar="STEPS",
        type=int,
        help="markdown, mean losses of so many steps down and tokens/s, of runs that differ in their seeds together",
    )
    form.add_argument(
        "--fail-over",
        metavar="SHARE",
        help="of two records, a baseline and a new one: name what is more than SHARE (2%%) worse in the "
        "new one and exit with 1 if anything is",
    )
    parser.add_argument(
        "--metrics",
        metavar="NAMES",
        type=lambda text: text.split(","),
        help="with --fail-over: what to compare, separated by commas (docs/ci.md)",
    )
    parser.add_argument(
        "--convention", choices=list(CONVENTIONS), default="zbench", help="how MFU counts FLOPs (docs/metrics.md)"
    )
    arguments = parser.parse_args()
    if arguments.fail_over is not None:
        return _gate(arguments.files, arguments.fail_over, arguments.metrics)
    if arguments.metrics is not None:
        raise ValueError("--metrics says what --fail-over compares; it needs --fail-over, as in --fail-over 2%")
    if arguments.losses is not None:
        print(losses(read_all(arguments.files), arguments.losses))
        return 0
    check_figures(arguments.pivot or [])
    _show(rows(read_all(arguments.files), arguments.convention), arguments.json, arguments.pivot)
    return 0


def _gate(files: Sequence[str], share: str, metrics: Sequence[str] | None) -> int:
    """Tells what became worse; the exit code."""
    if len(files) != 2:
        raise ValueError(f"--fail-over compares two records, a baseline and a new one; {len(files)} were given")
    limit, names = percentage(share), metrics or DEFAULT
    check_metrics(names)
    found = gate(read_all(files[:1]), read_all(files[1:]), limit, names)
    for change in found.worse:
        print(f"worse: {change}")
    for place in found.added:
        print(f"not in the baseline: {place[0]} on {', '.join(place[1:])}")
    runs = with_noun(found.compared, "run")
    print(f"{runs} compared by {', '.join(names)}; worse by more than {share.strip()}: {len(found.worse)}")
    return 1 if found.worse else 0


def _show(found: list[Row], as_json: bool, figures_of_cells: Sequence[str] | None) -> None:
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    if figures_of_cells is not None:
        print(pivot(found, figures_of_cells))
        return
    from zbench.console.table import print_comparison

    print_comparison(found)


if __name__ == "__main__":
    sys.exit(main())
