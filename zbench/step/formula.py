"""Formulas: what a layer computes, as text that is parsed once.

    q[t,h]  = turn(n[t], wq[h])                              every part written once
    o[t,h] += attend(q[t,h], kv[s,g(h)]) for visible(t, s)   a sum of contributions, one for each s that t sees
    x'[t]   = y[t] + d[t]                                    x of the next layer; a sum of terms, computed at once
    w[h], m[h] := adam(w[h], m[h], dw[h])                    an update of state in place

A letter in brackets is a slot: an operation has a list of parts for each. `*` stands for all parts, g(h) for the parts
of g that those of h lie in. A name may end in ~, which makes it another tensor: what is made again by recomputation.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

ACTIONS = ("=", "+=", ":=")
MOST_SLOTS = 3
_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*~?)|(\+=|:=|[=+\[\](),*']))")
_FOR = "for"


class FormulaError(ValueError):
    """A formula's text cannot be; the message says at which column, from 1, and what would be right."""

    def __init__(self, reason: str, column: int) -> None:
        super().__init__(reason)
        self.column = column

    def __str__(self) -> str:
        return f"column {self.column}: {self.args[0]}"


@dataclass(frozen=True)
class Axis:
    """One axis of a reference: a slot, all parts (slot "*"), or a slot through a map."""

    slot: str
    map: str = ""

    def __str__(self) -> str:
        return f"{self.map}({self.slot})" if self.map else self.slot


@dataclass(frozen=True)
class Reference:
    """A tensor as a formula names it. after: whether it is that of the next layer, written x'."""

    tensor: str
    axes: tuple[Axis, ...] = ()
    after: bool = False

    def __str__(self) -> str:
        axes = f"[{','.join(map(str, self.axes))}]" if self.axes else ""
        return f"{self.tensor}{self.after * chr(39)}{axes}"

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots of its axes, without `*`."""
        return tuple(axis.slot for axis in self.axes if axis.slot != "*")


@dataclass(frozen=True)
class Term:
    """A product of references (function is ""), or a function of them."""

    function: str
    operands: tuple[Reference, ...]

    def __str__(self) -> str:
        if not self.function:
            return " ".join(map(str, self.operands))
        return f"{self.function}({', '.join(map(str, self.operands))})"


@dataclass(frozen=True)
class Formula:
    """A formula. relation: (name, first slot, second slot), or None. slots: in the order of first mention, as an
    operation has lists for them."""

    results: tuple[Reference, ...]
    action: str
    terms: tuple[Term, ...]
    relation: tuple[str, str, str] | None = None

    def __str__(self) -> str:
        which = f" for {self.relation[0]}({self.relation[1]}, {self.relation[2]})" if self.relation else ""
        left, right = ", ".join(map(str, self.results)), " + ".join(map(str, self.terms))
        return f"{left} {self.action} {right}{which}"

    @cached_property
    def operands(self) -> tuple[Reference, ...]:
        """All references of the right side, in order."""
        return tuple(one for term in self.terms for one in term.operands)

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The slots of the formula, results' first."""
        return tuple(dict.fromkeys(slot for one in (*self.results, *self.operands) for slot in one.slots))

    def summed(self, result: Reference) -> tuple[str, ...]:
        """Returns the slots that a result sums over."""
        return tuple(slot for slot in self.slots if slot not in result.slots)


def parse_formula(text: str) -> Formula:
    """Returns the formula of a text.

    Raises:
        FormulaError: the text is none; the message names the column.
    """
    reader = _Reader(text)
    found = reader.formula()
    _check(found, reader)
    return found


