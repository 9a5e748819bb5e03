"""Planners' memory beside live ranges, of models whose experts lie over GPUs, whole and cut, and of groups whose
exchanges go beside matmuls."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.expert_memory import KINDS, WAYS, Combination
from tests.helpers.examples import chequered
from tests.helpers.oracles import small
from tests.step.test_exchanges import HOWS
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import memory_of
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.memory.state import WholeBytes
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.exchanges import WHOLE
from zbench.describe.expert_schedule import EXPERT_CHOICE, TOKEN_CHOICE, USUAL_EXPERTS, Experts
from zbench.describe.model import SHARDING, SOFTMAX_ALL, Model
from zbench.describe.model import WHOLE as WHOLE_CHUNK
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking

HOST = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e13}
BASE = small(1, 8, memory=4e12)
BASE = replace(BASE, cluster=replace(BASE.cluster, **HOST))
EIGHT = replace(BASE.model, num_layers=3, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_hidden=1024)
EIGHT = replace(EIGHT, num_experts=8, experts_per_token=2)
FINE = replace(EIGHT, ffn_hidden=128, num_experts=16, experts_per_token=6, shared_experts=2)
DENSE = replace(EIGHT, num_experts=1, experts_per_token=1)
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 4), (4, 2)]  # expert_parallel, expert_tensor_parallel
EXPERT_HOWS = ["", "async_tp", "commfuse", "commfuse direct", "sliced 2", "query_split"]


def reckoned_and_found(
    model: Model,
    layout: tuple[int, int],
    how: str,
    length: int,
    experts: Experts = USUAL_EXPERTS,
    draw: tuple[int, int] = (0, 0),
) -> tuple[Floats, Floats]:
    """Bytes of every GPU, as planners have them and at the fullest moment of live ranges."""
    (groups, cut), exchanges = layout, HOWS.get(how, WHOLE)
    cost = make_cost(BASE.cluster, model, False, True, groups * cut, cut, exchanges).routed_by(experts, draw)
    batch = Batch(np.full(3 * cost.cluster.num_ranks, length), *draw)
    plans = LocalPacking(cost, pack_tokens=length).plan(batch)
    degrees = {"expert_parallel": groups, "expert_tensor_parallel": cut}
    played = Simulated(cost, exchanges=exchanges, experts=experts, **degrees)
    found = np.array(played.step(batch, plans).peak_bytes, np.float64)
    return np.repeat(peak_bytes(plans, cost) / cost.tp, cost.tp), found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("sharding", SHARDING)
def test_experts_over_gpus_are_as_much_as_is_there(sharding: str, layout: tuple[int, int]) -> None:
    """Never less than live ranges, and to 2 %: parameters, gradients, state and drawn rows, whatever is recomputed,
    beside tensor parallelism and its overlap, where a layer is what is fullest and where the loss is."""
    every = list(product((EIGHT, FINE), ("none", "selective", "full"), ((1, ""), *((2, how) for how in EXPERT_HOWS))))
    first = (2 * SHARDING.index(sharding) + LAYOUTS.index(layout)) % 7  # so that all of them are with some layout
    for at, (model, recompute, (tp, how)) in list(enumerate(every))[first::7]:
        vocab = (1000, 64000)[at % 5 == 0]
        of: dict[str, Any] = {"sharding": sharding, "recompute": recompute, "tensor_parallel": tp, "vocab": vocab}
        reckoned, found = reckoned_and_found(replace(model, **of), layout, how, (1024, 4096)[at % 2])
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("tp", [2, 4])
def test_exchanges_beside_matmuls_are_as_much_as_is_there(tp: int, how: str) -> None:
    """Dense models: what came back stays until gradients of parameters have read it, and sums are partial."""
    ways = (("zero1", 4096), ("zero3", 1024))
    offset = list(HOWS).index(how) // 2 + tp // 4
    for recompute, (sharding, length) in chequered(("none", "selective", "full"), ways, offset=offset):
        of: dict[str, Any] = {"sharding": sharding, "recompute": recompute, "tensor_parallel": tp, "vocab": 1000}
        reckoned, found = reckoned_and_found(replace(DENSE, **of), (1, 1), how, length)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.parametrize("layout", [(4, 1), (2, 2), (1, 4)], ids=str)
def test_nested_degrees_and_chunks_of_memory_are_no_less(layout: tuple[int, int]) -> None:
    for model, recompute in product((EIGHT, FINE), ("none", "full")):
        for degrees in ((4, 4, WORLD, WORLD), (2, 2, 4, WORLD)):
            of: dict[str, Any] = {"sharding": ShardDegrees(*degrees), "recompute": recompute, "vocab": 1000}
            reckoned, found = reckoned_and_found(replace(model, **of), layout, "", 1024)
            assert (found <= reckoned).all()
        of = {"mlp_chunk_tokens": 256, "loss_chunk_tokens": 256, "sharding": "zero1", "recompute": recompute}
        reckoned, found = reckoned_and_found(replace(model, vocab=1000, **of), layout, "", 2048)
        assert (found <= reckoned).all()


@pytest.mark.parametrize("layout", [(4, 1), (8, 1)], ids=str)
@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
@pytest.mark.parametrize("recompute", ["none", "chunked"])
def test_drawn_rows_by_short_chunks_are_no_less(recompute: str, sharding: str, layout: tuple[int, int]) -> None:
    """All experts alike: the fullest GPU has more of a token's experts than one in as many as there are GPUs, which
    counts where a chunk is small beside what all layers keep."""
    of: dict[str, Any] = {"mlp_chunk_tokens": 100, "sharding": sharding, "recompute": recompute, "num_layers": 5}
    reckoned, found = reckoned_and_found(replace(EIGHT, vocab=1000, **of), layout, "", 2054)
    assert (found <= reckoned).all()
    assert found.max() >= 0.95 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", [(4, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("kind", ["even", "zipf 2", "padded zipf", "token_choice, dropless", "capacity zipf"])
def test_rows_of_experts_wait_on_hosts_with_other_activations(kind: str, layout: tuple[int, int]) -> None:
    """Never less than live ranges, and to 2 % where feed-forwards are whole, of all layers and of some."""
    usual: dict[str, Any] = {"num_layers": 5, "vocab": 1000, "sharding": "zero1", "offload": "activations"}
    ways = (("none", WHOLE_CHUNK, "all"), ("selective", WHOLE_CHUNK, 2), ("chunked", 100, "all"), ("none", 100, 2))
    for recompute, chunk, layers in ways:
        of = usual | {"recompute": recompute, "mlp_chunk_tokens": chunk, "offload_layers": layers}
        reckoned, found = reckoned_and_found(replace(EIGHT, **of), layout, "", 1024, KINDS[kind], (3, 1))
        assert (found <= reckoned).all()
        assert chunk != WHOLE_CHUNK or found.max() >= 0.98 * reckoned.max()


def test_numbers_of_rows_stay_where_inputs_wait_on_hosts() -> None:
    """Of every chunk of every layer: with inputs on hosts planners have as much to spare as without."""
    of: dict[str, Any] = {"num_layers": 12, "vocab": 1000, "sharding": "zero1", "recompute": "full"}
    spare = []
    for offload in ("none", "inputs"):
        model = replace(FINE, shared_experts=0, mlp_chunk_tokens=4, offload=offload, **of)
        reckoned, found = reckoned_and_found(model, (2, 2), "", 256, KINDS["token_choice, dropless"])
        assert (found <= reckoned).all()
        spare.append(float((reckoned - found).min()))
    assert spare[1] >= spare[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", list(KINDS)[1:])
@settings(max_examples=6)
@given(data=st.data())
def test_uneven_rows_are_as_much_as_is_there(kind: str, data: st.DataObject) -> None:
    """Popular experts that are drawn, rows of padding, and seats of routers that choose: never less than live ranges of
    any GPU, and of the fullest one to 3 %, whatever is drawn of models, layouts, strategies and steps."""
    named: dict[str, Any] = {
        "sharding": SHARDING, "recompute": ("none", "selective", "full"), "vocab": (1000, 64000), "layout": LAYOUTS,
        "length": (1024, 4096), "fine": (False, True), "tensor_parallel": (1, 2), "way": WAYS,
    }  # fmt: skip
    chosen = {name: data.draw(st.sampled_from(values), label=name) for name, values in named.items()}
    one = Combination(**(chosen | ({"way": ""} if chosen["tensor_parallel"] == 1 else {})), kind=kind)
    draw = data.draw(st.integers(0, 5), label="seed"), data.draw(st.integers(0, 40), label="step")
    reckoned, found = reckoned_and_found(one.model, one.layout, one.way, one.length, one.experts, draw)
    assert (found <= reckoned).all()
    assert found.max() >= 0.97 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", [(4, 1), (2, 2), (1, 4)], ids=str)
@pytest.mark.parametrize("kind", ["zipf 2", "capacity zipf", "padded zipf", "token_choice, dropless"])
def test_uneven_rows_by_chunks_are_no_less(kind: str, layout: tuple[int, int]) -> None:
    """By chunks of memory, whose last one has all rows of padding, and by those of a schedule; each layout with half of
    the choices, so that every kind of rows has all of them."""
    every = list(enumerate(product((EIGHT, FINE), ("none", "chunked", "full"))))
    for at, (model, recompute) in every[sum(layout) % 2 :: 2]:
        of: dict[str, Any] = {"mlp_chunk_tokens": (256, 100)[at % 2], "sharding": "zero1", "recompute": recompute}
        experts = replace(KINDS[kind], **({"schedule": "tutel", "degree": 3} if at % 3 else {}))
        length = (1024, 654)[at % 2]  # four chunks and seven, of which the last has 54 tokens
        reckoned, found = reckoned_and_found(replace(model, vocab=1000, **of), layout, "", length, experts, (3, at))
        assert (found <= reckoned).all()


def test_what_any_step_may_draw_is_no_less_than_what_one_does() -> None:
    """Before a batch is known the most popular experts are taken to be on one GPU."""
    cost = make_cost(BASE.cluster, EIGHT, False, True, 4)
    for kind in ("zipf", "dirichlet", "drift", "capacity zipf"):
        of_any = memory_of(cost.routed_by(KINDS[kind], (2, None))).bytes(4096)
        of_steps = [memory_of(cost.routed_by(KINDS[kind], (2, step))).bytes(4096) for step in range(20)]
        assert max(of_steps) <= of_any
        assert min(of_steps) < of_any


def test_rounds_of_room_count_for_every_gpu_that_sends() -> None:
    """37 tokens with room for 11.6 of them at each expert: 12 rows from each GPU, which is more than 3 % there."""
    for routing, model in ((TOKEN_CHOICE, EIGHT), (EXPERT_CHOICE, replace(EIGHT, gate=SOFTMAX_ALL))):
        experts = Experts(capacity=1.25, padded=True, routing=routing)
        reckoned, found = reckoned_and_found(replace(model, vocab=1000), (4, 1), "", 37, experts)
        assert (found <= reckoned).all()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_there_is_room_for_as_many_tokens_as_have_the_bytes(layout: tuple[int, int]) -> None:
    """`tokens` is the inverse of `bytes` with rows that are spread, too; nothing is spread with experts at home."""
    groups, cut = layout
    memory = memory_of(make_cost(BASE.cluster, replace(EIGHT, sharding="zero1"), False, True, groups * cut, cut))
    assert any(line.spread for line in memory.lines) == (groups > 1)
    for tokens in (1, 100, 4096, 65536):
        assert memory.tokens(memory.bytes(tokens)) == pytest.approx(tokens, rel=1e-4)  # bytes are whole


def test_each_gpu_has_its_part_of_experts_alone() -> None:
    """With ZeRO-3 over eight GPUs and experts over all of them a layer's experts are never whole anywhere."""
    model = replace(EIGHT, sharding="zero3")
    costs_of = (make_cost(BASE.cluster, model, False, True, gpus) for gpus in (1, 8))
    at_home, over = (WholeBytes.of(cost, cost.layers) for cost in costs_of)
    experts = model.num_experts * 3 * model.hidden * model.ffn_hidden
    assert at_home.inputs - over.inputs == pytest.approx((model.element_bytes + 4) * experts * 7 / 8)
