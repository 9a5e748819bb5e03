"""python -m zbench.figures NAME...|all [--run]: draws recorded figures as SVG and PNG beside their records. An edge."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    import time
    from collections.abc import Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import suppress
    from pathlib import Path
    from types import ModuleType

    from zbench.console.extras import need
    from zbench.console.sentence import not_among

NAMES = (
    "lengths",
    "costs",
    "throughput",
    "scaling",
    "ablation",
    "timeline",
    "nics",
    "planning",
    "flexsp",
    "headroom",
    "memory",
    "contexts",
    "seesaw",
    "desk_systems",
    "desk_nics",
    "desk_parts",
    "rlhf",
    "resharding",
    "placement",
    "overlap",
    "experts",
    "sharding",
    "sync",
)
ROOMS = {  # of zbench.figures, and what is in them
    "rollouts": ("seesaw", "rlhf", "resharding", "placement"),
    "strategies": ("overlap", "experts", "sharding", "sync", "contexts"),
}
AT_ONCE = 2  # records made at a time; where times are measured, the machine has one only
ALONE = ("planning", "desk_systems", "desk_parts")
ASKED = ("desk_systems", "desk_parts")  # made for those only who name them: they take a right and 20 minutes


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(lambda: _main(sys.argv[1:]), "figures drawn so far are kept, and records are as they were")


def _main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="python -m zbench.figures", description="Draws the papers' figures from their records.")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or of {', '.join(NAMES)}")
    parser.add_argument(
        "--run", action="store_true", help="first make the records that are missing or that other sources made"
    )
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in (*NAMES, "all"):
            raise ValueError(not_among("NAME", name, (*NAMES, "all")))
    names = NAMES if "all" in given.names else tuple(dict.fromkeys(given.names))
    figures = _figures(names)
    if given.run:
        experiments = {_record(name, figure): figure.EXPERIMENTS for name, figure in figures.items()}
        _make({name: some for name, some in experiments.items() if not ("all" in given.names and name in ASKED)})
    for name, figure in figures.items():
        print(_drawn(name, figure))
    return 0


def _figures(names: Sequence[str]) -> Mapping[str, ModuleType]:
    """
    Raises:
        ValueError: matplotlib is not installed.
    """
    from importlib import import_module

    need("matplotlib", "python -m zbench.figures")
    return {name: import_module(module_name(name)) for name in names}


def module_name(name: str) -> str:
    """Returns the name of a figure's module."""
    room = next((f"{room}." for room, names in ROOMS.items() if name in names), "")
    return f"zbench.figures.{room}{name}"


def _make(experiments: Mapping[str, Sequence[str]]) -> None:
    """Makes the records that are missing or old, AT_ONCE at a time."""
    from zbench.figures.records import is_current, load_records, make

    old = []
    for name in experiments:
        current = False
        with suppress(ValueError):  # none, or a broken one
            current = is_current(load_records(name))
        if not current:
            old.append(name)
    done, began = 0, time.monotonic()

    def one(name: str) -> None:
        nonlocal done
        make(name, experiments[name])
        done += 1
        print(f"record {done} of {len(old)}: {name}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, [name for name in old if name not in ALONE]))
    for name in old:
        if name in ALONE:
            one(name)


def _record(name: str, figure: ModuleType) -> str:
    """Returns the name of a figure's record: its own, or that of the figure whose record it draws, too."""
    return str(getattr(figure, "RECORD", name))


def _drawn(name: str, figure: ModuleType) -> Path:
    """Draws a figure from its record; the path of its SVG."""
    from zbench.figures import style
    from zbench.figures.records import FOLDER, check_experiments, is_current, load_records
    from zbench.figures.stamp import stamp

    records = load_records(_record(name, figure))
    check_experiments(name, records, figure.EXPERIMENTS)
    current = is_current(records)
    if not current:
        print(f"zbench: the record of {name} was made by other sources; --run makes it anew", file=sys.stderr)
    try:
        found, words = figure.table(records), stamp(records, figure.where(records))
    except KeyError as error:
        if current:
            raise
        raise ValueError(
            f"figure {name} needs {error} of every run, which these other sources did not record; --run makes it anew"
        ) from error
    with style.looks():
        picture, axes = style.panels(figure.SIZE, figure.PANELS)
        style.stamped(picture, words)
        figure.draw(axes, found)
        style.save_figure(picture, FOLDER / name)
    return FOLDER / f"{name}.svg"


if __name__ == "__main__":
    sys.exit(main())
