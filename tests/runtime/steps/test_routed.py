"""Rows of routed tokens: as many as the passes count, each token once a slice, each choice once an expert."""

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.steps import EXPERTS
from zbench.runtime.steps.routed import RoutedTokens
from zbench.step.expert_cut import ExpertCut
from zbench.step.passes.router.relays import Relays
from zbench.step.passes.routing import Routing


@st.composite
def routed(draw: st.DrawFn) -> tuple[RoutedTokens, Routing]:
    """Some tokens or none a part, of four experts two each, in one to four slices, each expert over one, two or all of
    them; all alike in some draws."""
    sizes = np.array(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)), np.int64)
    two = st.sampled_from(list(combinations(range(EXPERTS.num_experts), EXPERTS.experts_per_token)))
    alike, total = draw(st.booleans()), int(sizes.sum())
    rows = [draw(two)] * total if alike else [draw(two) for _ in range(total)]
    chosen = np.array(rows, np.int64).reshape(total, EXPERTS.experts_per_token)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    cut = ExpertCut(EXPERTS.num_experts, *draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4)])))
    routing = Routing(chosen, begin, EXPERTS.num_experts, cut.slices, tensor_parallel=cut.tensor_parallel)
    return RoutedTokens(chosen, sizes, cut), routing


@given(routed())
def test_amounts_are_those_of_the_passes(both: tuple[RoutedTokens, Routing]) -> None:
    one, routing = both
    assert np.array_equal(one.amounts("e"), routing.to_experts)
    assert np.array_equal(one.amounts("k"), routing.to_slices)


@given(routed(), st.data())
def test_rows_are_of_the_tokens_that_chose(both: tuple[RoutedTokens, Routing], data: st.DataObject) -> None:
    one, routing = both
    every = list(range(len(one.sizes)))
    parts = tuple(sorted(data.draw(st.sets(st.sampled_from(every), min_size=1))))
    cut, (k_of_e,) = one.cut, routing.maps()
    assert k_of_e.part.tolist() == cut.slice_of.tolist()
    experts = tuple(sorted(data.draw(st.sets(st.integers(0, cut.parts - 1), min_size=1))))
    has = [set(cut.experts[cut.slice_of == part].tolist()) for part in range(cut.slices)]
    chosen = one.of(parts)
    assert len(chosen) == sum(one.sizes[part] for part in parts)
    sent = []
    for part in dict.fromkeys(cut.slice_of[list(experts)].tolist()):
        tokens, inside = one.to_slice(parts, part)
        assert tokens.tolist() == [at for at, row in enumerate(chosen) if has[part] & {*row.tolist()}]
        assert inside.tolist() == [[expert in has[part] for expert in chosen[at].tolist()] for at in tokens]
        sent += tokens.tolist()
    for part, (rows, choice) in zip(experts, one.to_experts(parts, experts), strict=True):
        expert = cut.experts[part]
        tokens = [sent[row] for row in rows]
        assert tokens == [at for at, row in enumerate(chosen) if expert in row]
        assert [chosen[at][which] for at, which in zip(tokens, choice, strict=True)] == [expert] * len(tokens)
        assert len(rows) == routing.to_experts[list(parts), part].sum()


def test_rows_of_two_slices_follow_one_another() -> None:
    one = RoutedTokens(np.array([[0, 3], [1, 2], [2, 3]]), np.array([1, 2]), ExpertCut(4, 2))
    assert [rows.tolist() for rows, _ in one.to_experts((0, 1), (0, 2, 3))] == [[0], [3, 4], [2, 4]]
    assert one.to_slice((1,), 0)[0].tolist() == [0]


@given(routed(), st.data())
def test_aligned_rows_are_those_of_each_slice(both: tuple[RoutedTokens, Routing], data: st.DataObject) -> None:
    """Of a part together, slice after slice: as many as the passes count, at places that share all of a node's rows."""
    tokens, routing = both
    if tokens.cut.tensor_parallel > 1:
        return
    relays = Relays(routing.slices, data.draw(st.sampled_from([1, routing.slices])), inside_first=True)
    routing = replace(routing, relays=relays)
    one = replace(tokens, nodes=relays.of_slices, aligned=True)
    assert np.array_equal(one.amounts("n"), routing.to_nodes)
    every = tuple(range(len(one.sizes)))
    for node in range(relays.parts):
        slices = tuple(np.flatnonzero(relays.of_slices == node).tolist())
        rows, inside = one.to_node(every, node)
        places, count = one.in_nodes(every, slices)
        assert count == len(rows) == one.amounts("n")[:, node].sum()
        assert sorted(np.concatenate(places).tolist()) == list(range(count))
        for part, mine in zip(slices, places, strict=True):
            of, choices = one.to_slice(every, part)
            assert np.array_equal(rows[mine], of)
            assert np.array_equal(inside[mine], choices)
        parts = np.searchsorted(np.cumsum(one.sizes), rows, side="right")
        assert (np.diff(parts) >= 0).all()
