"""python -m zbench.correctness steps: a cover of all pairs is exact and sends what steps say; differences are told."""

import re
import sys
from itertools import combinations as pairs
from itertools import product, starmap
from typing import Any

import numpy as np
import pytest

from zbench.correctness import __main__
from zbench.correctness.steps.cases import Executed, ProcessOptions
from zbench.correctness.steps.choices import CHOICES, CHOSEN_TOGETHER, LAID_OUT
from zbench.correctness.steps.combination import StepCombination, every_combination
from zbench.correctness.steps.command import combinations, executed, judged_step
from zbench.correctness.steps.covering import PossibleCombinations, covering
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import StepError
from zbench.step.template import Step


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command as a shell does, and returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "steps", *arguments])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return __main__.main()


def test_every_pair_of_choices_is_exact_on_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensor, context, data, expert and pipeline parallelism, collectives in two levels, ZeRO, nested degrees and bits,
    recomputation, micro-batches, GPUs without tokens, experts in chunks; pipelines side by side."""
    count, chosen = combinations(4, 1)
    assert called(monkeypatch, "--ranks", "4", "--seed", "1", "--markdown") == 0
    found = capsys.readouterr().out.splitlines()
    assert re.fullmatch(f"{count} combinations executed on .*, over gloo, 0 of them FAILED", found[-1])
    assert [line.split(" | ")[0].removeprefix("| ") for line in found[2:-1]] == list(map(str, chosen))


def test_a_cover_has_every_pair() -> None:
    assert len(every_combination(4)) == 674906148
    every = every_combination(2)
    chosen = covering(every, 0)
    drawn = [every[int(at)] for at in np.random.default_rng(0).integers(0, len(every), 20_000)]
    have, possible = (
        {(a, getattr(one, a), b, getattr(one, b)) for one in some for a, b in pairs(CHOICES, 2)}
        for some in (chosen, drawn)
    )
    assert possible <= have
    assert len(possible) > 0.95 * len(have)
    assert all(one.can_be(2) for one in chosen)
    assert len(chosen) < 120
    assert chosen == covering(every, 0)


def test_combinations_are_all_that_can_be() -> None:
    """Of some values of each choice they are listed without trying each with each, and come to the same."""
    twice = ("tensor_parallel", "context_parallel", "heads_exchanged", "expert_chunks", "exchanges", "chunk_tokens")
    some = dict.fromkeys(CHOICES, 1) | dict.fromkeys((*twice, "gate"), 2)
    some |= {"expert_parallel": 3, "zero": 8, "hosts": 3, "homes": 3}
    choices = {name: of[: some[name]] for name, of in CHOICES.items()}
    choices |= {"routing": ("even", "router", "expert_choice")}

    def made(*values: Any) -> StepCombination:
        return StepCombination(**dict(zip(choices, values, strict=True)))

    every = PossibleCombinations.where(
        lambda *values: made(*values).can_be(2), choices, LAID_OUT, CHOSEN_TOGETHER, made
    )
    wanted = [one for one in starmap(made, product(*choices.values())) if one.can_be(2)]
    assert len(every) == len(wanted) > 1000
    assert set(every) == set(wanted)


def test_what_differs_is_told() -> None:
    one = StepCombination(1, 1, 2, 1, 0, 1, "even", 1, 1, "whole", "own", "3", 0, "none", 1, "keep", "short")
    stated = stated_bytes(one.case(0).step)
    right = [Executed(2.0 if rank == 0 else None, 2.0, 1e-15, 1e-15, stated[rank]) for rank in range(2)]
    assert judged_step(one, [*right, Executed(None, 2.0, 0.0, 0.0, {})], stated).fault == ""
    for changed, told in (
        (Executed(2.1, 2.0, 0.0, 0.0, stated[0]), "the losses differ by 5.0e-02, above 1e-12"),
        (Executed(None, 2.0, 0.0, 0.0, stated[0]), "the losses differ by inf"),
        (Executed(2.0, 2.0, 1e-11, 0.0, stated[0]), "the gradients differ by 1.0e-11"),
        (Executed(2.0, 2.0, 0.0, float("nan"), stated[0]), "the parameters differ by nan"),
        (Executed(2.0, 2.0, 0.0, 0.0, {"gradients": (1, 2)}), "process 0 has .*'gradients': .1, 2.*; the step says"),
    ):
        with pytest.raises(AssertionError, match=told):
            assert not (fault := judged_step(one, [changed, right[1]], stated).fault), fault


def test_a_step_that_the_proof_refuses_is_a_failure_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    one = StepCombination(1, 1, 1, 1, 0, 1, "even", 1, 1, "whole", "own", "none", 0, "none", 1, "keep", "short")
    made: list[StepCombination] = []

    def refuse_the_first(_: Step) -> None:
        made.append(one)
        if len(made) == 1:
            raise StepError("operation 3 moves what is not there")

    monkeypatch.setattr("zbench.correctness.steps.command.prove_step", refuse_the_first)
    refused, right = executed([one, one], 1, ProcessOptions(), 0)
    assert (refused.fault, right.fault) == ("operation 3 moves what is not there", "")
    assert refused.row()[1:] == ["nan", "nan", "nan", "", "FAILED"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "0"], "--ranks is 0; it takes a whole number from 1 to 16"),
        (["--ranks", "many"], "argument --ranks: invalid int value: 'many'"),
        (["--seed", "-1"], "--seed is -1; it takes a whole number of at least 0"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--device", "cuda"], "--device is cuda; it takes a GPU, and CUDA_VISIBLE_DEVICES hides all"),
        (["--pairs"], "unrecognized arguments: --pairs"),
    ],
)
def test_bad_input_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert called(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
