"""The formulas of a backward, made of a forward's by transposition.

Three rules, for every use of a tensor on a right side:

    y += a b, y = a b      da += dy b and db += dy a
    y = a + b              da has dy as one of its terms
    y = f(a, b)            da has f_d0(dy, ...) as one of its terms, with those operands that f's gradient needs

A gradient is computed once, as a sum of terms at once, if none of its terms sums over anything; else each term adds to
it. A gradient that would be nothing but another one is not computed, and the other is read in its place. Where
contributions do not merge by addition (attention, the loss over a cut vocabulary) the backward is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zbench.step.formula import Formula, Reference, Term, parse_formulas


@dataclass(frozen=True)
class Derivative:
    """The operands that a function's gradients read besides the gradient of its result.

    needs: for each operand, the numbers of the operands that its gradient reads, None where it has none.
    given: the backward of the whole formula as text; then `needs` means nothing.
    """

    needs: tuple[tuple[int, ...] | None, ...] = ()
    given: str = ""


@dataclass(frozen=True)
class _Use:
    """A term of the gradient of `operand`. relation: of the formula that it comes from."""

    operand: Reference
    term: Term
    relation: tuple[str, str, str] | None


def gradient(one: Reference) -> Reference:
    """Returns the gradient of a reference."""
    return replace(one, tensor=f"d{one.tensor}")


def transpose(formulas: Sequence[Formula], derivatives: Mapping[str, Derivative]) -> tuple[Formula, ...]:
    """Returns the backward's formulas, last of the forward first.

    derivatives: by function. Raises ValueError for a function that has none.
    """
    found: list[Formula | _Use] = []
    for formula in reversed(formulas):
        given = [derivatives[term.function].given for term in formula.terms if term.function in derivatives]
        if any(given):
            found += parse_formulas(given[0])
        else:
            found += _uses(formula, derivatives)
    return _ordered(_without_aliases(_collected(found)))


def _uses(formula: Formula, derivatives: Mapping[str, Derivative]) -> list[_Use]:
    """Returns the terms that a formula gives to the gradients of its operands."""
    upstream, found = gradient(formula.results[0]), []
    for term in formula.terms:
        if term.function:
            if term.function not in derivatives:
                raise ValueError(f"function {term.function} of formula {formula} has no derivative")
            for at, needs in enumerate(derivatives[term.function].needs):
                if needs is not None:
                    operands = (upstream, *(term.operands[other] for other in needs))
                    found.append(_Use(term.operands[at], Term(f"{term.function}_d{at}", operands), formula.relation))
        elif len(term.operands) == 1:
            found.append(_Use(term.operands[0], Term("", (upstream,)), formula.relation))
        else:
            for at, operand in enumerate(term.operands):
                others = tuple(one for other, one in enumerate(term.operands) if other != at)
                found.append(_Use(operand, Term("", (upstream, *others)), formula.relation))
    return found


def _sums(use: _Use) -> bool:
    """Returns whether a term sums over something: over a slot, or over the parts that a map takes together. Of a tensor
    without a batch's index all terms do: gradients of parameters are contributed to by every micro-batch."""
    own = set(use.operand.slots)
    mapped = any(axis.map for axis in use.operand.axes)
    return mapped or bool({slot for one in use.term.operands for slot in one.slots} - own)


def _collected(found: list[Formula | _Use]) -> list[Formula]:
    """Makes formulas of the terms of each gradient, where its last term comes; given ones stay where they are."""
    uses: dict[str, list[_Use]] = {}
    last: dict[str, int] = {}
    given = {result.tensor for one in found if isinstance(one, Formula) for result in one.results}
    for place, one in enumerate(found):
        if isinstance(one, _Use):
            name = gradient(one.operand).tensor
            uses.setdefault(name, []).append(one)
            last[name] = place
    made: list[Formula] = []
    for place, one in enumerate(found):
        if isinstance(one, Formula):
            made.append(one)
            continue
        name = gradient(one.operand).tensor
        if name in given or any(map(_sums, uses[name])):
            if name not in given and len(uses[name]) == 1 and one.relation is None and not _sums(one):
                made.append(Formula((gradient(one.operand),), "=", (one.term,)))
            else:
                made.append(Formula((gradient(one.operand),), "+=", (one.term,), one.relation))
        elif last[name] == place:
            terms = tuple(use.term for use in uses[name])
            made.append(Formula((gradient(one.operand),), "=", terms, one.relation))
    return made


def _without_aliases(formulas: list[Formula]) -> list[Formula]:
    """Drops formulas such as da[t] = dy[t], and has dy read for da."""
    aliases: dict[str, Reference] = {}
    kept = []
    for one in formulas:
        term = one.terms[0]
        plain = one.action == "=" and len(one.terms) == 1 and not term.function and len(term.operands) == 1
        if plain and term.operands[0].axes == one.results[0].axes and not one.results[0].after:
            aliases[one.results[0].tensor] = term.operands[0]
        else:
            kept.append(one)

    def read(ref: Reference) -> Reference:
        other = aliases.get(ref.tensor)
        return ref if other is None else replace(read(other), axes=ref.axes)

    return [
        replace(one, terms=tuple(replace(term, operands=tuple(map(read, term.operands))) for term in one.terms))
        for one in kept
    ]


def _ordered(formulas: list[Formula]) -> tuple[Formula, ...]:
    """Orders formulas so that each comes after all that write what it reads, else as they were."""
    writers: dict[tuple[str, bool], list[int]] = {}
    for at, one in enumerate(formulas):
        for result in one.results:
            writers.setdefault((result.tensor, result.after), []).append(at)
    done: list[int] = []
    left = list(range(len(formulas)))
    while left:
        for at in left:
            needed = [w for one in formulas[at].operands for w in writers.get((one.tensor, one.after), ()) if w != at]
            if all(w in done for w in needed):
                done.append(at)
                left.remove(at)
                break
        else:
            raise ValueError(f"formula {formulas[left[0]]} reads what comes of itself")
    return tuple(formulas[at] for at in done)
