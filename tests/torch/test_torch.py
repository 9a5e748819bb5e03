"""zbench.torch on 4 ranks of gloo, as users' own programs use it: exact, and wrong uses end in one sentence."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import zbench
from tests.torch.slow_planner import PLANNING, TRAINING
from zbench.describe.mask import FULL, Mask
from zbench.describe.model import Model
from zbench.planned.step import StepPlans
from zbench.plans.plan import ATTEND
from zbench.run.choices import choices, missing_package
from zbench.runtime.processes.launch import LocalFleet

MODEL = Model("own", 2, 32, 4, 2, 8, 48, 128, element_bytes=8, lse_bytes=8)
LENGTHS = [300, 2, 41, 1, 77]
CLUSTER = "local_2x2"
# Keys of systems that would leave every sequence of a small batch on a rank.
CUTTING = {name: {"degree": 2} for name in ("dp_balanced", "mesh", "slime_schedule", "torch_cp", "verl_balance")}
CUTTING |= {"fcp": {"block_tokens": 64}}


def planned(system: str, lengths: list[int] = LENGTHS, model: Model = MODEL, cluster: str = CLUSTER) -> StepPlans:
    return zbench.plan(lengths, cluster=cluster, model=model, system=system, pipelines=False)


def in_two(system: str) -> StepPlans:
    """A step of two micro-batches, whose sequences are mixed."""
    parts = [(0, 3), (1, 2, 4)]
    plans = [planned(system, [LENGTHS[at] for at in part]).plans[0] for part in parts]
    plans = [plan.with_(sequences=np.array(part)[plan.sequences]) for plan, part in zip(plans, parts, strict=True)]
    return replace(planned(system), plans=tuple(plans))


@pytest.fixture(scope="module")
def ranks() -> Iterator[LocalFleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with LocalFleet(4, "tests.torch.ranks:Ranks", timeout=60) as fleet:
            yield fleet


def sentences(ranks: LocalFleet, what: str, *arguments: object) -> list[str]:
    return ranks.call("refused", what, *arguments)


def test_attention_is_dense_attention(ranks: LocalFleet) -> None:
    """Under any plan: cut or not, by heads, with several micro-batches, masks, and ranks without tokens."""
    names = ("ring", "ulysses", "allgather", "zeppelin", "nodewise")
    steps = [planned(name) for name in names]
    masks = [replace(MODEL, mask=mask) for mask in (FULL, Mask(window=9))]
    steps += [in_two("ring"), planned("dp_balanced", [9, 4]), planned("ring", [1]), planned("zeppelin", [2000, 5, 5])]
    assert max(max(worst) for worst in ranks.call("attend", steps)) < 1e-12
    for mask in masks:
        assert max(max(worst) for worst in ranks.call("attend", [planned("ring", model=mask)])) < 1e-12


def test_attention_is_dense_attention_under_every_system(ranks: LocalFleet) -> None:
    """Of conf/system, without pipelines; all of them cut sequences here but two, whose sequences stay whole."""
    mixed = [600, 2, 41, 1, 77, 160, 33, 9]
    steps = {
        name: zbench.plan(mixed, cluster=CLUSTER, model=MODEL, system=name, pipelines=False, **CUTTING.get(name, {}))
        for name in choices("system")
        if not missing_package(name)
    }
    told = ranks.call("attend", list(steps.values()))
    worst = {name: max(rank[at] for rank in told) for at, name in enumerate(steps)}
    assert max(worst.values()) < 1e-12, worst
    assert {"hydraulis", "flexsp", "fcp", "distca", "bytescale", "wlb_llm"} < set(steps)
    whole = {name for name, step in steps.items() if all((plan.forward.kind == ATTEND).all() for plan in step.plans)}
    assert whole == {"hydraulis", "local_packing"}


def test_tokens_travel_home_and_back(ranks: LocalFleet) -> None:
    for step in (planned("ring"), in_two("zeppelin")):
        assert ranks.call("round_trip", step) == [True] * 4


def test_programs_are_kept(ranks: LocalFleet) -> None:
    kept, others, positions = zip(*ranks.call("again", planned("ring")), strict=True)
    assert all(kept)
    assert all(others)
    assert sum(positions) == sum(length * (length - 1) // 2 for length in LENGTHS)


def test_attention_runs_again_in_a_checkpoint(ranks: LocalFleet) -> None:
    assert ranks.call("checkpointed", planned("ring")) == [True] * 4


def test_own_model_trains_as_in_one_process(ranks: LocalFleet) -> None:
    """examples/own_model.py, in float64; AdamW's steps magnify what sums in another order differ by."""
    (losses, alone), *others = ranks.call("own_model")
    assert others == [(losses, [])] * 3
    assert losses[0] == pytest.approx(alone[0], rel=1e-12)
    assert losses == pytest.approx(alone, rel=1e-9)
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("system", ["ring", "ulysses"])
def test_a_llama_of_transformers_has_the_gradients_of_sdpa(ranks: LocalFleet, system: str) -> None:
    """With norms in float64 to 1e-12; as Transformers has them, in float32 whatever the model is in, to 1e-5."""
    assert max(ranks.call("hugging_face", planned(system), True)[0]) < 1e-12
    assert max(ranks.call("hugging_face", planned(system), False)[0]) < 1e-5


