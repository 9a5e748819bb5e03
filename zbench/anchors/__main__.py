"""python -m zbench.anchors [--json]: what others have measured beside what zbench predicts. An edge."""

import sys

from zbench.command import Parser, loading, ran

with loading(__name__):
    import json
    from collections.abc import Sequence
    from dataclasses import asdict

    from zbench.anchors import attention, flexsp, steps, training
    from zbench.anchors.anchor import Anchor
    from zbench.anchors.presets import cluster, workload
    from zbench.anchors.summary import summary

GROUPS = {
    "flexsp": "FlexSP's all-to-all bandwidths and compute coefficients, 64 A100",
    "attention": "one layer's attention on 8 and 16 H100",
    "training": "whole training steps, H100",
    "steps": "FlexSP's training steps with documents of different lengths, 64 A100",
    "unhidden": "the same steps if nothing hid parameters' gathers and gradients' reductions",
}


def anchors() -> list[Anchor]:
    groups = flexsp.anchors(cluster) + attention.anchors(cluster) + training.anchors(cluster)
    return groups + steps.anchors(cluster, workload)


def main() -> int:
    return ran(_main, "nothing was written")


def _main() -> int:
    parser = Parser(
        prog="python -m zbench.anchors",
        description="Published measurements beside this project's predictions; docs/cost.md tells which are blind.",
    )
    parser.add_argument("--json", action="store_true", help="a JSON list instead of tables")
    arguments = parser.parse_args()
    found = anchors()
    _show_json(found) if arguments.json else _show(found)
    return 0


def _show_json(found: Sequence[Anchor]) -> None:
    rows = [{**asdict(anchor), "error": anchor.error} for anchor in found]
    keys = ("anchor", "case", "measured", "predicted", "error", "source")
    print(json.dumps([{key: row[key] for key in keys} for row in rows], indent=1, allow_nan=False), flush=True)


def _show(found: Sequence[Anchor]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    for group, title in GROUPS.items():
        members = [anchor for anchor in found if anchor.anchor == group]
        table = Table(title=f"{group}: {title}", title_justify="left", box=None, pad_edge=False)
        table.add_column("case")
        for name in ("measured", "predicted", "error"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("source", style="dim", overflow="fold")
        for anchor in members:
            numbers = f"{anchor.measured:.4g}", f"{anchor.predicted:.4g}", f"{anchor.error:+.1%}"
            table.add_row(anchor.case, *numbers, anchor.source)
        console.print(table)
        console.print(_line(group, members), style="bold", highlight=False)
        console.print()
    console.print("predicted: simulated by zbench on described devices and clusters. measured: published by others.")


def _line(group: str, members: Sequence[Anchor]) -> str:
    s = summary(members)
    errors = f"error median {s.median:.1%}, p90 {s.p90:.1%}, worst {s.worst:.1%}"
    broken = "".join(f"\n  predicted in the wrong order: measured {high} above {low}" for high, low in s.broken)
    orders = f"{len(s.broken)} of {s.pairs} orders broken" if s.pairs else "no two cases have an order to keep"
    return f"{group}: {len(members)} cases, {errors}; {orders}{broken}"


if __name__ == "__main__":
    sys.exit(main())
