"""Templates of which layers have several kinds: what their contracts say differs by what of a layer rests where."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from zbench.step.template import Instance, Template

Kind = TypeVar("Kind")


def by_layers(
    templates: Sequence[Template],
    order: Sequence[Instance],
    offsets: Sequence[tuple[int, ...]],
    kind_of: Callable[[int], Kind],
    changed: Callable[[int, dict[int, Kind]], Template],
) -> tuple[list[Template], list[Instance], list[int]]:
    """Returns templates, each in as many forms as its instances' layers take, an order in which each layer is played
    with the form that is its own, and by template the number of the one that it is a form of.

    offsets: of each template, how far from its own layer those are that its form depends on. kind_of: of a layer.
    changed: a template, by its number, for layers of these kinds, by their offsets.
    """
    found, of = list(templates), list(range(len(templates)))
    forms: dict[tuple[int, tuple[Kind, ...]], int] = {}
    known, played = set[int](), list[Instance]()

    def form(number: int, layer: int) -> int:
        kinds = tuple(kind_of(layer + offset) for offset in offsets[number])
        if (number, kinds) not in forms:
            one = changed(number, dict(zip(offsets[number], kinds, strict=True)))
            if number not in known:
                known.add(number)
                forms[number, kinds], found[number] = number, one
            else:
                name, dot, batch = one.name.partition(".")
                count = sum(1 for at, _ in forms if at == number) + 1
                forms[number, kinds] = len(found)
                found.append(replace(one, name=f"{name}_{count}{dot}{batch}"))
                of.append(number)
        return forms[number, kinds]

    for one in order:
        start = 0
        numbers = [form(one.template, layer) for layer in one.layers]
        for end in range(1, one.repeats + 1):
            if end == one.repeats or numbers[end] != numbers[start]:
                layer = one.layers[start]
                played.append(replace(one, template=numbers[start], layer=layer, repeats=end - start))
                start = end
    return found, played, of
