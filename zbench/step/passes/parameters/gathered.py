"""The parameters that templates of a micro-batch find, gather and leave."""

from collections.abc import Sequence
from dataclasses import dataclass

from zbench.describe.arrays import Ints
from zbench.describe.degrees import WORLD
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.held import HeldParameters

Rows = list[list[int]]


@dataclass(frozen=True, slots=True)
class GatheredParameters:
    """The parameters of a micro-batch's templates, as tables of operations and entries that no batch changes. rows:
    what these are made by. held: the degrees by which the micro-batch finds and leaves parameters."""

    rows: GradientRows
    held: HeldParameters

    @property
    def _gathers(self) -> bool:
        """Whether the forward gathers parameters."""
        return self.rows.of.gathered or (self.rows.of.gathered_once and self.held.number == 0)

    @property
    def gathers_layers(self) -> bool:
        """Whether the forward gathers parameters of layers and of the head, which may be there already."""
        return self._gathers and not self.rows.of.gathered_first

    def layer_gathers(self, layer: int) -> Ints:
        """Returns what brings the parameters of a layer to every GPU in a forward. layer: its offset."""
        if self.held.finds_copies:
            return self.gathers_again(layer)
        weights = self.rows.of.of_layers
        return self.rows.kept(("layer", self.held, layer), lambda: [self._first_gathers(weights, layer)])[0]

    def gathers_again(self, layer: int) -> Ints:
        """Returns what brings the parameters of a layer to every GPU from what stays for backwards."""
        weights, degree = self.rows.of.of_layers, self.rows.of.degrees.secondary
        return self.rows.kept(("again", layer), lambda: [self.rows.gathers(weights, degree, layer, True)])[0]

    def _first_gathers(self, weights: tuple[str, ...], layer: int = 0) -> Rows:
        """Returns what brings parameters to every GPU in a forward: in the first one those that were updated come to
        where they are held meanwhile before."""
        rows, of = self.rows, self.rows.of
        if not of.gathered or self.held.before == of.degrees.weights:
            return rows.gathers(weights, self.held.before, layer)
        return rows.refreshes(weights, layer) + rows.gathers(weights, of.degrees.weights, layer)

    def outside_layers(self, weights: Sequence[str], again: Sequence[str] = ()) -> tuple[Ints, Ints, Ints]:
        """Returns the gathers of parameters that are of no layer, and their entries before and after them. again: of
        those the ones that the micro-batch has used before; gathered once, they are still there."""
        key = "outside", self.held, tuple(weights), tuple(again)
        gathers, before, after = self.rows.kept(key, lambda: self._outside_layers(weights, again))
        return gathers, before, after

    def _outside_layers(self, weights: Sequence[str], again: Sequence[str]) -> tuple[Rows, Rows, Rows]:
        rows, held = self.rows, self.rows.of.degrees.weights
        stays = again if rows.of.gathered_once else ()
        there = [weight for weight in weights if not self._gathers or weight in stays]
        come = tuple(weight for weight in weights if weight not in there)
        gathers = self._first_gathers(tuple(one for one in come if one not in again))
        gathers += rows.gathers(tuple(one for one in come if one in again), held)
        before = [line for one in there for line in rows.everywhere(one, one)]
        after = before + [line for one in come for line in rows.held(one, one, held)]
        for one in come:
            before += rows.held(one, one, held if one in again else self.held.before)
        return gathers, before, after

    def ahead(self, layers: range, forward: bool) -> tuple[int, ...]:
        """Returns the offsets of layers that are gathered ahead; a backward gathers them with stage 3 alone."""
        return tuple(layers) if (self.gathers_layers if forward else self.rows.of.gathered) else ()

    def entries(self, gathered: Sequence[int], held: Sequence[int], degree: int = WORLD, back: bool = False) -> Ints:
        """Returns the entries of a layer's parameters, by the offsets of layers that are gathered, or held by a degree
        alone. back: gathered for a backward."""
        key = "entries", tuple(gathered), tuple(held), degree, back
        return self.rows.kept(key, lambda: [self._entries(gathered, held, degree, back)])[0]

    def _entries(self, gathered: Sequence[int], held: Sequence[int], degree: int, back: bool) -> Rows:
        found = []
        for weight in self.rows.of.of_layers:
            for layer in gathered:
                found += self.rows.everywhere(weight, weight, layer, backward=back)
            for layer in held:
                found += self.rows.held(weight, weight, degree, layer)
        return found

    def around_layer(self, forward: bool) -> tuple[Ints, Ints]:
        """Returns what a layer's template needs and leaves of parameters."""
        of = self.rows.of
        back = not forward or self.held.finds_copies
        if not (of.gathered or (self.gathers_layers and forward)):
            return self.entries((0,), (), back=back), self.entries((0,), (), back=back)
        offsets = [*range(of.forward_window + 1)] if forward else [-layer for layer in range(of.window + 1)]
        before, after = self.held.of_layers_before, of.degrees.secondary
        if not forward:
            before, after = after, self.held.of_layers_after
        needs = self.entries(offsets[:-1], offsets[-1:], before, back)
        if not of.gathered:
            return needs, self.entries(offsets, (), back=back)
        return needs, self.entries(offsets[1:], offsets[:1], after, back)
