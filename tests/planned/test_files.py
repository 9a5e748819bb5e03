"""Plans come back from files and from text bit by bit, and a broken file is one sentence."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import cases, masks
from zbench.cost.cost import Cost
from zbench.cost.job import cost_like
from zbench.describe.curve import Curve
from zbench.describe.degrees import ShardDegrees, TransferBits
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import Experts
from zbench.describe.links import Domain
from zbench.describe.mask import FULL
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.planned.machine_values import cluster_of, cluster_values, model_of, model_values
from zbench.planned.step import StepPlans
from zbench.plans.plan import Plan
from zbench.plans.text import from_text, to_text
from zbench.proof.verify import PlanError
from zbench.simulated.executor import Simulated
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.zeppelin.planner import Zeppelin


def same(one: Any, other: Any) -> bool:
    """Whether two parts of plans are equal bit by bit, the types of their columns included."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return type(one) is type(other) and bool(one == other)


def step_of(cost: Cost, system: str = "nodewise", lengths: tuple[int, ...] = (600, 50, 40, 3, 2, 1)) -> StepPlans:
    made = StepPlans((), np.array(lengths, np.int64), cost.cluster, cost.model, system)
    return replace(made, plans=Nodewise(cost).plan(made.batch))


@pytest.fixture
def file(uneven: Cost, tmp_path: Path) -> Path:
    step_of(uneven).save(tmp_path / "p.plan")
    return tmp_path / "p.plan"


@settings(max_examples=15)
@given(case=cases(nodes=2, gpus=4, most=120, mask=masks()), note=st.floats(allow_nan=False, allow_infinity=False))
def test_any_plan_comes_back_bit_by_bit(case: tuple[Cost, Plan], note: float, tmp_path_factory: Any) -> None:
    cost, plan = case
    plan = plan.with_(notes={"gap": note, "chosen": 'a "word"\n'}, serial_legs=note > 0)
    padding = None if note > 1 or plan.mask == FULL else np.minimum(plan.lengths - 1, 3)
    plan = plan.with_(in_rounds=note > 2, until_sent=note < 0, padding=padding)
    path = tmp_path_factory.mktemp("plans") / "p.plan"
    plan.save(path)
    assert same(Plan.load(path), plan)
    assert same(from_text(to_text(plan)), plan)
    StepPlans((plan,), plan.own_lengths, cost.cluster, cost.model).save(path)
    step = StepPlans.load(path)
    assert same(step.plans[0], plan)
    assert (step.cluster, step.model) == (cost.cluster, cost.model)


@pytest.mark.parametrize("system", [Nodewise, Zeppelin, Hydraulis])
def test_a_step_is_simulated_as_before_it_was_saved(system: Any, uneven: Cost, tmp_path: Path) -> None:
    cost = replace(uneven, pipelines=True)
    made = StepPlans((), np.array([600, 50, 40, 3, 2, 1], np.int64), cost.cluster, cost.model)
    made = replace(made, plans=system(cost).plan(made.batch))
    made.save(tmp_path / "p")
    found = StepPlans.load(tmp_path / "p")
    assert all(same(one, other) for one, other in zip(found.plans, made.plans, strict=True))
    one, other = (Simulated(of).step(each.batch, each.plans) for of, each in ((found.cost, found), (cost, made)))
    assert one == other
    assert all(same(from_text(to_text(plan)), plan) for plan in made.plans)


def test_machines_come_back_whole(uneven: Cost) -> None:
    curve = Curve((256.0, 4096.5), (1e12 / 3, 2e12))
    names = ("forward_causal", "forward_full", "backward_causal", "backward_full")
    device = replace(uneven.cluster.device, **{f"attention_{name}": curve for name in names})
    device = replace(device, matmul_by_tokens={"tiny": curve})
    cluster = replace(
        uneven.cluster,
        device=device,
        gpus_per_node=4,
        domains=(Domain("pair", 2, 1e11 / 3, 0.7, 2e-6),),
        host_bandwidth=1e10,
        host_efficiency=0.5,
        host_latency=1e-6,
    )
    assert cluster_of(json.loads(json.dumps(cluster_values(cluster)))) == cluster
    assert model_of(json.loads(json.dumps(model_values(uneven.model)))) == uneven.model


def test_a_file_from_before_there_were_whole_steps_is_read(tmp_path: Path) -> None:
    """Written on 2026-11-22 by `zbench plan` (600, 50 and 3 tokens, system=ring, cluster=local_2x2, model=tiny)."""
    found = StepPlans.load(Path(__file__).parent / "before_whole_steps.plan")
    assert (found.system, found.strategy, found.model.loss_chunk_tokens) == ("ring", USUAL_STRATEGY, "whole")
    values = json.loads((Path(__file__).parent / "before_whole_steps.plan").read_text())
    found.save(tmp_path / "p.plan")
    today = json.loads((tmp_path / "p.plan").read_text())
    assert today["cluster"] == values["cluster"]  # nothing that is as it was then
    assert {**today["model"], "loss": "whole", "overlap_collectives": True} == values["model"]
    values["model"]["loss"] = "chunked"
    (tmp_path / "c.plan").write_text(json.dumps(values))
    assert StepPlans.load(tmp_path / "c.plan").model.loss_chunk_tokens == "auto"
    values["model"]["overlap_collectives"] = False  # a choice that there was, and is no more
    (tmp_path / "h.plan").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"overlap_collectives"):
        StepPlans.load(tmp_path / "h.plan")