def test_examples_run(ranks: LocalFleet) -> None:
    losses = ranks.call("hugging_face_example")
    assert losses == [losses[0]] * 4
    assert losses[0][-2] < 0.9 * losses[0][0]


def test_planning_is_hidden_behind_the_step_before(ranks: LocalFleet) -> None:
    """examples/planned_ahead.py: of every plan at least as much as the step before takes is not waited for; a planner
    that begins when its plan is asked for hides nothing."""
    (losses, times), *_ = ranks.call("planned_ahead")
    assert losses == sorted(losses, reverse=True)
    assert len(times) == len(losses) - 1 > 0
    for took, waited in times:
        assert took >= PLANNING
        assert took - waited >= TRAINING


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("q", "a head more", "q has 5 heads; the plan is for model 'own' with num_heads=4"),
        ("v", "a head more", "v has 3 heads; the plan is for model 'own' with num_kv_heads=2"),
        ("k", "flat", "num_kv_heads and head_dim of model 'own'"),
        ("q", "a token more", "this rank's tokens in micro-batch 0, num_heads and head_dim of model 'own'"),
        ("k", "float32", "k is torch.float32; model.element_bytes=8 of the plan's model 'own' takes torch.float64"),
        ("v", "nowhere", "v is on meta; the runtime was made for cpu"),
    ],
)
def test_wrong_inputs_are_one_sentence(ranks: LocalFleet, name: str, change: str, sentence: str) -> None:
    assert all(told.startswith("ValueError: ") for told in sentences(ranks, "given", planned("ring"), name, change))
    assert all(told.endswith(sentence) for told in sentences(ranks, "given", planned("ring"), name, change))


def test_plans_for_others_are_refused(ranks: LocalFleet) -> None:
    step, other = planned("ring"), replace(MODEL, num_layers=3)
    grouped = replace(step, model=replace(MODEL, tensor_parallel=2))
    for plans, named, words in (
        (planned("ring", cluster="a800_2x8"), {}, "plan 0 is for 16 ranks; the group has 4"),
        (step, {"model": other}, "the plans are for another model: model.num_layers is 2 in theirs and 3"),
        (step, {"cluster": "a800_2x8"}, "the plans are for another cluster: cluster.name is"),
        (step.plans[0], {}, "a Plan by itself names no cluster; Runtime"),
        (grouped, {}, "parallel.tensor_parallel is 2; attention by itself takes plans with 1"),
        (LENGTHS, {}, "plans is of type list; it takes what zbench.plan or zbench.load returns"),
        (step, {"kernel": "fast"}, "kernel is 'fast'; for float64 on cpu here there are auto, matmul"),
        (step, {"timeout": 0}, "timeout is 0; it takes seconds, above 0"),
    ):
        assert all(words in told and "ValueError" in told for told in sentences(ranks, "open", named, plans)), words


def test_ranks_that_differ_are_told(ranks: LocalFleet) -> None:
    step = planned("ring")
    for other, words in (
        (planned("ring", [300, 2, 40, 1, 77]), "sequence 2 has 41 tokens on rank 0 and 40 on rank 2"),
        (planned("ring", LENGTHS[:-1]), "rank 0 has 5 sequences, rank 2 has 4"),
        (planned("ulysses"), "rank 2's are not rank 0's for the same lengths"),
        (planned("ring", model=replace(MODEL, vocab=64)), "rank 2's are for another cluster or model than rank 0's"),
    ):
        told = ranks.call("refused", "open", {}, per_rank=[step, step, other, step])
        assert all(words in one for one in told), told