def parse_formulas(text: str) -> tuple[Formula, ...]:
    """Returns the formulas of a text, one a line; empty lines and what follows # mean nothing.

    Raises:
        ValueError: a line is none; the message names line and column.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0]
        if words.strip():
            try:
                found.append(parse_formula(words))
            except FormulaError as error:
                raise ValueError(f"line {number}, {error}") from error
    return tuple(found)


def _check(formula: Formula, reader: "_Reader") -> None:
    """Raises FormulaError where the sides of a formula do not fit each other."""
    if len(formula.slots) > MOST_SLOTS:
        raise FormulaError(f"has slots {', '.join(formula.slots)}; it takes {MOST_SLOTS} at most", 1)
    if formula.action != "+=":
        for result in formula.results:
            if missing := formula.summed(result):
                word = f"{result} {formula.action} has no {missing[0]}, which the right side has"
                raise FormulaError(f"{word}; a sum over {missing[0]} is written +=", reader.at_action)
            if mapped := [axis for axis in result.axes if axis.map]:
                word = f"{result} {formula.action} has {mapped[0]}, several of which are one part"
                raise FormulaError(f"{word}; a sum over these is written +=", reader.at_action)
    elif len(formula.terms) > 1:
        raise FormulaError("+= takes one term; several contributions are several formulas", reader.at_action)
    if formula.relation is not None:
        for slot in formula.relation[1:]:
            if slot not in formula.slots:
                raise FormulaError(f"for {formula.relation[0]} names slot {slot}, which nothing else has", 1)


class _Reader:
    """The tokens of a text, taken from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.next = text, list(_tokens(text)), 0
        self.at_action = 1

    @property
    def column(self) -> int:
        return self.tokens[self.next][1] if self.next < len(self.tokens) else len(self.text.rstrip()) + 1

    def peek(self) -> str:
        """Returns the next token, "" at the end."""
        return self.tokens[self.next][0] if self.next < len(self.tokens) else ""

    def seen(self) -> str:
        """Returns the next token for a message."""
        return repr(self.peek()) if self.peek() else "its end"

    def take(self, *wanted: str) -> str:
        """Takes one of the tokens wanted."""
        found = self.peek()
        if found not in wanted:
            raise FormulaError(f"has {self.seen()} where it takes {' or '.join(wanted)}", self.column)
        self.next += 1
        return found

    def name(self, what: str) -> str:
        """Takes a name."""
        found = self.peek()
        if not found or not (found[0].isalpha() or found[0] == "_") or found == _FOR:
            raise FormulaError(f"has {self.seen()} where it takes {what}", self.column)
        self.next += 1
        return found

    def formula(self) -> Formula:
        """Takes a whole formula."""
        results = [self.reference(self.name("the name of a tensor"))]
        while self.peek() == ",":
            self.take(",")
            results.append(self.reference(self.name("the name of a tensor")))
        self.at_action = self.column
        action = self.take(*ACTIONS)
        terms = [self.term()]
        while self.peek() == "+":
            self.take("+")
            terms.append(self.term())
        relation = None
        if self.peek() == _FOR:
            self.next += 1
            name = self.name("the name of a relation")
            self.take("(")
            first = self.name("a slot")
            self.take(",")
            relation = (name, first, self.name("a slot"))
            self.take(")")
        if self.peek():
            raise FormulaError(f"goes on with {self.peek()!r} after its end", self.column)
        return Formula(tuple(results), action, tuple(terms), relation)

    def term(self) -> Term:
        """Takes a product or a call."""
        name = self.name("a tensor or a function")
        if self.peek() == "(":
            self.take("(")
            operands = [self.reference(self.name("the name of a tensor"))]
            while self.take(",", ")") == ",":
                operands.append(self.reference(self.name("the name of a tensor")))
            return Term(name, tuple(operands))
        operands = [self.reference(name)]
        while self.peek() and self.peek() not in ("+", _FOR):
            operands.append(self.reference(self.name("a tensor, + or the end")))
        return Term("", tuple(operands))

    def reference(self, name: str) -> Reference:
        """Takes what follows a tensor's name."""
        after = self.peek() == "'"
        self.next += after
        if self.peek() != "[":
            return Reference(name, (), after)
        self.take("[")
        axes = [self.axis()]
        while self.take(",", "]") == ",":
            axes.append(self.axis())
        return Reference(name, tuple(axes), after)

    def axis(self) -> Axis:
        """Takes a slot, a map of a slot, or `*`."""
        if self.peek() == "*":
            self.take("*")
            return Axis("*")
        name = self.name("a slot or *")
        if self.peek() != "(":
            return Axis(name)
        self.take("(")
        slot = self.name("a slot")
        self.take(")")
        return Axis(slot, name)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Yields (token, column from 1)."""
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.end() > end:
            column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
            raise FormulaError(f"has {text[column - 1]!r}, which no formula has", column)
        yield found[1] or found[2], (found.start(1) if found[1] else found.start(2)) + 1
        at = found.end()
