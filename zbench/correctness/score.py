"""The share of wrong mutants that the verifier rejects, by system and by kind, as tables."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zbench.correctness.workers import UNBROKEN, Judged, Name

TITLES = ("mutants", "wrong", "of them rejected", "score", "right", "of them rejected")


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of mutants: wrong and right ones, and how many of each the verifier rejects."""

    wrong: int
    caught: int
    right: int
    refused: int

    @staticmethod
    def of(found: Iterable[Judged]) -> "Score":
        """Counts mutants; steps that nobody has broken are none."""
        some = [one for one in found if one.kind != UNBROKEN]
        wrong = [one for one in some if one.is_wrong]
        right = [one for one in some if not one.is_wrong]
        caught = sum(not one.is_missed for one in wrong)
        return Score(len(wrong), caught, len(right), sum(bool(one.rejected) for one in right))

    @property
    def share(self) -> str:
        """Returns the mutation score, in words; a dash where nothing is wrong."""
        return f"{100 * self.caught / self.wrong:.4g} %" if self.wrong else "-"

    def cells(self) -> tuple[str, ...]:
        """Returns a row of a table, of TITLES."""
        given = (self.wrong + self.right, self.wrong, self.caught, self.share, self.right, self.refused)
        return tuple(map(str, given))


def score_rows(found: Sequence[Judged], by: Callable[[Judged], str]) -> list[tuple[str, ...]]:
    """Returns a row for each group, in the order of their names, and one of all."""
    names = sorted({by(one) for one in found if one.kind != UNBROKEN})
    groups = [(name, *Score.of(one for one in found if by(one) == name).cells()) for name in names]
    return [*groups, ("all", *Score.of(found).cells())]


def failures(found: Sequence[Judged], asked: Sequence[Name]) -> list[str]:
    """Returns a line for every wrong mutant not rejected, every step that is wrong or rejected unbroken, and every
    system with mutants among those asked for that nobody has judged; and one if no mutant is wrong."""
    unjudged = Counter(name.system for name in {*asked} - {one.name for one in found if one.kind != UNBROKEN})
    lines = [f"{system}: {count} mutants were not judged" for system, count in sorted(unjudged.items())]
    if not Score.of(found).wrong:
        lines.append("no mutant was found wrong, so that nothing is known of the verifier")
    for one in found:
        system, number = one.name.system, one.name.number
        where = f"{system}, mutant {number}, {one.kind}"
        if one.kind == UNBROKEN and (one.wrong or one.rejected):
            lines.append(f"{system}, the step of mutant {number}, unbroken: {one.wrong or one.rejected}")
        elif one.died:
            lines.append(f"{where}: its process ended, {one.died}")
        elif one.kind != UNBROKEN and one.is_missed:
            lines.append(f"{where} ({one.change}): {one.wrong}")
    return lines


def markdown(first: str, table: Sequence[Sequence[str]]) -> str:
    """Writes a table as markdown has it."""
    lines = [(first, *TITLES), ("---", *("---:" for _ in TITLES)), *table]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
