"""Planners' memory beside the live ranges of the steps that plans become: of pipelines, of jobs with and without stages
and tensor parallelism, whatever is recomputed, cut, or computed by chunks."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.helpers.examples import chequered
from tests.helpers.oracles import small
from tests.step.test_exchanges import HOWS
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import moments_of_stages, pipeline_moments
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.memory.state import WholeBytes
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import AUTO, SHARDING, RecomputeLevel
from zbench.simulated.executor import Simulated
from zbench.systems.allgather import AllGather
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses
from zbench.systems.usp import USP
from zbench.systems.zeppelin.planner import Zeppelin


def pipelines_of(**model: Any) -> Cost:
    one = small(2, 4)
    cost = make_cost(one.cluster, replace(one.model, num_layers=8, **model), pipelines=True)
    return replace(cost, even_slices=True)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("pair", [(2, 1), (8, 1), (4, 2), (2, 4)])
def test_what_a_planner_reckons_is_what_is_there_at_the_fullest_moment(pair: tuple[int, int], recompute: str) -> None:
    """Never less, and hardly more, where micro-batches follow one another, so that gradients are there, too."""
    cost = pipelines_of(recompute=recompute)
    batch = Batch(np.full(6 * 8 // (pair[0] * pair[1]) * pair[1], 4096), 0, 0)
    plans = Hydraulis(cost, tp_pp_pairs=[pair], batching="first_fit", pack_tokens=4096).plan(batch)
    assert len(plans) >= 6
    found, reckoned = np.array(Simulated(cost).step(batch, plans).peak_bytes), peak_bytes(plans, cost)
    assert (found <= reckoned).all()
    assert found.max() >= 0.99 * reckoned.max()


CHUNK = 256  # tokens of a chunk of the feed-forward and of the loss
LEVELS = [("none", "whole"), ("none", CHUNK), ("selective", "whole"), ("selective", CHUNK), ("chunked", CHUNK)]
LEVELS += [("full", "whole"), ("full", CHUNK)]


def job(vocab: int = 32000, nodes: int = 2, **model: Any) -> Cost:
    """Eight GPUs with all the memory that plans ask for."""
    one = small(nodes, 8 // nodes, model="gqa", memory=4e12)
    return make_cost(one.cluster, replace(one.model, vocab=vocab, **model), False, True)


def reckoned_and_found(cost: Cost, length: int, micro_batches: int) -> tuple[Floats, Floats]:
    """Bytes of every GPU, as planners have them and at the fullest moment of live ranges; every rank has a
    sequence in every micro-batch."""
    batch = Batch(np.full(micro_batches * cost.cluster.num_ranks, length), 0, 0)
    plans = LocalPacking(cost, pack_tokens=length).plan(batch)
    assert len(plans) == micro_batches
    found = np.array(Simulated(cost).step(batch, plans).peak_bytes, np.float64)
    return np.repeat(peak_bytes(plans, cost) / cost.tp, cost.tp), found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sharding", SHARDING)
@pytest.mark.parametrize(("recompute", "chunk"), LEVELS)
def test_planners_memory_is_that_of_live_ranges(recompute: str, chunk: int | str, sharding: str) -> None:
    """Never less and to 1 %, with few tokens and with many, where the loss is what is fullest and where a layer is: of
    the second of three micro-batches, so that gradients are there and no reduction has begun.

    With chunks of the feed-forward all of its parameters and gradients are whole, but for the last one's.
    """
    at_loss = set()
    offset = LEVELS.index((recompute, chunk)) + SHARDING.index(sharding)
    every = chequered((1000, 128256), ("whole", AUTO, CHUNK), (2 * CHUNK, 4096), offset=offset)
    for vocab, loss, length in every:
        model = {"recompute": recompute, "mlp_chunk_tokens": chunk, "sharding": sharding, "loss_chunk_tokens": loss}
        cost = job(vocab, num_layers=3, **model)
        reckoned, found = reckoned_and_found(cost, length, 3)
        assert (found <= reckoned).all()
        assert found.max() >= (0.98 if chunk != "whole" and sharding == "zero3" else 0.99) * reckoned.max()
        at_loss.add(loss_is_fullest(cost, length))
    assert at_loss == {True, False}


def loss_is_fullest(cost: Cost, length: int) -> bool:
    """Whether the last of a rank's lines need most."""
    (of,) = moments_of_stages(cost)
    sizes = [line.bytes(length) for line in of.lines(1, True)]
    return int(np.argmax(sizes)) >= len(of.at_work)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_groups_hold_what_they_gather(recompute: str, sharding: str) -> None:
    """Jobs with tensor parallelism: hidden states of all of a group's tokens are whole on each of its GPUs."""
    offset = ("none", "selective", "full").index(recompute) + SHARDING.index(sharding)
    for vocab, loss, tp in chequered((1000, 128256), ("whole", AUTO, CHUNK), (2, 4), offset=offset):
        model = {"recompute": recompute, "sharding": sharding, "loss_chunk_tokens": loss, "tensor_parallel": tp}
        reckoned, found = reckoned_and_found(job(vocab, num_layers=3, **model), 2048, 3)
        assert (found <= reckoned).all()
        assert found.max() >= 0.99 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["sliced 2", "async_tp", "commfuse", "query_split 3"])
