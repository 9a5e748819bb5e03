"""A ratio of a paper by world and window, and what becomes of it: what tests.bench.claims_worlds tells."""

from collections.abc import Sequence
from dataclasses import dataclass, field

MOVED = 0.1  # of the nominal ratio: what is told as a move
UNTOUCHED = 0.005


@dataclass
class Ratio:
    """A ratio by world and window, the nominal one among them. told: what it is of. published: in the paper's words."""

    told: str
    published: str
    by: dict[str, float] = field(default_factory=dict)

    @property
    def nominal(self) -> float:
        """The ratio in the nominal world."""
        return self.by["nominal"]

    def moved(self, of: str) -> bool:
        """Returns whether it is a tenth or more away from the nominal one."""
        return abs(self.by[of] / self.nominal - 1) > MOVED

    def turned(self, of: str) -> bool:
        """Returns whether the other side is ahead there."""
        return (self.by[of] - 1) * (self.nominal - 1) < 0 and abs(self.by[of] - self.nominal) > UNTOUCHED

    def verdict(self) -> str:
        """Returns what becomes of it, in a table's words."""
        if all(abs(value / self.nominal - 1) <= UNTOUCHED for value in self.by.values()):
            return "not touched"
        turned = [of for of in self.by if self.turned(of)]
        moved = [of for of in self.by if self.moved(of) and of not in turned]
        words = [f"turns in {', '.join(turned)}"] if turned else []
        words += [f"moves in {', '.join(moved)}"] if moved else []
        return "; ".join(words) or "survives all"

    def range(self) -> str:
        """Returns the least and the greatest, and where they are."""
        least, most = min(self.by, key=self.by.__getitem__), max(self.by, key=self.by.__getitem__)
        return f"{self.by[least]:.2f} in {least}, {self.by[most]:.2f} in {most}"


def tables(name: str, found: Sequence[Ratio]) -> str:
    """Returns markdown: worlds down and ratios across; below it each ratio's range and verdict."""
    causes = list(dict.fromkeys(of for ratio in found for of in ratio.by))
    lines = [
        "| " + " | ".join(["", *(ratio.told for ratio in found)]) + " |",
        "|---" * (len(found) + 1) + "|",
        *("| " + " | ".join([of, *(_cell(ratio, of) for ratio in found)]) + " |" for of in causes),
        "",
        *(
            f"| {name}: {ratio.told} | {ratio.published} | {ratio.nominal:.2f} | {ratio.range()} | {ratio.verdict()} |"
            for ratio in found
        ),
    ]
    return "\n".join(lines)


def _cell(ratio: Ratio, of: str) -> str:
    if of not in ratio.by:
        return "-"
    bold = "**" if ratio.moved(of) or ratio.turned(of) else ""
    return f"{bold}{ratio.by[of]:.2f}{bold}"
