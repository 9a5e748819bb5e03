"""Every system with a choice of conf/sync, in turn, and the command that plays all of them."""

import pytest

from zbench.correctness.__main__ import main
from zbench.correctness.rounds import RoundCombinations
from zbench.run.choices import choices

SOME = ("tail", "one")  # of the last some workers have no token


def test_every_system_plays_rounds_or_is_refused_in_a_sentence() -> None:
    """Each system once, with choices in turn, so that each choice and each kind of workers has several."""
    checked, syncs = RoundCombinations(list(choices("system"))), len(choices("sync"))
    every = checked.combinations()
    turns = [every[syncs * row + (row + row // syncs) % syncs] for row in range(len(checked.systems))]
    assert [system for system, _, _ in turns] == list(checked.systems)
    found = [checked.check(*one, SOME) for one in turns]
    assert [str(one) for one in found if one.fault] == []
    assert {one.sync for one in found if one.played == len(SOME)} == set(choices("sync"))
    assert {one.worker for one in found if one.played} == {"rank", "node"}
    refused = {one.system: one.refused for one in found if one.refused}
    for system, sentence in refused.items():
        assert sentence.startswith("system is "), (system, sentence)


def test_a_system_that_chooses_before_a_run_is_refused_in_rounds_alone() -> None:
    checked = RoundCombinations(["static_best"])
    verdict = checked.check("static_best", "slowmo", "node", SOME)
    assert verdict.refused.startswith("system is StaticBest, which chooses by steps in which all come together; with")
    assert not verdict.played


def test_the_command_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["zbench.correctness", "rounds", "--systems", "local_packing"])
    assert main() == 0
    assert (
        "6 combinations, 6 played with 6 batches each, 0 refused, 0 skipped, 0 of them FAILED"
        in capsys.readouterr().out
    )