@pytest.mark.parametrize("recompute", ["none", "selective", "chunked", "full"])
def test_chunks_beside_exchanges_need_no_more_than_is_reckoned(recompute: str, how: str) -> None:
    """Planners reckon a group's exchanges whole, and gates and products of a chunk."""
    for sharding in ("zero1", "zero3"):
        of = {"recompute": recompute, "sharding": sharding, "mlp_chunk_tokens": CHUNK, "loss_chunk_tokens": AUTO}
        cost = job(1000, num_layers=3, tensor_parallel=2, **of)
        batch = Batch(np.full(3 * cost.cluster.num_ranks, 2048), 0, 0)
        plans = LocalPacking(cost, pack_tokens=2048).plan(batch)
        found = np.array(Simulated(cost, exchanges=HOWS[how]).step(batch, plans).peak_bytes, np.float64)
        reckoned = np.repeat(peak_bytes(plans, cost) / cost.tp, cost.tp)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sharding", SHARDING)
@pytest.mark.parametrize(("recompute", "chunk"), LEVELS)
def test_stages_hold_what_is_under_way(recompute: str, chunk: int | str, sharding: str) -> None:
    """Jobs with two stages, whole nodes and parts of one, with and without groups; each stage's ranks by themselves.

    With chunks all parameters of a layer's feed-forward are reckoned whole where they are cut, but for the last one's.
    """
    offset = LEVELS.index((recompute, chunk)) + SHARDING.index(sharding)
    shapes = (1, 2), (2, 2), (2, 1)
    for vocab, loss, (tp, nodes) in chequered((1000, 128256), ("whole", AUTO), shapes, offset=offset):
        model = {"recompute": recompute, "mlp_chunk_tokens": chunk, "sharding": sharding, "loss_chunk_tokens": loss}
        cost = job(vocab, nodes, num_layers=4, tensor_parallel=tp, pipeline_parallel=2, **model)
        reckoned, found = reckoned_and_found(cost, 2048, 6)
        assert (found <= reckoned).all()
        assert found.max() >= (0.965 if chunk != "whole" and sharding == "zero3" else 0.985) * reckoned.max()


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_large_table_is_whole_while_others_are_under_way(recompute: str, sharding: str) -> None:
    """On the first stage, of few tokens: its gradient where a backward ends; gathered where a forward begins. The last
    stage's ranks have a part of the head or none, and their state with it. To 2 %, as a stage of one layer is reckoned
    with another ahead."""
    fullest = set()
    for (tp, stages, nodes), length in product(((1, 2, 4), (1, 4, 4), (2, 2, 4), (1, 4, 2)), (16, 1024)):
        model = {"recompute": recompute, "sharding": sharding, "tensor_parallel": tp, "loss_chunk_tokens": AUTO}
        cost = job(128256, num_layers=4, nodes=nodes, pipeline_parallel=stages, **model)
        reckoned, found = reckoned_and_found(cost, length, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()
        fullest.add(int(found.argmax()) < len(found) // stages)
    assert fullest == {True, False}


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize(("tp", "stages"), [(4, 2), (8, 1)])
def test_one_group_has_a_slice_of_the_tables_gradient_each(tp: int, stages: int, sharding: str) -> None:
    """A group that is all of a job, or of a stage: nothing is cut, so there is no more than with ZeRO-1."""
    peaks = []
    for one in (sharding, "zero1"):
        cost = job(400_000, stages, num_layers=2, sharding=one, tensor_parallel=tp, pipeline_parallel=stages)
        reckoned, found = reckoned_and_found(cost, 64, 2)
        assert (found <= reckoned).all()
        peaks.append(found.max())
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-3)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_layers_that_are_not_recomputed_are_gone_when_others_are(recompute: str) -> None:
    """The first layers of a model are recomputed when the others have had their backward."""
    for again, vocab in product((1, 4, 7), (1000, 128256)):
        cost = job(vocab, num_layers=8, recompute=recompute, recompute_layers=again, sharding="zero1")
        reckoned, found = reckoned_and_found(cost, 4096, 3)
        assert (found <= reckoned).all()
        assert found.max() >= 0.99 * reckoned.max()


@pytest.mark.parametrize("layers", ["all", 7, 6, 3, 1])
def test_inputs_on_hosts_are_two_at_a_time(layers: int | str) -> None:
    """And those of other layers are all there."""
    cost = job(1000, num_layers=8, recompute="full", offload="inputs", offload_layers=layers, sharding="zero1")
    host = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e12}
    reckoned, found = reckoned_and_found(replace(cost, cluster=replace(cost.cluster, **host)), 4096, 3)
    assert (found <= reckoned).all()
    assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