def test_a_strategy_comes_back_whole(uneven: Cost, tmp_path: Path) -> None:
    degrees = ShardDegrees(1, 1, 3, 0, bits=TransferBits(gradients=8, block=64))
    own = StepStrategy("all", 500, 2, Experts("tutel", 4, 0.5), ExchangeOverlap("sliced", 4))
    made = step_of(uneven)
    model = replace(made.model, sharding=degrees, mlp_chunk_tokens=64)
    replace(made, strategy=own, model=model).save(tmp_path / "p.plan")
    found = StepPlans.load(tmp_path / "p.plan")
    assert (found.strategy, found.model) == (own, model)
    values = json.loads((tmp_path / "p.plan").read_text())
    bits, before = values["model"]["sharding"].pop("bits"), tmp_path / "before.plan"  # as files of before are
    before.write_text(json.dumps(values))
    assert StepPlans.load(before).model.sharding == ShardDegrees(1, 1, 3, 0)
    values["model"]["sharding"]["bits"] = bits
    for change, told in (
        ({"window": -1}, "sharding.window is -1"),
        ({"odd": 1}, "strategy has 'odd', which this version does not know"),
        ({"experts": {"schedule": "tutel"}}, "strategy.experts has no degree"),
        ({"exchanges": {**asdict(own.exchanges), "slices": "4"}}, "overlap.slices is '4'"),
    ):
        (tmp_path / "q.plan").write_text(json.dumps({**values, "strategy": {**values["strategy"], **change}}))
        with pytest.raises(ValueError, match=re.escape(told)):
            StepPlans.load(tmp_path / "q.plan")


def test_planners_know_where_experts_are_and_what_is_beside_matmuls(uneven: Cost) -> None:
    own = StepStrategy(2, expert_parallel=2, exchanges=ExchangeOverlap("sliced", 4), expert_tensor_parallel=2)
    cost = replace(step_of(uneven), strategy=own).cost
    assert (cost.expert_gpus, cost.expert_cut, cost.exchanges, cost.layers_ahead) == (4, 2, own.exchanges, 2)
    other = cost_like(cost, cost.cluster, replace(cost.model, num_layers=1), False)
    assert other == replace(cost, model=other.model, pipelines=False)


def test_ranks_that_are_groups_are_told_of_groups(uneven: Cost) -> None:
    step = step_of(uneven)
    grouped = replace(step, model=replace(step.model, tensor_parallel=2, num_heads=2 * step.model.num_heads))
    told, ranks = str(grouped), step.plans[0].num_ranks
    assert f"{ranks} tensor-parallel groups of 2 GPUs," in told
    assert "tokens of a group: " in told
    assert f"heads of a GPU {step.model.num_heads}" in told
    assert " rank" not in told.partition("forward")[0]
    assert f"{ranks} ranks," in str(step)


BROKEN: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("version", lambda v: v.update(format="zbench-plan/2"), "has the format 'zbench-plan/2'; this zbench reads"),
    ("format", lambda v: v.pop("format"), "which is no plan of zbench"),
    ("no plans", lambda v: v.update(plans=[]), "has to be a list of plans"),
    ("a key more", lambda v: v.update(foo=1), "'foo', which this version does not know"),
    ("no column", lambda v: v["plans"][0]["forward"].pop("src"), "plans[0].forward has no src"),
    ("short column", lambda v: v["plans"][0]["forward"]["src"].pop(), "have to have as many"),
    ("no integers", lambda v: v["plans"][0]["blocks"].update(home=[1.5]), "plans[0].blocks.home is a list with 1.5"),
    ("truth", lambda v: v["plans"][0]["blocks"].update(home=[True]), "plans[0].blocks.home is a list with True"),
    ("huge", lambda v: v["plans"][0]["blocks"]["home"].__setitem__(0, 2**70), "does not fit in 64 bits"),
    ("beyond", lambda v: v["plans"][0]["forward"]["src"].__setitem__(0, 2**40), "plan.forward.src[0] is 1099511627776"),
    ("mask", lambda v: v["plans"][0].update(mask="odd"), "mask is 'odd'"),
    ("ranks", lambda v: v["plans"][0].update(num_ranks="4"), "plans[0].num_ranks is '4'; it has to be a whole number"),
    ("lengths", lambda v: v["lengths"].__setitem__(0, 7), "other lengths than the batch"),
    ("cluster", lambda v: v["cluster"].update(num_nodes=2), "the plan file"),
    ("device", lambda v: v["cluster"]["device"].pop("tile"), "cluster.device has no tile"),
    ("a constant", lambda v: v["cluster"].update(nic_bandwidth=[]), "cluster.nic_bandwidth"),
    ("heads", lambda v: v["model"].update(num_kv_heads=4), "model.num_kv_heads is 4; it has to divide num_heads=6"),
    ("layers", lambda v: v["model"].update(num_layers=2**70), "model.num_layers is 1180591620717411303424; it takes"),
    ("vocabulary", lambda v: v["model"].update(vocab=2**70), "it takes a whole number from 1 to 16777216"),
    ("embeddings", lambda v: v["model"].update(tied_embeddings="x"), "model.tied_embeddings is 'x'; it takes true or"),
    ("attention", lambda v: v["plans"][0].update(attention="x"), "plan.attention is 'x'; it takes one of '', 'deepsp"),
    ("operations", lambda v: v["plans"][0]["forward"]["kind"].__setitem__(0, 3), "has no correct plans"),
]


