"""The experts that tokens chose, and which rows of routed tokens the cells of an operation have. Pure.

Of a tensor with amounts, as i[t,k] or z[t,e], a cell has the rows of those tokens of its part that go there, in the
tokens' order. Cells lie one after another, those of a slice or of an expert together, so that an expert's rows are one
piece. A step says how many tokens go where; which ones is data, as their words are. With padding a cell of a slice has
the rows of its experts one after another, of each its tokens and then rows of no token.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.runtime.steps.instructions import Parts
from zbench.step.expert_cut import ExpertCut


@dataclass(frozen=True)
class RoutedTokens:
    """The experts of the tokens of a micro-batch.

    chosen: int64 [tokens, experts a token], of a token none twice, ~expert of one that has no room; tokens in the order
    of parts of t. sizes: int64 [parts], the tokens of each. cut: of the experts, by which parts of e are experts, or
    columns of them, and lie in slices (parts of k). padding: int64 [parts, experts], rows of no token, None: there are
    none, and a token goes to a slice once. nodes: int64 [slices], the node (a part of n) that each is in, where tokens
    go there first. aligned: whether a node, of whatever slices, has the rows of each of these, slice after slice, and
    not each token once (2DH).
    """

    chosen: Ints
    sizes: Ints
    cut: ExpertCut
    padding: Ints | None = None
    nodes: Ints | None = None
    aligned: bool = False

    @cached_property
    def _begin(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def amounts(self, index: str) -> Ints:
        """Returns the rows of every part that go to every part of an expert (index e), slice (k) or node (n), int64
        [parts, those]."""
        if index == "n" and self.aligned:
            of_slices = self.amounts("k")
            return np.stack([of_slices[:, self._slices_of(node)].sum(axis=1) for node in self._every_node], axis=1)
        if index == "n" and self.padding is not None:  # what each GPU of a group with the same experts has
            assert self.nodes is not None, "a tensor that is cut along nodes has a map to them"
            return self.amounts("k")[:, np.unique(self.nodes, return_index=True)[1]]
        if index == "n":
            return self._counted([self._to_node(self.chosen, node) for node in self._every_node])
        if index == "e" or self.padding is not None:
            found = self._counted([self.chosen == expert for expert in self.cut.experts.tolist()])
        else:
            found = self._counted([self._to_slice(self.chosen, part) for part in self._every_slice])
        if self.padding is None:
            return found
        found = found + self.padding[:, self.cut.experts]
        if index == "e":
            return found
        return np.stack([found[:, self.cut.slice_of == part].sum(axis=1) for part in self._every_slice], axis=1)

    @property
    def _every_node(self) -> range:
        assert self.nodes is not None, "a tensor that is cut along nodes has a map to them"
        return range(int(self.nodes.max()) + 1)

    def _slices_of(self, node: int) -> list[int]:
        """Returns the slices of a node, ascending."""
        assert self.nodes is not None, "a tensor that is cut along nodes has a map to them"
        return np.flatnonzero(self.nodes == node).tolist()

    @property
    def _every_slice(self) -> range:
        return range(self.cut.slices)

    @cached_property
    def _slice_has(self) -> Flags:
        """Whether each slice has each expert, or columns of it, bool [slices, experts]."""
        found = np.zeros((self.cut.slices, self.cut.num_experts), bool)
        found[self.cut.slice_of, self.cut.experts] = True
        return found

    def _counted(self, choices: list[Flags]) -> Ints:
        """Returns how many tokens of each part have one of some choices, for each of those, int64 [parts, those]."""
        goes = np.stack([one.any(axis=1) for one in choices], axis=1)
        counted = np.concatenate([np.zeros((1, len(choices)), np.int64), np.cumsum(goes, axis=0)])
        return np.asarray(np.diff(counted[self._begin], axis=0), np.int64)

    def _to_slice(self, chosen: Ints, part: int) -> Flags:
        """Returns which choices are experts of a slice, with room for the token."""
        return np.asarray(self._slice_has[part][chosen] & (chosen >= 0))

    def _to_node(self, chosen: Ints, node: int) -> Flags:
        """Returns which choices are experts of a node, with room for the token."""
        assert self.nodes is not None, "a tensor that is cut along nodes has a map to them"
        return np.asarray(self._slice_has[self.nodes == node].any(axis=0)[chosen] & (chosen >= 0))

    def to_node(self, parts: Parts, node: int) -> tuple[Ints, Flags]:
        """Returns the token of each row of parts that goes to a node, as `to_slice` has it of a slice: with padding a
        node are GPUs that have the same experts. Of aligned rows those of each part are together, slice by slice."""
        if self.aligned:
            return self._aligned(parts, node)
        if self.padding is not None:
            return self.to_slice(parts, int(np.flatnonzero(self.nodes == node)[0]))
        inside = self._to_node(self._choices(parts), node)
        tokens = np.flatnonzero(inside.any(axis=1))
        return tokens, inside[tokens]

    def _aligned(self, parts: Parts, node: int) -> tuple[Ints, Flags]:
        """Returns what `to_node` does, of aligned rows."""
        found = [(np.zeros(0, np.int64), np.zeros((0, self.chosen.shape[1]), bool))]
        first = 0
        for one in parts:
            for part in self._slices_of(node):
                tokens, inside = self.to_slice((one,), part)
                found.append((np.where(tokens < 0, tokens, first + tokens), inside))
            first += int(self.sizes[one])
        return np.concatenate([tokens for tokens, _ in found]), np.concatenate([inside for _, inside in found])

    def _aligned_rows(self, parts: Parts, node: int) -> dict[int, Ints]:
        """Returns for each slice of a node its rows by their numbers among the node's, of aligned rows."""
        slices, begin = self._slices_of(node), 0
        found: dict[int, list[Ints]] = {part: [np.zeros(0, np.int64)] for part in slices}
        for one in parts:
            for part in slices:
                count = len(self.to_slice((one,), part)[0])
                found[part].append(begin + np.arange(count))
                begin += count
        return {part: np.concatenate(rows) for part, rows in found.items()}

    def in_nodes(self, parts: Parts, slices: Parts) -> tuple[list[Ints], int]:
        """Returns for each slice its rows by their numbers among those that the slices' nodes were sent of parts, which
        follow one another, and how many these are."""
        assert self.nodes is not None, "a formula of relays has a map to nodes"
        begin, first, tokens = 0, dict[int, int](), dict[int, Ints]()
        for node in np.unique(self.nodes[list(slices)]).tolist():
            first[node], tokens[node] = begin, self.to_node(parts, node)[0]
            begin += len(tokens[node])
        found = []
        for part in slices:
            node = int(self.nodes[part])
            if self.aligned:
                found.append(first[node] + self._aligned_rows(parts, node)[part])
                continue
            if self.padding is not None:  # all of a node's
                found.append(first[node] + np.arange(len(tokens[node])))
                continue
            found.append(first[node] + np.searchsorted(tokens[node], self.to_slice(parts, part)[0]))
        return found, begin

    def of(self, parts: Parts) -> Ints:
        """Returns what the tokens of parts chose, with room or not, part after part, int64 [tokens, experts a
        token]."""
        found = self._choices(parts)
        return np.where(found < 0, ~found, found)

    def _choices(self, parts: Parts) -> Ints:
        """Returns the choices of the tokens of parts, part after part, as `chosen` has them."""
        rows = [np.arange(self._begin[part], self._begin[part + 1]) for part in parts]
        return np.asarray(self.chosen[np.concatenate([np.zeros(0, np.int64), *rows])], np.int64)

    def to_slice(self, parts: Parts, part: int) -> tuple[Ints, Flags]:
        """Returns the token of each row of parts that goes to a slice, by its number among these, -1 of padding, and
        which of the token's choices the row is of, bool [rows, experts a token]."""
        chosen = self._choices(parts)
        if self.padding is None:
            inside = self._to_slice(chosen, part)
            tokens = np.flatnonzero(inside.any(axis=1))
            return tokens, inside[tokens]
        tokens, expert, _ = self._padded(parts, part)
        return tokens, np.asarray((chosen[tokens] == expert[:, None]) & (tokens >= 0)[:, None])

    def _padded(self, parts: Parts, part: int) -> tuple[Ints, Ints, Ints]:
        """Returns the token, -1 of padding, the expert and the choice, 0 of padding, of each row of parts that goes to
        a slice where there is padding."""
        assert self.padding is not None
        none = np.zeros(0, np.int64)
        tokens, experts, choices, first = [none], [none], [none], 0
        for one in parts:
            chosen = self._choices((one,))
            for expert in self.cut.experts[self.cut.slice_of == part].tolist():
                rows, choice = np.nonzero(chosen == expert)
                empty = int(self.padding[one, expert])
                tokens += [first + rows, np.full(empty, -1)]
                choices += [choice, np.zeros(empty, np.int64)]
                experts.append(np.full(len(rows) + empty, expert))
            first += len(chosen)
        return np.concatenate(tokens), np.concatenate(experts), np.concatenate(choices)

    def to_experts(self, parts: Parts, experts: Parts) -> list[tuple[Ints, Ints]]:
        """Returns for each part of e the rows of what its slice was sent of parts, i[t,k(e)], that go to it, and as
        which of their tokens' choices. The slices of all experts named follow one another in these rows."""
        chosen, begin, found = self._choices(parts), 0, dict[int, tuple[Ints, Ints]]()
        slice_of, expert_of = self.cut.slice_of, self.cut.experts
        for part in np.unique(slice_of[list(experts)]).tolist():
            mine = [expert for expert in experts if slice_of[expert] == part]
            if self.padding is None:
                tokens = np.flatnonzero(self._to_slice(chosen, part).any(axis=1))
                for expert in mine:
                    rows, choice = np.nonzero(chosen[tokens] == expert_of[expert])
                    found[expert] = begin + rows, choice
            else:
                tokens, of, choice = self._padded(parts, part)
                for expert in mine:
                    rows = np.flatnonzero(of == expert_of[expert])
                    found[expert] = begin + rows, choice[rows]
            begin += len(tokens)
        return [found[expert] for expert in experts]