@pytest.mark.parametrize(("recompute", "chunk"), [one for one in LEVELS if one[0] != "full"])
def test_activations_on_hosts_are_two_layers_at_a_time(recompute: str, chunk: int | str, sharding: str) -> None:
    """And one at the loss, beside those of layers that stay; with groups, too: never less and to 2 %."""
    host = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e13}
    one = small(2, 4, model="gqa", memory=4e12)
    levels = {"recompute": recompute, "mlp_chunk_tokens": chunk, "sharding": sharding, "offload": "activations"}
    offset = LEVELS.index((recompute, chunk)) + SHARDING.index(sharding) // 2
    for vocab, tp, layers in chequered((1000, 128256), (1, 2), ("all", 2), offset=offset):
        of = {"num_layers": 6, "vocab": vocab, "tensor_parallel": tp, "offload_layers": layers, **levels}
        cost = make_cost(replace(one.cluster, **host), replace(one.model, **of), False, True)
        reckoned, found = reckoned_and_found(cost, 4096 // tp, 3)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        ("zero1", {"offload": "optimizer", "optimizer_layers": 2}),
        ("zero1", {"offload": "optimizer"}),
        ("zero2", {"offload": "optimizer", "optimizer_layers": 5, "host_updates": "after_backward"}),
        ("zero3", {"offload": "optimizer", "optimizer_layers": 5, "host_updates": "across_steps"}),
        ("zero3", {"parameter_layers": 3}),
        ("zero3", {"parameter_layers": "all", "offload": "optimizer", "optimizer_layers": 1}),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_rests_on_hosts_is_not_there(recompute: str, sharding: str, layers: dict[str, Any]) -> None:
    """Optimizer state of the last layers, parameters of the first: never less than live ranges, and to 2 %; to 3 %
    where some layers' parameters are, as the fullest moment is taken to be one of theirs."""
    host = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e13}
    host |= {"host_adam_bandwidth": 1e11}
    one = small(2, 4, model="gqa", memory=4e12)
    for vocab, length in product((1000, 128256), (256, 4096)):
        of = {"num_layers": 6, "vocab": vocab, "recompute": recompute, "sharding": sharding}
        cost = make_cost(replace(one.cluster, **host), replace(one.model, **of, **layers), False, True)
        reckoned, found = reckoned_and_found(cost, length, 3)
        assert (found <= reckoned).all()
        assert found.max() >= (0.97 if "parameter_layers" in layers else 0.98) * reckoned.max()


