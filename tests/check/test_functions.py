"""The check of losses and attention: right functions pass, and each way of being wrong is told."""

import math
import time

import pytest
import torch

from tests.check import examples
from zbench.check import processes
from zbench.check.check import check_function, print_verdicts
from zbench.check.kinds import function_kind
from zbench.check.loss import CASES as LOSS_CASES
from zbench.check.processes import FunctionCheck
from zbench.check.share import Share
from zbench.check.verdict import Verdict, relative_errors

HERE = examples.__name__


def check(kind: str, named: str, *cases: str, ranks: int = 1, **keys: object) -> dict[str, Verdict]:
    chosen = cases or tuple(function_kind(kind, "mean").cases(ranks))
    job = FunctionCheck(kind, named, chosen, ranks, **keys)  # type: ignore[arg-type]
    return {one.case: one for one in check_function(job)}


@pytest.mark.parametrize("named", ["torch", "torch_chunks", "torch_linear"])
def test_losses_that_are_exact(named: str) -> None:
    found = check("loss", named)
    assert len(found) == 9
    assert all(one.exact for one in found.values())


def test_attention_that_is_exact() -> None:
    found = check("attention", "torch_sdpa")
    assert len(found) == 11
    assert all(one.exact for one in found.values())


def test_deepspeed_s_tiled_mean_is_wrong_where_it_is_known_to_be() -> None:
    found = check("loss", "deepspeed")
    assert {name for name, one in found.items() if one.exact} == {"even"}
    # two shards of 1 and 4 labels: each token of the first weighs 1/2 and not 1/5, of the second 1/8
    assert 0.5 < found["masked"].errors["d hidden"] < 1.0
    assert found["masked"].errors["loss"] > 0.01
    assert found["odd"].errors["d hidden"] == pytest.approx(0.14, abs=0.02)  # shards of 4 and 3
    assert math.isnan(found["masked_chunk"].errors["loss"])
    assert found["one"].errors["d weight"] == pytest.approx(0.5)  # one shard, divided by two
    assert found["scaled"].errors["d hidden"] < 1e-12
    assert found["scaled"].errors["d weight"] == pytest.approx(3.0)  # the factor 1/4 is not applied


def test_deepspeed_s_tiled_sum_loses_the_division_in_the_head_s_gradient() -> None:
    found = check("loss", "deepspeed_sum")
    for name in ("even", "masked", "odd"):
        labels = LOSS_CASES[name].tokens[0] - len(LOSS_CASES[name].ignored[0])
        assert found[name].errors["d hidden"] < 1e-12
        assert found[name].errors["d weight"] == pytest.approx(labels - 1)


def test_mean_of_means_and_a_forgotten_document() -> None:
    found = check("loss", f"{HERE}:mean_of_means")
    assert found["even"].exact
    assert found["scaled"].exact
    assert not found["masked"].exact
    assert not found["odd"].exact
    assert found["masked"].line == f"zbench check loss {HERE}:mean_of_means case=masked"
    packed = check("attention", f"{HERE}:across_documents")
    assert {name for name, one in packed.items() if one.exact} == {"one", "odd", "window_of_one"}


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("loss", "without_grad", "the loss that it returned has no gradient (requires_grad is False)"),
        ("loss", "a_number", "it returned a float; a tensor with one number, the loss, would be right"),
        ("loss", "frozen_head", "backward left no gradient for weight"),
        ("loss", "raises", f"{HERE}:raises raised RuntimeError: no kernel for such a thing"),
        ("loss", "leaves", f"{HERE}:leaves raised SystemExit: 0"),
    ],
)
def test_answers_that_cannot_be_compared(kind: str, name: str, told: str) -> None:
    found = check(kind, f"{HERE}:{name}", "even")["even"]
    assert found.failed
    assert found.told == told


def test_nan_is_never_exact() -> None:
    found = check("attention", f"{HERE}:not_a_number", "one")["one"]
    assert found.failed
    assert math.isnan(found.errors["o"])


def test_what_a_function_does_not_take_is_no_mistake() -> None:
    found = check("loss", f"{HERE}:refuses_odd", "even", "odd")
    assert found["even"].exact
    assert found["odd"].refused
    assert not found["odd"].failed
    assert found["odd"].told == "not taken: an even number of tokens only"


def test_narrower_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    job = FunctionCheck("loss", f"{HERE}:in_float32", ("even", "odd"))
    print_verdicts(check_function(job), job)
    assert "the errors are those of float32 numbers, and dtype=float32 allows for them" in capsys.readouterr().out
    assert all(one.exact for one in check("loss", f"{HERE}:in_float32", dtype="float32").values())
    assert all(one.exact for one in check("attention", "torch_sdpa", dtype="bfloat16").values())


def test_losses_of_processes_that_wait_for_each_other() -> None:
    found = check("loss", f"{HERE}:by_case", "even", "masked", "scaled", "uneven_shares", ranks=2, seconds=2)
    assert found["even"].exact
    assert found["uneven_shares"].exact
    assert found["masked"].failed  # process 1 raised and process 0 waited: both are told of, and nothing hung
    assert "process 1: " in found["masked"].told
    assert "labels ignored" in found["masked"].told
    told = "waited 2 s for the other processes, which did not make the same call of torch.distributed"
    assert f"process 0: {HERE}:by_case {told}" in found["masked"].told
    assert found["scaled"].exact  # a case after one that failed has a group of its own


def test_a_process_that_stays_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BETWEEN", 2.0)
    began = time.monotonic()
    found = check("loss", f"{HERE}:stays", "even", "masked", "odd", ranks=2, seconds=1)
    assert time.monotonic() - began < processes.STARTING
    assert found["even"].exact
    for case in ("masked", "odd"):
        assert "process 1 of 2 was ended, as no answer had come for 4 s" in found[case].told
    assert "was not asked, as others had not come out of an earlier case in" in found["odd"].told


@pytest.mark.parametrize(("name", "exact"), [("window_of_one", True), ("odd_documents", False)])
def test_shares_of_attention(name: str, exact: bool) -> None:
    """Two shares of a pack, one after the other: a process that looks at its own keys only is right under a window of
    one token, where that is all there is to see."""
    kind, group = function_kind("attention", "mean"), object()
    shares = [Share(rank, 2, torch.float64, "cpu", group) for rank in range(2)]
    whole = kind.joined([kind.ask(examples.own_rows_only, name, share) for share in shares], name)
    errors = relative_errors(whole, kind.reference(name, 2, torch.float64))
    assert set(errors) == {"o", "d q", "d k", "d v"}
    assert all(error < 1e-12 for error in errors.values()) == exact
