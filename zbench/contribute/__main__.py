"""Runs `zbench contribute RECORD`: checks a measured record of your cluster, and says how to send it."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    import re
    import shlex
    from collections.abc import Sequence

    from zbench.contribute.checks import faults
    from zbench.describe.units import with_noun
    from zbench.record.record import SKIPPED, Run, read
    from zbench.record.rows import label
    from zbench.record.words import cluster_words

FOLDER = "results/contributed"


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(lambda: contribute(sys.argv[1:]), "nothing was written")


def contribute(words: Sequence[str]) -> int:
    """Checks a record and says how to send it.

    Raises:
        ValueError: the record cannot be taken; the message names field and value.
    """
    parser = Parser(prog="zbench contribute", description="Checks a measured record of your cluster for sending it.")
    parser.add_argument("record", metavar="RECORD", help="a record, as written by python -m zbench executor=torch out=")
    path = parser.parse_args(list(words)).record
    runs = checked(path)
    print(f"{path}: {with_noun(len(runs), 'run')} can be taken.")
    for run in runs:
        print(f"  {label(run.start, 'system')} on {label(run.start, 'workload')}: {with_noun(len(run.steps), 'step')}")
    print(how_to_send(path, runs[0]))
    return 0


def checked(path: str) -> list[Run]:
    """Returns the runs of a record, every one of which can be taken.

    Raises:
        ValueError: a line cannot be read, or a run cannot have been measured; the message names field and value.
    """
    runs, problems = read(path)
    if not runs and not problems:
        raise ValueError(f"record file {path!r} holds no run")
    told = [
        *(one.removesuffix(SKIPPED) for one in problems),
        *(f"{path}:{run.line}: run {run.start['run']}: {one}" for run in runs for one in faults(run)),
    ]
    if told:
        more = f"; {len(told) - 1} more of its lines and fields cannot be, either" if len(told) > 1 else ""
        raise ValueError(f"the record is not taken: {told[0]}{more}")
    return runs


def how_to_send(path: str, run: Run) -> str:
    """Says where the record goes, and what is in it that a person may want to know of."""
    facts, found = run.start["facts"], run.start["fingerprint"]
    named = f"{facts['cluster']}-{facts.get('model')}-{str(run.start['time'])[:10]}"
    name = re.sub(r"[^\w-]+", "_", named, flags=re.ASCII) + ".jsonl"
    rank = run.about["ranks"][0] if run.about else {}
    return (
        f"Measured on {cluster_words(facts)}; {rank.get('device')}, torch {rank.get('torch')}, {rank.get('backend')}, "
        f"zbench {found['zbench']} at {found['commit'][:10]}.\n"
        f"To send it: copy it to {FOLDER}/{name} and open a pull request with that file alone (CONTRIBUTING.md, A "
        "measured record), with a sentence on the machine: GPUs, NICs, driver.\n"
        f"It tells your command line, platform ({found.get('platform')}), processor and paths of the configuration; "
        f"look at its first line before you send it. Copying: mkdir -p {FOLDER} && cp {shlex.quote(path)} "
        f"{FOLDER}/{name}"
    )


if __name__ == "__main__":
    sys.exit(main())
