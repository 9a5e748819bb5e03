"""PyTorch's context parallelism: what every rank owns is what the installed torch's load balancers give it."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import TRANSFER, Ints, Plan
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.mesh_packs import pack_batch
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.mesh import Mesh
from zbench.systems.torch_cp.balancers import BALANCERS, Balancer, Pieces, head_tail, per_document, pieces, ptrr
from zbench.systems.torch_cp.planner import TorchCP, least_limit

many = settings(max_examples=60)
lengths_of = st.lists(st.integers(1, 400), min_size=1, max_size=20)


def in_order(owned: Pieces, lengths: Ints) -> tuple[Ints, Ints]:
    """(places in the pack of its tokens in the new order; the rank of each)."""
    seq, start, stop, owner = owned
    begin = (np.cumsum(lengths) - lengths)[seq]
    places = [np.arange(low, high) for low, high in zip(begin + start, begin + stop, strict=True)]
    return np.concatenate(places), np.repeat(owner, stop - start)


def assert_ranks_take_it_in_turn(owner: Ints, ranks: int) -> None:
    """Asserts that ranks have as many tokens each, in turn, as distribute_tensor's Shard cuts them."""
    assert (owner == np.arange(len(owner)) // (len(owner) // ranks)).all()


@many
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 6))
def test_head_tail_is_torch_s(counts: list[int], ranks: int) -> None:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

    lengths = np.array(counts)
    lengths[-1] += -lengths.sum() % (2 * ranks)
    places, owner = in_order(head_tail(lengths, ranks), lengths)
    theirs = _HeadTailLoadBalancer(int(lengths.sum()), ranks, "cpu")._generate_indices()
    assert places.tolist() == theirs[0].tolist()
    assert_ranks_take_it_in_turn(owner, ranks)


@many
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 6))
def test_per_document_is_torch_s(counts: list[int], ranks: int) -> None:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _PerDocumentHeadTailLoadBalancer

    lengths = 2 * ranks * np.array(counts)
    places, owner = in_order(per_document(lengths, ranks), lengths)
    theirs = _PerDocumentHeadTailLoadBalancer([lengths.tolist()], ranks, "cpu")._generate_indices()
    assert places.tolist() == theirs[0].tolist()
    assert_ranks_take_it_in_turn(owner, ranks)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 4))
def test_ptrr_is_torch_s(counts: list[int], ranks: int) -> None:
    import torch
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _PTRRLoadBalancer
    from torch.nn.attention.flex_attention import create_block_mask

    lengths, tile = np.array(counts), 16
    lengths[-1] += -lengths.sum() % (ranks * tile)
    total, document = int(lengths.sum()), torch.tensor(np.repeat(np.arange(len(lengths)), lengths))
    mask = create_block_mask(
        lambda _batch, _head, q, kv: (q >= kv) & (document[q] == document[kv]),
        1,
        1,
        total,
        total,
        device="cpu",
        BLOCK_SIZE=tile,
    )
    places, owner = in_order(ptrr(lengths, ranks, tile), lengths)
    assert places.tolist() == _PTRRLoadBalancer(mask, ranks)._generate_indices()[0].tolist()
    assert_ranks_take_it_in_turn(owner, ranks)


def test_torch_s_per_document_order_is_not_that_of_its_own_example() -> None:
    """Two ranks, documents of 4, 8 and 4: its docstring shows rank 0 with 0, 3 | 4, 5, 10, 11 | 12, 15."""
    places, owner = in_order(per_document(np.array([4, 8, 4]), 2), np.array([4, 8, 4]))
    assert places[owner == 0].tolist() == [0, 3, 1, 2, 4, 5, 10, 11]


