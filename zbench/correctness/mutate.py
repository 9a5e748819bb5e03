"""python -m zbench.correctness mutate: checks that the verifier rejects every wrong plan. An edge.

Plans of every system are broken in every way there is, and judged by code that shares nothing with the verifier and by
the verifier. The score is the share of wrong ones that it rejects, by system and by kind of mutation (docs/proof.md).
Exit codes: 0; 1 below 100 %, a mutant was not judged, none is wrong, or a plan that nobody has broken is wrong or
rejected; 2 bad input; 130 stopped by Ctrl-C.
"""

import os
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from zbench.console.command import Parser, known_words
from zbench.console.meter import Meter
from zbench.correctness.reference.judge import Verifier, verifier
from zbench.correctness.score import TITLES, Score, failures, markdown, score_rows
from zbench.correctness.workers import UNBROKEN, Judged, Name, Share, judged, mutant_shares
from zbench.describe.checks import check_whole_number
from zbench.run.choices import choices, missing_package

MUTANTS = 5400  # 300 of each of 18 systems
SHOWN = 20  # failures that are told


def main(arguments: Sequence[str], verify: Verifier = verifier) -> int:
    """Judges mutants as the arguments say and prints the tables; returns the exit code. verify: what is judged."""
    parser = Parser(prog="python -m zbench.correctness mutate", description="Wrong plans, and whether verify sees it.")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help=f"of all systems together (default {MUTANTS})")
    parser.add_argument("--systems", default=",".join(choices("system")), help="whose plans are broken (default all)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of plans and mutations; the same ones every time (default 0)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: cores)")
    parser.add_argument("--markdown", action="store_true", help="tables as markdown")
    asked = parser.parse_args(arguments)
    names = known_words("--systems", asked.systems, choices("system"))
    for flag, value, least in (
        ("--mutants", asked.mutants, len(names)),
        ("--seed", asked.seed, 0),
        ("--jobs", asked.jobs, 1),
    ):
        check_whole_number(flag, value, least)
    here = [name for name in names if not missing_package(name)]
    for name in sorted(set(names) - set(here)):
        print(f"{name} is left out: it needs {missing_package(name)}, of the extra `peers`")
    each = -(-asked.mutants // len(names))
    mutants = [Name(asked.seed, name, at) for name in here for at in range(each)]
    found: list[Judged] = []
    told: list[str] = []
    try:
        _collect(found, mutants, asked.jobs, verify)
        told = failures(found, mutants)
    except KeyboardInterrupt:
        told = failures(found, [one.name for one in found])
        raise
    finally:  # also of what was found until Ctrl-C
        _print(found, told, asked.markdown)
    return 1 if told else 0


def _collect(found: list[Judged], names: Share, jobs: int, verify: Verifier) -> None:
    """Adds verdicts to `found` as they come, and shows how far every system is."""
    total = Counter(name.system for name in names)
    done = Counter[str]()
    with Meter(max(total.values(), default=0), unit="mutant") as meter:
        for one in judged(mutant_shares(names), jobs, verify):
            found.append(one)
            done[one.name.system] += one.kind != UNBROKEN
            meter.show(one.name.system, done[one.name.system])


def _print(found: Sequence[Judged], told: Sequence[str], as_markdown: bool) -> None:
    """Prints the tables, and what is not as it has to be. told: what is not as it has to be."""
    for first, by in (("system", lambda one: one.name.system), ("kind of mutation", lambda one: one.kind)):
        table = score_rows(found, by)
        if as_markdown:
            print(markdown(first, table), end="\n\n")
            continue
        shown = Table(first, *TITLES)
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in table:
            shown.add_row(*row)
        Console(width=120).print(shown)
    for line in told[:SHOWN]:
        print(f"not as it has to be: {line}")
    if len(told) > SHOWN:
        print(f"... and {len(told) - SHOWN} more")
    score, unbroken = Score.of(found), sum(one.kind == UNBROKEN for one in found)
    print(
        f"mutation score {score.share}: verify rejects {score.caught} of {score.wrong} wrong plans; of "
        f"{score.right} that a mutation left right it rejects {score.refused}, of {unbroken} unbroken ones "
        f"{sum(bool(one.rejected) for one in found if one.kind == UNBROKEN)}"
    )
