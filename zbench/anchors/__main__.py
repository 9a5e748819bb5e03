"""python -m zbench.anchors [--world NAME] [--group GROUP], --operations [training] [--world NAME]
[--window N] [--as-published], or --rows FILE [--group GROUP]; [--json]: measured and predicted. An edge."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    import argparse
    import json
    from collections import Counter
    from collections.abc import Sequence
    from dataclasses import asdict
    from pathlib import Path
    from typing import Any

    from zbench.anchors import attention, flexsp, long_context, nccl, ring_flash_attention, steps, training
    from zbench.anchors.anchor import Anchor, GetCluster
    from zbench.anchors.measured import MeasuredRow, read_measured
    from zbench.anchors.operations import AHEAD, step_operations
    from zbench.anchors.presets import cluster, workload, world, worlds
    from zbench.console.meter import Meter
    from zbench.describe.cluster import Cluster
    from zbench.describe.overlap import BACKWARD
    from zbench.describe.units import with_noun
    from zbench.describe.worlds import NOMINAL

TRAINING = "training"  # the group whose steps --operations may be of
GROUPS = {
    "flexsp": "FlexSP's all-to-all bandwidths and compute coefficients, 64 A100",
    "nccl": "NCCL's own bus bandwidths",
    "attention": "one layer's attention on 8 and 16 H100",
    "magi": "the same by MagiAttention, with a kernel of its own",
    "ring_flash": "ring-flash-attention's benchmark, one layer's attention on 8 GPUs",
    "training": "whole training steps, one sequence on a GPU",
    "long_context": "whole training steps, one long sequence over all GPUs",
    "steps": "FlexSP's training steps with documents of different lengths, 64 A100",
}


def anchors(name: str = NOMINAL, group: attention.Group | None = None) -> list[Anchor]:
    """Returns all published numbers that this project predicts, each beside its prediction. name: of the world that
    clusters are in, if they have it. group: one of attention, alone."""
    described = _clusters(name)
    if group is not None:
        return attention.anchors(described, group)
    groups = flexsp, nccl, attention, ring_flash_attention, training, long_context
    found = [anchor for module in groups for anchor in module.anchors(described)]
    return found + attention.anchors(described, "magi") + steps.anchors(described, workload)


def _clusters(name: str) -> GetCluster:
    """Returns what describes clusters in a world."""
    there = world(name)

    def described(preset: str, num_nodes: int | None = None, device: str | None = None) -> Cluster:
        return there.of_cluster(cluster(preset, num_nodes, device))

    return described


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_anchors, "nothing was written")


def _anchors() -> int:
    arguments = _asked()
    if arguments.rows == "":
        raise ValueError("--rows is ''; it takes a CSV file of measured rows")
    for name in ("rows", "group"):
        if arguments.operations and (value := getattr(arguments, name)):
            told = "is of published steps, as whole steps, so it takes no"
            raise ValueError(f"--{name} is {value}; --operations {told} --{name} beside it")
    if arguments.window is not None and not arguments.operations:
        told = "it is of the operations of steps, so give --operations as well"
        raise ValueError(f"--window is {arguments.window}; {told}")
    if arguments.as_published and not arguments.operations:
        raise ValueError("--as-published is of the operations of steps, so give --operations as well")
    if arguments.window is not None and arguments.operations == TRAINING:
        told = f"--operations {TRAINING} has whole steps' usual one, or that of --as-published"
        raise ValueError(f"--window is {arguments.window}; {told}, so it takes no --window beside it")
    if arguments.rows and arguments.world:
        told = "it is of published numbers, so it takes no --rows beside it"
        raise ValueError(f"--world is {arguments.world}; {told}")
    if arguments.operations == TRAINING:
        _training_operations(arguments.world or NOMINAL, arguments.as_published, arguments.json)
    elif arguments.operations:
        _operations(arguments.world or NOMINAL, arguments.window, arguments.as_published, arguments.json)
    elif arguments.rows:
        _own_rows(Path(arguments.rows), arguments.group or attention.GROUPS[0], arguments.json)
    else:
        _published(arguments.world or NOMINAL, arguments.group, arguments.json)
    return 0


def _asked() -> argparse.Namespace:
    parser = Parser(
        prog="python -m zbench.anchors",
        description="Measurements beside this project's predictions: published ones, those that constants were chosen "
        "with (known) and the others (blind) apart, or your own rows of attention on several GPUs (docs/cost.md).",
    )
    parser.add_argument("--rows", metavar="FILE", help="a CSV of measured attention, instead of all anchors")
    parser.add_argument(
        "--group",
        choices=attention.GROUPS,
        help="a group of attention alone; of --rows, the methods that are predicted: those of the wrapper (the default "
        "there), or MagiAttention's",
    )
    parser.add_argument(
        "--world", metavar="WORLD", choices=worlds(), help="a world of conf/world that clusters are in (docs/worlds.md)"
    )
    parser.add_argument(
        "--operations",
        nargs="?",
        const="steps",
        choices=("steps", TRAINING),
        help="instead, what the seconds of published steps go to, as whole steps: FlexSP's (steps, where nothing is "
        "said), and by its own constants, or those of group training",
    )
    parser.add_argument(
        "--window",
        type=lambda word: int(word) if word.lstrip("-").isdigit() else word,
        metavar="N",
        help=f"of --operations: layers whose parameters are gathered ahead ({AHEAD}), or {BACKWARD}: one, there alone",
    )
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="of --operations: documents padded, and the smallest groups of two GPUs, as FlexSP's public code has "
        "them; of training gathers and reductions as their configurations have them",
    )
    parser.add_argument("--json", action="store_true", help="a JSON list instead of tables")
    return parser.parse_args()


def _published(world: str, group: attention.Group | None, as_json: bool) -> None:
    found = anchors(world, group)
    if not as_json:
        from zbench.anchors.show import show_groups

        show_groups(found, GROUPS, apart="magi" if group is None else "")
        return
    rows = [{**asdict(anchor), "error": anchor.error} for anchor in found]
    keys = ("anchor", "case", "measured", "predicted", "error", "known", "source")
    _print_json([{key: row[key] for key in keys} for row in rows])


def _operations(world: str, window: int | str | None, as_published: bool, as_json: bool) -> None:
    ahead = AHEAD if window is None else window
    found = step_operations(_clusters(world), workload, ahead, as_published=as_published)
    if as_json:
        _print_json([one.as_row() for one in found])
        return
    from zbench.anchors.show import show_operations

    show_operations(found)


def _training_operations(world: str, as_published: bool, as_json: bool) -> None:
    found = training.training_operations(_clusters(world), as_published)
    if as_json:
        _print_json([one.as_row() for one in found])
        return
    from zbench.anchors.show import show_training_operations

    show_training_operations(found)


def _own_rows(path: Path, group: attention.Group, as_json: bool) -> None:
    """Predicts and shows a user's rows of one group of methods: of two, no error or order would be told of both
    together."""
    rows = read_measured(path)
    left_out = _left_out(rows, group)
    with Meter(attention.num_plays(rows, group), unit="pack") as meter:
        rates = attention.predict(rows, cluster, lambda done: meter.show("predicting", done), group)
    known = attention.are_known(rows)
    if as_json:
        for line in left_out:
            print(f"zbench: left out: {line}", file=sys.stderr)
        _print_json([_line(*one) for one in zip(rows, rates, known, strict=True)])
    else:
        _show_rows(path, group, rows, rates, known, left_out)
    if all(rate is None for rate in rates):
        raise ValueError(f"{path} has no row that can be predicted; what it lacks is named above")


def _show_rows(
    path: Path,
    group: attention.Group,
    rows: Sequence[MeasuredRow],
    rates: Sequence[float | None],
    known: Sequence[bool],
    left_out: Sequence[str],
) -> None:
    from zbench.anchors.show import show_rows

    compared = [
        attention.compared(row, rate, str(path), "rows", was_known)
        for row, rate, was_known in zip(rows, rates, known, strict=True)
        if rate is not None
    ]
    show_rows(compared, left_out, attention.layout_lines(rows, cluster, group))


def _left_out(rows: Sequence[MeasuredRow], group: attention.Group) -> list[str]:
    """Returns why rows have no prediction, a line for every reason."""
    reasons = Counter(reason for row in rows if (reason := attention.why_no_prediction(row, group)))
    return [f"{with_noun(count, 'row')} of {reason}" for reason, count in reasons.items()]


def _line(row: MeasuredRow, rate: float | None, known: bool) -> dict[str, Any]:
    """Returns a measured row and its prediction as a row of --json."""
    predicted = None if rate is None else rate / 1e12
    error = None if predicted is None else predicted / row.tflops_per_gpu - 1
    return {**row.columns(), "measured": row.tflops_per_gpu, "predicted": predicted, "error": error, "known": known}


def _print_json(rows: list[dict[str, Any]]) -> None:
    print(json.dumps(rows, indent=1, allow_nan=False), flush=True)


if __name__ == "__main__":
    sys.exit(main())
