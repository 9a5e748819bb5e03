"""Planners' memory beside the live ranges of steps whose layers' inputs or activations wait in host memory: in stages
and pipelines, of two kinds of layers, some of them recomputed."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.cost.test_stage_memory import CHUNK, pipelines_of, reckoned_and_found
from tests.helpers.examples import chequered
from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.hidden import hidden_shares
from zbench.cost.job import make_cost
from zbench.cost.memory.fewest import PARTS
from zbench.cost.memory.peak import peak_bytes, step_bytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import AUTO
from zbench.simulated.executor import Simulated
from zbench.simulated.offloading import chosen_offload, chosen_shares
from zbench.step.passes.own_plans import own_plans
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking
from zbench.systems.zeppelin.planner import Zeppelin

HOST = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e14}
HOST["host_adam_bandwidth"] = 1e11
WAYS = [("inputs", "full", "whole"), ("inputs", "full", CHUNK), ("activations", "none", "whole")]
WAYS += [("activations", "selective", "whole"), ("activations", "chunked", CHUNK), ("activations", "full", "whole")]
PAIRS = [(8, 1), (4, 2), (2, 4)]  # tensor and pipeline parallelism


def with_dense_layers(groups: int, length: int, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns planners' memory of each of four GPUs with hosts, and that of live ranges, of twelve sequences.

    The model has four layers with sixteen experts, over so many GPUs, but for dense ones, of which `fields` tells.
    """
    one = small(1, 4, memory=400e9)
    of = replace(one.model, num_layers=4, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_hidden=128)
    of = replace(of, vocab=1000, num_experts=16, experts_per_token=6, shared_experts=2, **fields)
    cost = replace(one, model=of, cluster=replace(one.cluster, **HOST), expert_gpus=groups)
    batch = Batch(np.full(12, length), 0, 0)
    plans = LocalPacking(cost, pack_tokens=length).plan(batch)
    found = Simulated(cost, expert_parallel=groups).step(batch, plans).peak_bytes
    return peak_bytes(plans, cost), np.array(found)


def hosted(memory: float = 4e12, **model: Any) -> Cost:
    """Eight GPUs on two nodes, with links to hosts."""
    one = small(2, 4, model="gqa", memory=memory)
    return make_cost(replace(one.cluster, **HOST), replace(one.model, **model), False, True)


@pytest.mark.parametrize(("offload", "recompute", "chunk"), WAYS)
def test_stages_keep_what_is_under_way(offload: str, recompute: str, chunk: int | str) -> None:
    """Never less and to 2 %: what stays of every micro-batch under way, and what is brought of one."""
    of = {"offload": offload, "recompute": recompute, "mlp_chunk_tokens": chunk, "sharding": "zero1"}
    offset = WAYS.index((offload, recompute, chunk))
    for vocab, tp, layers in chequered((1000, 128256), (1, 2), ("all", 2), offset=offset):
        degrees = {"tensor_parallel": tp, "pipeline_parallel": 2, "offload_layers": layers}
        reckoned, found = reckoned_and_found(hosted(num_layers=8, vocab=vocab, **degrees, **of), 2048, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("offload", "recompute", "chunk"), WAYS)