@pytest.mark.parametrize(("change", "told"), [one[1:] for one in BROKEN], ids=[one[0] for one in BROKEN])
def test_a_broken_file_is_one_sentence(change: Callable[[Any], object], told: str, file: Path) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="plan file") as caught:
        StepPlans.load(file)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it ends in the middle"),
        (b"plan of 3 sequences", "no whole JSON"),
        (b"\xff\xfe", "no text (UTF-8)"),
        (b"[1]", "no plan of zbench"),
        (b"[" * 100_000, "no whole JSON"),
        (b'{"format": NaN}', "NaN is no number of JSON"),
    ],
)
def test_what_is_no_file_of_ours_is_one_sentence(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "p.plan"
    path.write_bytes(content)
    for load in (StepPlans.load, Plan.load):
        with pytest.raises(ValueError, match="plan file") as caught:
            load(path)
        assert told in str(caught.value)


def test_a_file_cut_anywhere_is_one_sentence(file: Path) -> None:
    whole = file.read_text()
    for end in range(0, len(whole) - 2, len(whole) // 40):
        file.write_text(whole[:end])
        with pytest.raises(ValueError, match="plan file"):
            StepPlans.load(file)


def test_nothing_is_half_written(uneven: Cost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, path = step_of(uneven), tmp_path / "p.plan"
    step.save(path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        step.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "nowhere/p.plan"])
def test_a_place_that_takes_no_file_is_one_sentence(name: str, uneven: Cost, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the plan file is "):
        step_of(uneven).save(tmp_path / name)


def test_a_wrong_plan_is_refused_when_read(file: Path) -> None:
    values = json.loads(file.read_text())
    forward = values["plans"][0]["forward"]
    at = forward["kind"].index(1)  # an attend less
    for column in forward.values():
        column.pop(at)
    file.write_text(json.dumps(values))
    with pytest.raises(PlanError, match="has no correct plans"):
        StepPlans.load(file)


def test_plans_for_another_machine_are_told(uneven: Cost) -> None:
    step = step_of(uneven)
    step.check_for(uneven.cluster, uneven.model)
    with pytest.raises(ValueError, match=r"another cluster: cluster.device.memory_bytes is 80000000000.0 in theirs"):
        step.check_for(replace(uneven.cluster, device=replace(uneven.cluster.device, memory_bytes=1e9)))
    with pytest.raises(ValueError, match=r"another model: model.num_layers is 2 in theirs and 3"):
        step.check_for(model=replace(uneven.model, num_layers=3))


def test_of_several_micro_batches_one_is_not_picked(uneven: Cost, tmp_path: Path) -> None:
    step = step_of(uneven)
    replace(step, plans=(*step.plans, *step.plans)).save(tmp_path / "p")
    with pytest.raises(ValueError, match="has 2 micro-batches"):
        Plan.load(tmp_path / "p")
    step.plans[0].save(tmp_path / "one")
    with pytest.raises(ValueError, match=r"a plan without its cluster; it is read by Plan.load"):
        StepPlans.load(tmp_path / "one")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "no line such as 'plan of N sequences"),
        ("plan of 1 sequences on 2 ranks, 1 heads, mask odd", "line 1 of the plan"),
        ("\nblock 3", "line 2 of the plan is 'block 3': it has to be one of"),
        ("attend rank 0 q list 0 kv list 0 heads 0:1", "under forward or backward"),
        ("forward\ntransfer x list 0 heads 0:1 rank 0 -> 1", "carries one of q, kv"),
        ("note [", "line 1 of the plan"),
    ],
)
def test_text_that_is_no_plan_is_one_sentence(words: str, told: str) -> None:
    with pytest.raises(ValueError, match="plan") as caught:
        from_text(words)
    assert told in str(caught.value)
