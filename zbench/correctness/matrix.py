"""python -m zbench.correctness matrix: checks that every system plans every model on every cluster as it should. An
edge.

Every combination of conf/ plans adversarial and long-tailed batches, which are verified and simulated
(zbench.correctness.reference.step_check). A combination that cannot be has to be refused in a sentence, and a batch
that is too large has to be out of memory in one. With --out what was stopped goes on where it was.
Exit codes: 0; 1 something is not as it should be; 2 bad input; 130 stopped by Ctrl-C, with the table so far.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

from zbench.console.command import Parser, known_words
from zbench.correctness.adversarial import KINDS
from zbench.correctness.combinations import GROUPS, Combinations, CombinationVerdict
from zbench.correctness.cover import Combination, pairwise_cover
from zbench.correctness.ledger import Finding, Ledger
from zbench.correctness.strategy_choices import StrategyChoice
from zbench.describe.checks import check_whole_number
from zbench.describe.units import with_noun
from zbench.record.fingerprint import source_digest
from zbench.run.choices import choices

SECONDS_BETWEEN_LINES = 10.0
KEPT = ("fitting", "too_large", "refused", "skipped")  # of a verdict in a file, where nothing failed


def main(arguments: list[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness matrix", description="Every system, model and cluster.")
    for group in GROUPS:
        parser.add_argument(f"--{group}s", default=",".join(choices(group)), help=f"{group}s of conf (default all)")
    parser.add_argument("--batches", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default all)")
    parser.add_argument("--tokens-per-gpu", type=int, default=2048, help="of a batch, at most (default 2048)")
    parser.add_argument("--seed", type=int, default=0, help="the batches are a function of it (default 0)")
    parser.add_argument("--pairs", action="store_true", help="only combinations enough to have every pair")
    parser.add_argument("--nodes", type=int, help="of a cluster at most (default as conf has them)")
    parser.add_argument("--out", type=Path, help="keep what was found in this file, and go on from there")
    parser.add_argument("--markdown", action="store_true", help="the table for a document")
    asked = parser.parse_args(arguments)
    given = {group: known_words(f"--{group}s", getattr(asked, f"{group}s"), choices(group)) for group in GROUPS}
    kinds = known_words("--batches", asked.batches, KINDS)
    for flag, value, least in (("--tokens-per-gpu", asked.tokens_per_gpu, 1), ("--seed", asked.seed, 0)):
        check_whole_number(flag, value, least)
    if asked.nodes is not None:
        check_whole_number("--nodes", asked.nodes, 1)
    ledger = None
    if asked.out is not None:
        asked_for: dict[str, Any] = {name: getattr(asked, name) for name in ("tokens_per_gpu", "seed", "nodes")}
        ledger = Ledger(asked.out, {"sources": source_digest(), "batches": kinds, **asked_for})
    combinations = Combinations(asked.tokens_per_gpu, asked.seed, [given[group] for group in GROUPS], asked.nodes)
    every = [Combination(*names) for names in product(*given.values())]
    if asked.pairs:
        systems, models, clusters = (given[group] for group in GROUPS)
        every = pairwise_cover(systems, models, clusters, combinations.can_be, asked.seed)
    found: list[CombinationVerdict] = []
    try:
        for verdict in _checked(combinations, every, kinds, ledger):
            found.append(verdict)
    finally:  # Ctrl-C, too, leaves the table of what was finished
        print_matrix(found, given["model"], asked.markdown)
    return 1 if any(verdict.failures for verdict in found) or not found else 0


def _checked(
    combinations: Combinations, every: Sequence[Combination], kinds: Sequence[str], ledger: Ledger | None
) -> Iterator[CombinationVerdict]:
    """Checks one after the other and tells of them on stderr now and then, and of every failure at once. ledger: of
    what was found before."""
    spoke, failed, chosen = monotonic(), 0, combinations.choices(every)
    for number, combination in enumerate(every, 1):
        choice = chosen.get(combination)
        case = f"{combination}, {choice}"
        if ledger is not None and ledger.has(case):
            verdict = _kept(ledger.found[case], combination, choice)
        else:
            verdict = combinations.check(combination, kinds, choice)
            if ledger is not None:
                told = {name: getattr(verdict, name) for name in KEPT}
                ledger.add(case, bool(verdict.failures), **told, chosen=verdict.choice is not None)
        failed += bool(verdict.failures)
        for failure in verdict.failures:
            _tell(f"{_named(verdict)}: {failure}")
        if monotonic() - spoke >= SECONDS_BETWEEN_LINES or number == len(every):
            spoke = monotonic()
            _tell(f"{number} of {len(every)} combinations, {failed} of them failed; at {combination}")
        yield verdict


def _kept(found: Finding, combination: Combination, choice: StrategyChoice | None) -> CombinationVerdict:
    """Returns the verdict that a file keeps."""
    told = {name: found[name] for name in KEPT}
    return CombinationVerdict(combination, **told, choice=choice if found["chosen"] else None)


def _named(verdict: CombinationVerdict) -> str:
    """Names what was tried."""
    return f"{verdict.combination}, {verdict.choice}" if verdict.choice else str(verdict.combination)


def _tell(line: str) -> None:
    print(f"matrix: {line}", file=sys.stderr, flush=True)


def print_matrix(found: Sequence[CombinationVerdict], models: Sequence[str], markdown: bool) -> None:
    """Prints systems by models, then refusals, failures and a last line that counts them."""
    cells: dict[tuple[str, str], list[CombinationVerdict]] = {}
    for one in found:
        cells.setdefault((one.combination.system, one.combination.model), []).append(one)
    systems = dict.fromkeys(system for system, _ in cells)
    rows = [[system, *(_entry(cells.get((system, model), [])) for model in models)] for system in systems]
    title = "batches, over all clusters: as they should be + out of memory"
    if markdown:
        for row in (["", *models], ["---", *["---:"] * len(models)], *rows):
            print(f"| {' | '.join(row)} |")
        print()
    else:
        table = Table(title=title)
        for name in ("", *models):
            table.add_column(name, justify="right" if name else "left")
        for row in rows:
            table.add_row(*row)
        Console(width=160).print(table)
    for line in _refusals(found):
        print(line)
    for one in found:
        for failure in one.failures:
            print(f"FAILED {_named(one)}: {failure}")
    print(_counts(found))


def _entry(some: Sequence[CombinationVerdict]) -> str:
    """Counts the batches of one system with one model."""
    if all(one.skipped for one in some):
        return "skipped" if some else ""
    if all(one.refused for one in some):
        return "refused"
    fitting, large = (sum(getattr(one, name) for one in some) for name in ("fitting", "too_large"))
    failed = sum(len(one.failures) for one in some)
    return f"{fitting}{f' + {large}' if large else ''}{f', {failed} FAILED' if failed else ''}"


def _refusals(found: Sequence[CombinationVerdict]) -> Iterator[str]:
    """Yields a line for every model and reason, with the sentence of the first cluster."""
    reasons: dict[tuple[str, str], list[CombinationVerdict]] = {}
    for one in found:
        if one.refused:
            reasons.setdefault((one.combination.model, one.refused.partition(";")[0]), []).append(one)
    for (model, _), some in sorted(reasons.items()):
        clusters = dict.fromkeys(one.combination.cluster for one in some)
        systems = len(dict.fromkeys(one.combination.system for one in some))
        yield f"refused, {with_noun(systems, 'system')} with {model} on {', '.join(clusters)}: {some[0].refused}"
    for package in sorted({one.skipped for one in found if one.skipped}):
        names = dict.fromkeys(one.combination.system for one in found if one.skipped == package)
        yield f"skipped, {', '.join(names)}: {package}, of the extra 'peers', is not installed"


def _counts(found: Sequence[CombinationVerdict]) -> str:
    tried = [one for one in found if not one.refused and not one.skipped]
    fitting, large = (sum(getattr(one, name) for one in found) for name in ("fitting", "too_large"))
    refused, failed = (sum(bool(getattr(one, name)) for one in found) for name in ("refused", "failures"))
    return (
        f"{with_noun(len(found), 'combination')}: {refused:,} refused, {len(tried):,} tried with "
        f"{with_noun(fitting + large, 'batch')}, of which {large:,} are out of memory; {failed:,} FAILED"
    )
