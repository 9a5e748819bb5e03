"""The packs and plans behind the attention anchors: drawn as the table says, correct, of the benchmark's methods."""

import numpy as np
import pytest

from zbench.anchors import attention, hybrid, nccl, ring_flash_attention, schemes
from zbench.anchors.anchor import published_rows
from zbench.anchors.packs import document_packs
from zbench.anchors.presets import cluster
from zbench.cost.cost import Cost
from zbench.cost.staging import FLASH
from zbench.plans.area import work
from zbench.plans.plan import ATTEND
from zbench.proof.verify import verify
from zbench.simulator.attention import programs


@pytest.mark.parametrize("total", [8192, 65536, 131072])
def test_packs_follow_the_table(total: int) -> None:
    drawn = document_packs(total, 200, seed=0)
    assert all(pack.sum() == total and pack.min() > 0 and pack.max() <= total // 4 for pack in drawn)
    assert all((a == b).all() for a, b in zip(drawn, document_packs(total, 200, seed=0), strict=True))
    rows = published_rows("documents")
    middle = np.array([(int(row["low"]) + int(row["high"])) // 2 for row in rows])
    count = np.array([int(row["documents"]) for row in rows], float)
    tail = middle % (total // 4)
    squares = (count * ((middle // (total // 4)) * (total // 4.0) ** 2 + tail**2)).sum() / (count * middle).sum()
    # Cutting documents at a pack's end makes pieces shorter, more so in small packs.
    assert 0.75 < np.mean([(pack.astype(float) ** 2).sum() / total for pack in drawn]) / squares < 1.05


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_nodes", [1, 2, 4])
@pytest.mark.parametrize("method", [*attention.METHODS["attention"][:-1], *attention.METHODS["magi"]])
def test_the_benchmarks_plans_are_correct(method: str, num_nodes: int, causal: bool) -> None:
    on = cluster("h100_4x8", num_nodes=num_nodes)
    lengths = np.concatenate([document_packs(8192 * on.num_ranks, 1, seed=5)[0], [1, 3, 17, 40]])
    plan = schemes.scheme_plan(method, lengths, causal, on)
    verify(plan)
    attends = np.bincount(plan.forward.src[plan.forward.kind == ATTEND], minlength=on.num_ranks)
    if method in schemes.MAGI:  # its own keys, and two stages
        assert (attends == 1 + schemes.MAGI_STAGES).all()
        return
    rows = {"ulysses": 1, "ring_p2p": on.num_ranks, "ring_allgather": 2, "usp": num_nodes, "loongtrain": num_nodes}
    assert (attends == rows[method]).all()


def test_loongtrains_inner_rings_are_no_shorter_than_the_outer_one() -> None:
    assert [schemes.inner_ring(rows) for rows in range(1, 10)] == [1, 2, 3, 2, 5, 3, 7, 4, 3]


def test_loongtrains_dkv_waits_once_a_window_and_once_between_them() -> None:
    """A ring of one row sends nothing; of up to three, the last hop home; of four (2 x 2) two of those, one between."""
    assert [schemes.unhidden_hops(rows) for rows in (1, 2, 3, 4, 5, 6, 8, 9)] == [0, 1, 1, 3, 1, 3, 3, 4]


def test_what_loongtrain_waits_for_is_a_node_s_dkv() -> None:
    """One GPU's share of it, over the one channel that a peer has."""
    cost = Cost(cluster("h100_4x8", num_nodes=2), schemes.MODEL)
    size = 8 * 8192 * 2 * 128 * 2  # tokens of a node, k and v, one kv head of 128, bf16
    found = attention.unhidden_seconds(np.array([100_000, 31_072]), cost)
    assert found == pytest.approx(size / 20e9 + 15e-6)


def test_hybrid_groups_are_as_wide_as_8192_tokens_a_rank_ask_for() -> None:
    on = cluster("b200_4x8", num_nodes=1)
    (plan,) = hybrid.plans(np.array([65_536, 65_536]), True, on, schemes.MODEL)[:1]
    assert [len(np.unique(plan.blocks.block[plan.blocks.seq == seq])) for seq in (0, 1)] == [8, 8]


@pytest.mark.parametrize("causal", [False, True])
def test_hybrid_rounds_are_correct_and_single_gpus_unstaged(causal: bool) -> None:
    on = cluster("h100_4x8", num_nodes=1)
    lengths = np.array([9000, 20_000, 3000, 3000, 8192, 100, 1, 22_000])
    plans = hybrid.plans(lengths, causal, on, schemes.MODEL)
    assert sorted(np.concatenate([plan.sequences for plan in plans]).tolist()) == list(range(len(lengths)))
    staged, bare = Cost(on, schemes.MODEL, wrapper=FLASH), Cost(on, schemes.MODEL)
    alone = 0
    for plan in plans:
        verify(plan)
        blocks = [len(np.unique(plan.blocks.block[plan.blocks.seq == seq])) for seq in range(len(plan.lengths))]
        mixed, slow, fast = hybrid.mixed_programs(plan, staged), programs(plan, staged), programs(plan, bare)
        for part, high, low in zip(mixed, slow, fast, strict=True):
            plain, wrapped = part.busy == low.busy, part.busy == high.busy
            assert (plain | wrapped).all()
            assert (plain & ~wrapped).sum() == blocks.count(1)
        alone += blocks.count(1)
    assert alone > 0


def test_the_gathered_shares_are_contiguous_and_correct() -> None:
    """ring-flash-attention's llama3 function: every rank has 1 / 8 of the pack, and the last one sees most."""
    cost = Cost(cluster("a100_8x8", num_nodes=1), ring_flash_attention.LLAMA)
    plan = ring_flash_attention.ring_flash_plan("llama3", np.array([2048, 59136, 4352]), cost)
    verify(plan)
    assert (plan.tokens_per_rank == 8192).all()
    attend, amount = work(plan, plan.forward)
    pairs = np.bincount(plan.forward.src[attend], weights=amount.area, minlength=8)
    assert pairs.sum() == sum(length * (length + 1) / 2 for length in (2048, 59136, 4352))
    assert (np.diff(pairs[:7]) > 0).all()


def test_a_message_round_the_ranks_takes_its_slowest_link() -> None:
    one, two = (nccl.cluster_of_report("a100", num_gpus, cluster) for num_gpus in (8, 16))
    size = 1 << 30
    inside, across = (nccl.neighbour_seconds(Cost(on, nccl.WIDE), size) for on in (one, two))
    assert inside == pytest.approx(size / 180e9 + 10e-6)
    assert across == pytest.approx(size / 20e9 + 15e-6)
