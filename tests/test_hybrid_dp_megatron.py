"""Megatron-LM's scheduler as a system, and how far systems/hybrid_dp.py re-tells it.

tests/test_systems.py and tests/test_exact.py hold its plans to what every system owes.
"""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

from systems import hybrid_dp, hybrid_dp_megatron
from systems.hybrid_dp import Group
from systems.hybrid_dp_megatron import MODULE, HybridDPMegatron
from zbench.cost import Cost
from zbench.plan import Ints

with_megatron = pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core, of the extra `peers`")


def by_length(rounds: list[list[Group]], lengths: Ints) -> list[list[tuple[int, list[int]]]]:
    """(ranks, lengths of its sequences) of every group, in no order inside a round."""
    return [sorted((group.size, lengths[group.seqs].tolist()) for group in groups) for groups in rounds]


def retold(lengths: Ints, limit: int, ranks: int) -> list[list[Group]]:
    """Rounds of systems/hybrid_dp.py."""
    degree = np.minimum(2 ** np.ceil(np.log2(-(-lengths // limit))).astype(np.int64), ranks)
    return hybrid_dp.rounds(lengths, degree, ranks)


def test_without_megatron_core_a_sentence_says_what_to_install(uneven: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(ValueError, match="which the extra 'peers' installs"):
        HybridDPMegatron(uneven)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "8"])
def test_tokens_per_rank_is_checked(uneven: Cost, value: object) -> None:
    with pytest.raises(ValueError, match=r"tokens_per_rank is .* takes a whole number"):
        HybridDPMegatron(uneven, tokens_per_rank=value)  # type: ignore[arg-type]


@with_megatron
@given(st.data())
def test_every_sequence_runs_once_on_as_many_ranks_as_it_needs(data: st.DataObject) -> None:
    """Any number of ranks, and limits so small that a sequence needs more than there are."""
    lengths = data.draw(batches(30_000, 40)).lengths
    ranks, limit = data.draw(st.integers(1, 40)), data.draw(st.integers(1, int(lengths.max())))
    world = 2 ** int(np.log2(ranks))
    rounds = hybrid_dp_megatron.rounds(lengths, limit, ranks)
    assert sorted(seq for groups in rounds for group in groups for seq in group.seqs) == list(range(len(lengths)))
    for groups in rounds:
        assert sum(group.size for group in groups) == ranks
        for group in groups:
            assert all(group.size * limit >= lengths[seq] or group.size >= world for seq in group.seqs)


@with_megatron
@given(st.integers(0, 5), st.integers(1, 3000), st.floats(0.02, 2), st.floats(0, 1))
def test_equal_lengths_are_scheduled_alike(power: int, length: int, share: float, fill: float) -> None:
    """Up to 19 sequences a group: with more, loads that differ by one sequence count as equal (see below)."""
    ranks, limit = 2**power, max(int(share * length), 1)
    width = min(2 ** int(np.ceil(np.log2(-(-length // limit)))), ranks)
    lengths = np.full(max(int(fill * 19 * ranks / width), 1), length)
    theirs = hybrid_dp_megatron.rounds(lengths, limit, ranks)
    assert by_length(theirs, lengths) == by_length(retold(lengths, limit, ranks), lengths)


DIFFERENCES = [
    pytest.param(
        8, 1, [6, 6, 4, 4], [[(8, [6, 6])], [(4, [4]), (4, [4])]], [[(8, [6])], [(8, [6])], [(4, [4]), (4, [4])]],
        id="it takes buckets one after another, longest first; retold, their heads in turn",
    ),
    pytest.param(
        2, 7, [6, 6, 1], [[(1, [6]), (1, [6, 1])]], [[(1, [6]), (1, [6])], [(2, [1])]],
        id="it hands nothing back while loads agree to 5 % or a rank is idle",
    ),
    pytest.param(
        4, 6, [12, 12, 12, 8, 1], [[(2, [12]), (2, [12])], [(2, [1]), (2, [12, 8])]],
        [[(2, [12]), (2, [12])], [(2, [8]), (2, [12])], [(4, [1])]],
        id="what it hands back stands last in the next round, not in its place by length",
    ),
    pytest.param(
        4, 6, [7, 5, 5, 2, 2, 1], [[(1, [5]), (1, [5]), (2, [7])], [(1, [1]), (1, [2]), (2, [2])]],
        [[(1, [5, 2]), (1, [5, 2]), (2, [7])], [(4, [1])]],
        id="once the width has fallen it ends a round whenever loads agree to 5 %, not only as it falls",
    ),
]  # fmt: skip


@with_megatron
@pytest.mark.parametrize(("ranks", "limit", "lengths", "theirs", "ours"), DIFFERENCES)
def test_where_the_retelling_differs(ranks: int, limit: int, lengths: list[int], theirs: list, ours: list) -> None:
    given = np.array(lengths)
    assert by_length(hybrid_dp_megatron.rounds(given, limit, ranks), given) == theirs
    assert by_length(retold(given, limit, ranks), given) == ours
