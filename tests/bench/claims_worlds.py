"""Papers' ratios in every world and with other prefetch windows: the tables of results/docs/claims.md, worlds.

python -m tests.bench.claims_worlds zeppelin co2     # some papers; without any, all
python -m tests.bench.claims_worlds --commands co2   # the runs, to be given by hand

A ratio is the seconds of a GPU for a token of one side over those of the other. Both are played by the command, as
whole steps on the same batches, in each world that their machine has and, in the nominal one, with no layer's
parameters gathered ahead and with two. Records are kept under results/claims_worlds, and a side that has one is not
played again, whichever worlds it has: remove that folder for new ones. What no run has is played without records
(tests.bench.claims_apart).
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bench.claims_apart import APART
from tests.bench.claims_cells import PAPERS, WORLDS, Paper
from tests.bench.claims_ratio import Ratio, tables
from zbench.record.records import read_all
from zbench.record.rows import setting

FOLDER = Path("results/claims_worlds")
Seconds = Mapping[str, float]  # by world or window


def commands(paper: Paper, side: str) -> list[str]:
    """Returns the command lines that play a side, the second with other windows."""
    every = f"python -m zbench -m {paper.words} {paper.sides[side]} baseline=null tracker=none"
    out = f"out={FOLDER}/{paper.name}-{side}.jsonl"
    worlds = [f"world={','.join(world for world in WORLDS if world not in paper.without)}"]
    windows = ["sharding.window=0,2"] if paper.windows else []
    return [f"{every} {cause} {out}" for cause in (*worlds, *windows)]


def seconds(paper: Paper, side: str) -> Seconds:
    """Returns the seconds of a GPU for a token of a side, played if there is no record, by world and window."""
    path = FOLDER / f"{paper.name}-{side}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        for command in commands(paper, side):
            given = [sys.executable, *shlex.split(command)[1:]]
            done = subprocess.run(given, capture_output=True, text=True, check=False)
            if done.returncode:
                path.unlink(missing_ok=True)
                raise SystemExit(f"{command}\n{done.stderr[-1000:]}")
    found: dict[str, float] = {}
    nominal_window = None
    for run in read_all([str(path)]):
        if run.status != "finished" or not run.steps:
            continue  # stopped by hand
        if any(step["out_of_memory"] for step in run.steps):
            print(f"{path}:{run.line}: out of memory", file=sys.stderr)
        window = run.start["config"]["sharding"].get("window")
        nominal_window = window if nominal_window is None else nominal_window
        cause = setting(run.start)["world"] if window == nominal_window else f"window {window}"
        steps = run.steps[-paper.last :]  # all of them where it is 0
        gpus = run.start["facts"]["num_gpus"]
        found[cause] = gpus * sum(step["seconds"] for step in steps) / sum(step["tokens"] for step in steps)
    return found


def ratios(paper: Paper) -> list[Ratio]:
    """Returns every ratio of a paper, by world and window."""
    by_side = {side: seconds(paper, side) for side in paper.sides}
    found = []
    for told, slow, fast, published in paper.ratios:
        both = [of for of in by_side[slow] if of in by_side[fast] and of not in paper.without]
        found.append(Ratio(told, published, {of: by_side[slow][of] / by_side[fast][of] for of in both}))
    return found


def main() -> None:
    """Prints the tables."""
    papers = {paper.name: paper for paper in PAPERS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=", ".join([*papers, *APART]))
    parser.add_argument("--commands", action="store_true", help="tell the runs, and play nothing")
    given = parser.parse_args()
    if wrong := [name for name in given.papers if name not in (*papers, *APART)]:
        parser.error(f"PAPER is {wrong[0]!r}; it takes some of {', '.join([*papers, *APART])}")
    for name in given.papers or (*papers, *APART):
        if given.commands:
            mine = papers[name].sides if name in papers else ()
            print("\n".join(line for side in mine for line in commands(papers[name], side)))
            continue
        found = ratios(papers[name]) if name in papers else APART[name](WORLDS)
        print(f"{name}\n\n{tables(name, found)}\n", flush=True)


if __name__ == "__main__":
    main()
