"""A scanner of one line, which knows the column that it is at."""

import re
from functools import cache

from zbench.describe.arrays import Ints
from zbench.step.lists import ListTable, read_spans


class TextFault(ValueError):
    """A text cannot be read; the message names line and column, from 1, and what would be right."""


MOST_NUMBER, MOST_AMOUNT = 2**31 - 1, 10**15 - 1  # of columns' 32 bits; of sizes, bytes and amounts: all of 15 digits
_compiled = cache(re.compile)  # a step's text has few patterns, and each many times


class Scanner:
    """Takes a line from left to right. Blanks before a word mean nothing."""

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number, self.at = line.rstrip(), number, 0

    def fault(self, reason: str, at: int | None = None) -> TextFault:
        """Returns the fault of what stands at a place of the line, the next word's if none is given."""
        if at is None:
            self._blanks()
            at = self.at
        return TextFault(f"line {self.number}, column {at + 1}: {reason}")

    def _blanks(self) -> None:
        line, at = self.line, self.at
        while line[at : at + 1].isspace():
            at += 1
        self.at = at

    def seen(self) -> str:
        """Returns the next word for a message."""
        found = re.match(r"\S{1,24}", self.line[self.at :])
        return repr(found[0]) if found else "the end of the line"

    def next(self, pattern: str) -> str | None:
        """Takes what a pattern matches, and returns it, or None if it does not match."""
        self._blanks()
        found = _compiled(pattern).match(self.line, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def has(self, literal: str) -> bool:
        """Takes a literal if it comes next."""
        self._blanks()
        line, end = self.line, self.at + len(literal)
        if not line.startswith(literal, self.at):
            return False
        if literal[-1].isalnum() and (line[end : end + 1].isalnum() or line[end : end + 1] == "_"):  # a longer word
            return False
        self.at = end
        return True

    def take(self, *literals: str) -> str:
        """Takes one of some literals."""
        for literal in literals:
            if self.has(literal):
                return literal
        raise self.fault(f"it has {self.seen()} where it takes {' or '.join(literals)}")

    def match(self, pattern: str, what: str) -> str:
        """Takes what a pattern matches."""
        found = self.next(pattern)
        if found is None:
            raise self.fault(f"it has {self.seen()} where it takes {what}")
        return found

    def integer(self, what: str = "a number", most: int = MOST_NUMBER) -> int:
        """Takes a number of at most `most`, as columns of operations and items hold them."""
        found = int(self.match(r"[+-]?\d{1,15}(?!\d)", what))
        if abs(found) > most:
            raise self.fault(f"it has {found:,} where it takes {what} of at most {most:,}", self.at - len(str(found)))
        return found

    def word(self, what: str) -> str:
        """Takes a name."""
        return self.match(r"[A-Za-z_][\w.]*~?", what)

    def placed_numbers(self) -> list[tuple[int, int]]:
        """Takes numbers as long as there are some, at least one; returns each with the place where it begins."""
        self._blanks()
        at = self.at
        found = [(self.integer(most=MOST_AMOUNT), at)]
        while (one := self.next(r"-?\d{1,15}(?!\d)")) is not None:
            found.append((int(one), self.at - len(one)))
        return found

    def spans(self, whole: int) -> Ints:
        """Takes parts such as 0-3 7, `*` or `none`."""
        return self._parts(*self._span_words(), whole)

    def listed(self, lists: ListTable, index: str) -> int:
        """Takes parts of an index as `spans` does, and returns the number of their list. A step names the same lists in
        the same words again and again."""
        words, at = self._span_words()
        found = lists.told.get((index, words))
        if found is None:
            found = lists.told[index, words] = lists.number(index, self._parts(words, at, lists.sizes[index]))
        return found

    def _span_words(self) -> tuple[str, int]:
        """Takes the words of parts, and returns them with the place where they begin."""
        self._blanks()
        at = self.at
        return self.match(r"\*|none|\d[\d\- ]*", "parts such as 0-3 7, * or none").strip(), at

    def _parts(self, words: str, at: int, whole: int) -> Ints:
        try:
            return read_spans(words, whole)
        except ValueError as error:
            raise self.fault(f"it {error}", at) from error

    def rest(self) -> tuple[str, int]:
        """Takes the rest of the line and returns it, with the place where it begins."""
        self._blanks()
        at, self.at = self.at, len(self.line)
        return self.line[at:], at

    def end(self) -> None:
        """Sees that the line ends here."""
        self._blanks()
        if self.at < len(self.line):
            raise self.fault(f"the line goes on with {self.seen()} where it ends")