@given(st.sampled_from(BALANCERS), lengths_of, st.integers(1, 9), st.sampled_from([1, 7, 128]))
def test_every_token_is_owned_once_and_padding_by_nobody(
    balancer: Balancer, counts: list[int], ranks: int, tile: int
) -> None:
    """What is no multiple is cut as if it had been padded to one: nobody has more than with padding."""
    lengths = np.array(counts)
    places, owner = in_order(pieces(balancer, lengths, ranks, tile), lengths)
    assert np.sort(places).tolist() == list(range(lengths.sum()))
    whole = {
        "headtail": 2 * -(-lengths.sum() // (2 * ranks)),
        "per_document": int((2 * -(-lengths // (2 * ranks))).sum()),
        "ptrr": tile * -(-lengths.sum() // (tile * ranks)),
    }
    assert np.bincount(owner, minlength=ranks).max() <= whole[balancer]


def test_ptrr_has_the_busiest_rank_least_busy() -> None:
    """One long document behind short ones: head-tail gives the rank with its end more tiles than others."""
    lengths, tile, ranks = np.array([128] * 56 + [8192]), 128, 4
    first = np.cumsum(lengths) - lengths

    def busiest(balancer: Balancer) -> float:
        _, start, stop, owner = pieces(balancer, lengths, ranks, tile)
        rows = np.concatenate([np.arange(low, high, tile) for low, high in zip(start, stop, strict=True)])
        of = np.repeat(owner, -(-(stop - start) // tile))
        work = np.bincount(of, rows // tile + 1)
        return float(work.max() / work.mean())

    assert (first % tile == 0).all()
    assert busiest("ptrr") < 1.02 < busiest("headtail")


def moved(plan: Plan) -> tuple[Ints, Ints]:
    ops = plan.forward.take(np.flatnonzero(plan.forward.kind == TRANSFER))
    return ops.src, ops.dst


@pytest.mark.parametrize("balancer", BALANCERS)
def test_keys_of_a_pack_reach_its_whole_group_and_nobody_else(cost: Cost, balancer: Balancer) -> None:
    batch = Batch(np.array([900, 40, 700, 300]), seed=0, step=0)
    for plan in TorchCP(cost, balancer, degree=2).plan(batch):
        src, dst = moved(plan)
        assert (src // 2 == dst // 2).all()
        assert len(src) == 4


def test_head_tail_with_packs_as_full_is_a_mesh_that_gathers(cost: Cost) -> None:
    """The mesh cuts what is no multiple in chunks that differ by a token; here none has to be."""
    batch = Batch(np.array([800, 48, 720, 320]), seed=0, step=0)
    mine = TorchCP(cost, degree=2, pack_tokens=500).plan(batch)
    theirs = Mesh(cost, "allgather", 2, "arrival", pack_tokens=500).plan(batch)
    executor = Simulated(cost)
    assert len(mine) == 2
    assert executor.step(batch, mine) == executor.step(batch, theirs)


@given(lengths_of, st.integers(1, 6), st.integers(1, 4000))
def test_packs_are_as_even_as_their_order_allows(counts: list[int], groups: int, most: int) -> None:
    cost, lengths = small(2, 2), np.array(counts)

    def turns(limit: int) -> int:
        return int(pack_batch("arrival", lengths, groups, limit, cost)[:, 0].max()) + 1

    limit = least_limit(lengths, groups, most, cost)
    assert limit <= max(most, 1)
    assert turns(limit) == turns(most)
    assert limit <= lengths.max() or turns(limit - 1) > turns(most)


def test_the_degree_and_the_packs_are_those_that_fit(cost: Cost) -> None:
    free = fitting_tokens(cost)
    alone = Batch(np.array([2 * free]), seed=0, step=0)
    two = TorchCP(cost, degree=2, received_kv="keep").plan(alone)
    assert not StepEstimate(cost).fits(alone, two)
    more = TorchCP(cost, context_limit=2 * free, received_kv="keep").plan(alone)
    assert StepEstimate(cost).fits(alone, more)
    batch = Batch(np.array([free // 2] * 12), seed=0, step=0)
    for degree in (1, 2, 4):
        plans = TorchCP(cost, degree=degree).plan(batch)
        assert len(plans) > 1
        assert StepEstimate(cost).fits(batch, plans)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("balancer", "zigzag", "system.balancer is 'zigzag'; it takes headtail, per_document, ptrr"),
        ("degree", 3, "system.degree is 3; it takes a divisor of the 4 ranks, or null"),
        ("pack_tokens", 0, "system.pack_tokens is 0; it takes a whole number of at least 1, or null"),
        ("tile", 0, "system.tile is 0; it takes a whole number of at least 1"),
        ("received_kv", "no", "system.received_kv is 'no'; it takes keep, carry, regather"),
    ],
)
def test_a_bad_key_is_one_sentence(cost: Cost, key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        TorchCP(cost, **{key: value})  # type: ignore[arg-type]