@pytest.mark.parametrize("pair", PAIRS)
def test_pipelines_keep_what_is_under_way(pair: tuple[int, int], offload: str, recompute: str, chunk: object) -> None:
    offset = WAYS.index((offload, recompute, chunk)) // 2 + PAIRS.index(pair)
    for (layers,) in chequered(("all", 1), offset=offset):
        cost = pipelines_of(recompute=recompute, offload=offload, offload_layers=layers, mlp_chunk_tokens=chunk)
        cost = replace(cost, cluster=replace(cost.cluster, **HOST))
        batch = Batch(np.full(6 * 8 // (pair[0] * pair[1]) * pair[1], 4096), 0, 0)
        plans = Hydraulis(cost, tp_pp_pairs=[pair], batching="first_fit", pack_tokens=4096).plan(batch)
        found, reckoned = np.array(Simulated(cost).step(batch, plans).peak_bytes), peak_bytes(plans, cost)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("again", [1, 3, 5])
def test_layers_of_which_some_are_recomputed(again: int, recompute: str) -> None:
    """Of six, the first ones: those on hosts are of one kind, the other, or both."""
    for layers in ("all", 4, 3, 1):
        of = {"recompute": recompute, "recompute_layers": again, "offload": "activations", "offload_layers": layers}
        reckoned, found = reckoned_and_found(hosted(num_layers=6, vocab=1000, sharding="zero1", **of), 4096, 3)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
@pytest.mark.parametrize(("offload", "recompute"), [one[:2] for one in WAYS if one[2] == "whole"])
def test_dense_layers_before_others(offload: str, recompute: str, sharding: str) -> None:
    """Never less, and to 4 %, as all layers are reckoned to be of the kind that needs more."""
    of = {"dense_layers": 1, "dense_ffn_hidden": 1024, "offload": offload, "recompute": recompute, "sharding": sharding}
    for groups, layers in product((1, 4), ("all", 2)):
        reckoned, found = with_dense_layers(groups, 2048, **of, offload_layers=layers)
        assert (found <= reckoned).all()
        assert found.max() >= 0.96 * reckoned.max()


def test_as_few_layers_as_fit_of_every_stage() -> None:
    """Of two stages of four layers, of micro-batches of two sizes, each as if all under way were like it."""
    of = {"num_layers": 8, "vocab": 1000, "offload": "activations", "sharding": "zero1", "offload_layers": "auto"}
    staged = {**of, "pipeline_parallel": 2}
    plans = [
        LocalPacking(hosted(**staged), pack_tokens=length).plan(Batch(np.full(4, length), 0, 0))[0]
        for length in (256, 4096)
    ]
    most = [peak_bytes((plans[1],) * 2, hosted(**{**staged, "offload_layers": count})).max() for count in (1, 2, 3)]
    assert sorted(set(most), reverse=True) == most
    few, many = (chosen_offload(plans, hosted(memory=float(most[1]) - less, **of), 1, 2) for less in (0, 1))
    assert (few[1], many[1]) == (2, 3)
    assert few[0] == many[0] == 0
    assert chosen_offload(plans, hosted(memory=1e6, **of), 1, 2) == (3, 3)  # nothing fits


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("stages", "zero"), [(1, "zero3"), (1, "zero1"), (2, "zero1")])
@pytest.mark.parametrize(("recompute", "chunk"), [("none", "whole"), ("selective", 256), ("full", "whole")])
@pytest.mark.parametrize("layers", ["all", 3])
def test_of_a_share_of_tokens(stages: int, zero: str, recompute: str, chunk: int | str, layers: int | str) -> None:
    """Planners' memory of a share that a run sets is never less than live ranges, and within 2 %."""
    for share, vocab in product((0.3, 0.75), (1000, 128256)):
        of = {"num_layers": 8, "vocab": vocab, "offload": "activations", "sharding": zero, "recompute": recompute}
        of |= {"offload_layers": layers, "offload_tokens": share, "mlp_chunk_tokens": chunk, "loss_chunk_tokens": chunk}
        reckoned, found = reckoned_and_found(hosted(**of, pipeline_parallel=stages), 4096, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.parametrize("zero", ["zero2", "zero3"])
def test_of_a_share_of_tokens_beside_a_whole_table(zero: str) -> None:
    """On the first of two stages, which begins a micro-batch, or ends one, while another is under way."""
    of = {"num_layers": 8, "vocab": 128256, "offload": "activations", "sharding": zero, "loss_chunk_tokens": AUTO}
    for share in (0.3, 0.75):
        cost = hosted(**of, offload_tokens=share, pipeline_parallel=2)
        reckoned, found = (size[: cost.cluster.num_ranks] for size in reckoned_and_found(cost, 1024, 6))
        assert (found <= reckoned).all()
        assert found.max() >= 0.995 * reckoned.max()


def test_of_as_few_tokens_as_fit() -> None:
    """With the shares that are chosen a step fits by its account, with the next smaller ones it is not known to; long
    sequences have larger shares, up to what is hidden, and beyond that all have more."""
    of = {"num_layers": 8, "vocab": 1000, "offload": "activations", "sharding": "zero1", "offload_tokens": "auto"}
    batch = Batch(np.array([16384, 8192, 8192, *[2048] * 16]), 0, 0)
    usual = hosted(**of)
    (plan,) = Zeppelin(usual).plan(batch)
    hidden = np.minimum(hidden_shares(plan.lengths, usual), 1.0)
    assert hidden.min() < hidden.max()
    none, behind, every = (
        float(step_bytes(plan, usual, shares).max()) for shares in (0 * hidden, hidden, np.ones(len(hidden)))
    )
    assert every < behind < none
    for room in (none, 0.7 * none + 0.3 * behind, behind, 0.5 * behind + 0.5 * every, every, every - 1):
        tight = hosted(memory=room, **of)
        (shares,) = chosen_shares((plan,), tight, 1, 1)
        found = np.array(shares)
        assert (np.argsort(found, kind="stable") == np.argsort(hidden, kind="stable")).all() or not np.ptp(found)
        if room >= behind:
            assert (found <= hidden).all()
        else:
            assert (found >= hidden).all()
        assert (not found.any()) == (room == none)
        result = Simulated(tight).step(batch, (plan,))
        assert not result.out_of_memory or room < every
        (tokens,), (whole,) = result.recompute["offloaded_tokens"], result.recompute["of_tokens"]
        assert whole == batch.num_tokens
        assert 0 <= tokens - found @ plan.lengths < plan.num_ranks  # each GPU's are rounded up
        fewer = found - hidden / PARTS if room >= behind else found - (1 - hidden) / PARTS
        assert room in (none, every - 1) or step_bytes(plan, tight, np.maximum(fewer, 0)).max() > room


def test_as_few_layers_as_fit_of_all_pipelines() -> None:
    cost = pipelines_of(vocab=1000, offload="activations", sharding="zero1", offload_layers="auto")
    cost = replace(cost, cluster=replace(cost.cluster, **HOST))
    batch = Batch(np.full(12, 4096), 0, 0)
    plans = Hydraulis(cost, tp_pp_pairs=[(4, 2)], batching="first_fit", pack_tokens=4096).plan(batch)
    need = float(peak_bytes(plans, replace(cost, model=cost.model.offloading(2))).max())
    for room, count in ((need, 2), (need - 1, 3)):
        device = replace(cost.cluster.device, memory_bytes=room)
        tight = replace(cost, cluster=replace(cost.cluster, device=device))
        assert chosen_offload(plans, tight, 1, 1) == (count,) * len(own_plans(plans))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("offload", ["optimizer", "inputs_and_optimizer"])
@pytest.mark.parametrize("layers", ["all", 3])
def test_state_on_hosts_is_not_on_gpus(offload: str, layers: int | str) -> None:
    """In two stages, of which the last has it on hosts where it is of three layers: never less, and to 2 %. In
    pipelines of plans likewise where it is of all."""
    of = {"offload": offload, "recompute": "full", "sharding": "zero1", "optimizer_layers": layers}
    for vocab, tp in product((1000, 128256), (1, 2)):
        degrees = {"tensor_parallel": tp, "pipeline_parallel": 2, "vocab": vocab}
        reckoned, found = reckoned_and_found(hosted(num_layers=8, **degrees, **of), 2048, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()
    for pair in ((8, 1), (2, 4)):
        cost = pipelines_of(**of)
        cost = replace(cost, cluster=replace(cost.cluster, **HOST))
        batch = Batch(np.full(6 * 8 // (pair[0] * pair[1]) * pair[1], 4096), 0, 0)
        plans = Hydraulis(cost, tp_pp_pairs=[pair], batching="first_fit", pack_tokens=4096).plan(batch)
        found, reckoned = np.array(Simulated(cost).step(batch, plans).peak_bytes), peak_bytes(plans, cost)
        assert (found <= reckoned).all()
        if layers == "all":
            assert found.max() >= 0.98 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layers", ["all", 3, 2])
@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_state_of_dense_layers_before_others(sharding: str, layers: int | str) -> None:
    """Never less, and to 0.6 %, of four layers of which the first is dense."""
    one = small(1, 4, memory=400e9)
    of = replace(one.model, num_layers=4, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_hidden=128)
    of = replace(of, num_experts=16, experts_per_token=6, shared_experts=2, dense_layers=1, dense_ffn_hidden=1024)
    hosts = replace(of, vocab=1000, offload="optimizer", sharding=sharding, optimizer_layers=layers)
    for groups in (1, 4):
        for model in (hosts, replace(hosts, offload="none", optimizer_layers="all")):
            cost = replace(one, model=model, cluster=replace(one.cluster, **HOST), expert_gpus=groups)
            batch = Batch(np.full(12, 2048), 0, 0)
            plans = LocalPacking(cost, pack_tokens=2048).plan(batch)
            found = np.array(Simulated(cost, expert_parallel=groups).step(batch, plans).peak_bytes)
            reckoned = peak_bytes(plans, cost)
            assert (found <= reckoned).all()
            assert found.max() >= 0.994 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", [None, "all", 2])
@pytest.mark.parametrize("layers", [1, 5, "all"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_parameters_of_stages_are_not_on_gpus(recompute: str, layers: int | str, optimizer: int | str | None) -> None:
    """Of eight layers in two stages, one of the first's, all of it and one of the last's, or all: never less than live
    ranges of any GPU, and to 4 %."""
    of = {"num_layers": 8, "recompute": recompute, "sharding": "zero3", "parameter_layers": layers}
    of |= {"offload": "optimizer", "optimizer_layers": optimizer} if optimizer else {}
    for vocab, length in ((1000, 256), (128256, 2048)):
        reckoned, found = reckoned_and_found(hosted(**of, vocab=vocab, pipeline_parallel=2), length, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.96 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", [None, "all", 2])
@pytest.mark.parametrize(("dense", "width"), [(1, 1024), (2, 1024), (1, 8192)])
def test_parameters_of_dense_layers_before_others(dense: int, width: int, optimizer: int | str | None) -> None:
    """Of four layers, dense ones smaller than others or larger: never less, and to 8 %, as the fullest moment is taken
    to be one of the layers whose parameters are there."""
    of: dict[str, Any] = {"dense_layers": dense, "dense_ffn_hidden": width, "sharding": "zero3"}
    of |= {"offload": "optimizer", "optimizer_layers": optimizer} if optimizer else {}
    for layers, groups in ((1, 1), (2, 4), ("all", 4)):
        reckoned, found = with_dense_layers(groups, 256, **of, parameter_layers=layers)
        assert (found <= reckoned).all()
        assert found.max() >= 0.92 * reckoned.max()


@pytest.mark.parametrize("degrees", [(WORLD, 4, WORLD, WORLD), (WORLD, WORLD, WORLD, WORLD)])
@pytest.mark.parametrize("stages", [1, 2])
def test_parameters_of_nested_degrees(stages: int, degrees: tuple[int, int, int, int]) -> None:
    """Never less: what stays of them for a backward is counted, and is on GPUs."""
    for layers in (2, "all"):
        of = {"num_layers": 6, "vocab": 1000, "sharding": ShardDegrees(*degrees), "parameter_layers": layers}
        for length in (256, 2048):
            reckoned, found = reckoned_and_found(hosted(**of, pipeline_parallel=stages), length, 4)
            assert (found <= reckoned).all()
            assert found.max() >= 0.9 * reckoned.max()