def test_rows_that_are_not_there_are_refused(ranks: LocalFleet) -> None:
    words = {"scatter": "[421, ...], the tokens of the packed batch", "gather": "the tokens of this rank in"}
    for what, wanted in words.items():
        assert all(wanted in told for told in sentences(ranks, "rows", planned("ring"), what))


@pytest.mark.parametrize(
    ("rows", "others", "sentence"),
    [
        (1, {"micro_batch": None}, "micro_batch is None; model(...) takes one of"),
        (2, {}, "input_ids has 2 rows; it takes one row of this rank's tokens, [1, T]"),
        (1, {"attention_mask": 1}, "attention_mask is given; plans know where sequences begin and end"),
        (1, {"dropout": 0.1}, "dropout of the model's attention is 0.1; plans have none, so it takes 0.0"),
        (1, {"softcap": 30.0}, "softcap of the model's attention is 30.0; plans have none, so it takes None"),
        (1, {"sliding_window": 16}, "the model's sliding_window is 16; the plan's mask is causal"),
    ],
)
def test_what_no_plan_has_is_refused(ranks: LocalFleet, rows: int, others: dict[str, object], sentence: str) -> None:
    assert all(sentence in told for told in sentences(ranks, "transformers", planned("ring"), rows, others))


def test_a_rank_that_never_calls_is_named(ranks: LocalFleet) -> None:
    *told, nothing = ranks.call("absent", planned("ring"))
    assert nothing == {}
    for rank, sentence in enumerate(told):
        for where in ("forward", "backward"):
            place = f"micro-batch 0, attention call 1, {where} attention, and rank 3 did not come there; every rank of"
            assert re.match(f"TimeoutError: rank {rank} waited (3 s )?for rank . in {place}", sentence[where]), sentence
        place = "in micro_batches, and rank 3 did not come there"
        assert re.match(f"TimeoutError: rank {rank} waited (3 s )?for the others {place}", sentence["micro_batches"])
        assert sentence["after"].startswith("RuntimeError: the group cannot be used any more: rank ")


def test_ranks_that_compile_are_waited_for(ranks: LocalFleet) -> None:
    """Longer than the timeout, once: what is compiled on all ranks at once ends at moments seconds apart."""
    assert ranks.call("late", planned("ring")) == [""] * 4


def test_ranks_that_are_not_at_fault_are_not_blamed(ranks: LocalFleet) -> None:
    """In a ring every rank waits for the one before; those whose part is done, or that give up, are not to blame."""
    told = ranks.call("apart", planned("ring"))
    for rank, (odd, more, mixed) in enumerate(told):
        if rank == 1:
            assert odd.startswith("ValueError: q has shape")
        elif odd:
            assert re.search(
                r", and rank 1 left .* attention call 1, forward attention with an error \(ValueError", odd
            )
            assert "did not come" not in odd
        if rank == 0:
            assert "in micro_batches, and rank 1 is in micro-batch 0, attention call 1, forward attention inst" in more
        elif more:
            assert "forward attention, and rank 0 is in micro_batches instead; every rank" in more
        assert mixed.endswith("it is torch.float32 [T, 1] on rank 0 and torch.float32 [T, 2] on rank 1")
    assert all(any(one[at] for one in told) for at in range(3))


def test_a_closed_runtime_is_refused(ranks: LocalFleet) -> None:
    sentence = "ValueError: the Runtime is closed; attention, gather and micro_batches come before its close()"
    assert ranks.call("closed", planned("ring")) == [[sentence] * 3] * 4


@pytest.mark.parametrize(
    ("device", "sentence"), [("banana", "device is 'banana'; it takes"), ("cuda:99", "torch sees")]
)
def test_a_device_that_is_not_there_is_refused(ranks: LocalFleet, device: str, sentence: str) -> None:
    assert all(sentence in told for told in sentences(ranks, "open", {"device": device}, planned("ring")))


def test_what_is_no_tensor_is_refused(ranks: LocalFleet) -> None:
    for what, sentence in (
        ("scatter", "x is of type list; it takes"),
        ("attention", "q is of type NoneType; it takes"),
    ):
        assert all(sentence in told for told in sentences(ranks, "value", planned("ring"), what))


def test_a_rank_that_makes_no_runtime_is_told() -> None:
    with LocalFleet(2, "tests.torch.ranks:Ranks", timeout=60) as ranks:
        told, _ = ranks.call("absent_at_first")
    assert "waited 3 s for the others to make their Runtime, and not all 2 ranks" in told