@pytest.mark.parametrize("degrees", [(4, 4, WORLD, WORLD), (8, 4, 8, 8), (4, 4, 4, 4), (2, 2, 4, WORLD)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_parts_that_lie_in_one_another_are_no_more_than_is_reckoned(
    recompute: str, degrees: tuple[int, int, int, int]
) -> None:
    """Nested degrees: what is whole is counted with the rank's own part of it."""
    for vocab, length in product((1000, 128256), (256, 4096)):
        cost = job(vocab, num_layers=3, recompute=recompute, sharding=ShardDegrees(*degrees))
        reckoned, found = reckoned_and_found(cost, length, 3)
        assert (found <= reckoned).all()
        whole = WholeBytes.of(cost, cost.layers)
        assert reckoned.max() - found.max() <= (whole.loss + whole.inputs) / 2


@pytest.mark.parametrize("system", [Zeppelin, Ring, USP, AllGather, Ulysses], ids=lambda one: one.__name__)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_plans_receive_is_there_at_the_moments_of_attention(system: Any, recompute: str) -> None:
    """Systems that cut sequences: never less than live ranges, of which pieces that are taken and added to again count
    in between."""
    lengths = np.array([24000, 9000, 3000, 3000, 1000, 700, 200])
    for sharding, vocab in product(("zero1", "zero3"), (1000, 32000)):
        cost = job(vocab, num_layers=3, recompute=recompute, sharding=sharding)
        (plan,) = system(cost).plan(Batch(lengths, 0, 0))
        plans = tuple(plan.with_(sequences=plan.sequences + at * len(lengths)) for at in range(3))
        found = np.array(Simulated(cost).step(Batch(np.tile(lengths, 3), 0, 0), plans).peak_bytes)
        reckoned = peak_bytes(plans, cost)
        assert (found <= reckoned).all()
        if system in (USP, Ulysses):  # that send heads away, which they do not keep
            assert found.max() >= 0.97 * reckoned.max()


@pytest.mark.parametrize("level", ["none", "selective", "chunked", "full"])
@pytest.mark.parametrize("fine", [False, True])
def test_chunks_of_experts_need_no_more_than_is_reckoned(fine: bool, level: RecomputeLevel) -> None:
    """Two micro-batches, experts at home or over GPUs, of two sizes: never less than what is there; a token of
    a chunk that is made again is what it is without experts, and one that is kept has a row for each of its experts."""
    one = small(1, 4, memory=400e9)
    model = replace(one.model, num_layers=3, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, vocab=4096)
    model = replace(model, ffn_hidden=1024, num_experts=4, experts_per_token=2, sharding="zero1", recompute=level)
    model = replace(model, loss_chunk_tokens=256, mlp_chunk_tokens=256)
    if fine:
        model = replace(model, ffn_hidden=128, num_experts=16, experts_per_token=6, shared_experts=2)
    cost, over = replace(one, model=model), dict[int, list[int]]()
    for length in (1024, 2048):
        batch = Batch(np.full(8, length), 0, 0)
        plans = LocalPacking(cost, pack_tokens=length).plan(batch)
        assert len(plans) == 2
        for groups in (1, 4):
            found = max(Simulated(cost, expert_parallel=groups).step(batch, plans).peak_bytes)
            over.setdefault(groups, []).append(int(peak_bytes(plans, cost).max()) - found)
    assert min(over[1] + over[4]) >= 0
    states = (over[4][1] - over[4][0]) / 1024 / (model.element_bytes * model.hidden)
    assert 0 <= states < (11 if fine else 2)  # of a token: rows of experts on the same GPU


def with_experts(fine: bool, **model: Any) -> Cost:
    """Four GPUs of a node, and a model of four experts, or of sixteen small ones beside shared ones."""
    one = small(1, 4, memory=400e9)
    of = replace(one.model, num_layers=3, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_hidden=1024)
    of = replace(of, num_experts=4, experts_per_token=2, **model)
    return replace(
        one,
        model=replace(of, ffn_hidden=128, num_experts=16, experts_per_token=6, shared_experts=2) if fine else of,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_rows_sent_to_experts_are_there(recompute: str, fine: bool) -> None:
    """Without chunks, experts at home: never less than live ranges and to 1 %, of three micro-batches; over two and
    four GPUs never less, and for each token more to 2 %, as routing is drawn and all experts' state is counted."""
    offset = ("none", "selective", "full").index(recompute) + fine
    for sharding, vocab, groups in chequered(("zero1", "zero3"), (1000, 64000), (1, 2, 4), offset=offset):
        cost = with_experts(fine, sharding=sharding, vocab=vocab, recompute=recompute)
        sizes = []
        for length in (1024, 4096):
            batch, known = Batch(np.full(12, length), 0, 0), replace(cost, expert_gpus=groups)
            plans = LocalPacking(known, pack_tokens=length).plan(batch)
            found = np.array(Simulated(known, expert_parallel=groups).step(batch, plans).peak_bytes, np.float64)
            reckoned = peak_bytes(plans, known)
            assert (found <= reckoned).all()
            assert groups > 1 or found.max() >= 0.99 * reckoned.max()
            sizes.append((found.max(), reckoned.max()))
        more, said = (after - before for before, after in zip(*sizes, strict=True))
        assert said == pytest.approx(more, rel=0.02)


def test_tensor_parallel_groups_gather_a_hidden_state_each() -> None:
    """On as many ranks a token's share is smaller, and what is gathered is not."""
    cost = pipelines_of()
    hidden = cost.model.element_bytes * cost.model.hidden
    (alone,) = pipeline_moments(cost, 1, 1).at_loss
    for tp in (2, 4, 8):
        of = pipeline_moments(cost, tp, 1)
        (loss,) = of.at_loss
        assert of.kept == pipeline_moments(cost, 1, 1).kept / tp
        assert max(line.token for line in of.at_work) > hidden
        assert loss.token - alone.token / tp == pytest.approx((2 * hidden + 2 * cost.model.lse_bytes) * (1 - 1 / tp))


def test_plans_with_little_room_fit() -> None:
    """Where a GPU has room for one more hidden state than the longest sequence keeps, and for less than what it had."""
    cost = pipelines_of()
    roomy = Hydraulis(cost, tp_pp_pairs=[[8, 1]], batching="first_fit")
    batch = Batch(np.array([16000] + [4000] * 12), 0, 0)
    memory = int(np.max(Simulated(cost).step(batch, roomy.plan(batch)).peak_bytes))
    device = replace(cost.cluster.device, memory_bytes=float(memory - 2**26))
    tight = replace(cost, cluster=replace(cost.cluster, device=device))
    result = Simulated(tight).step(batch, Hydraulis(tight, tp_pp_pairs=[[8, 1]]).plan(batch))
    assert max(result.peak_bytes) <= device.memory_bytes
