"""Every system with a choice of conf/sync, in turn, and the command that plays all of them."""

import json
from pathlib import Path

import pytest

from zbench.correctness.__main__ import main
from zbench.correctness.rounds import RoundCombinations, RoundVerdict
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


@pytest.mark.parametrize("worker", ["node", "rank"])
@pytest.mark.parametrize("optimizer", [False, True])
def test_dense_layers_chosen_chunks_and_hosts_are_played(worker: str, optimizer: bool) -> None:
    checked = RoundCombinations(["zeppelin"], experts=True, hosts=True, optimizer=optimizer)
    verdict = checked.check("zeppelin", "slowmo", worker, SOME)
    assert (verdict.played, verdict.fault, verdict.refused) == (len(SOME), "", "")


@pytest.mark.parametrize("given", [{"groups": True}, {"stages": True}, {"groups": True, "stages": True}])
def test_groups_and_stages_of_workers_are_played(given: dict[str, bool]) -> None:
    checked = RoundCombinations(["zeppelin"], experts=True, **given)
    workers = {worker for _, _, worker in checked.combinations(True)}
    assert workers == ({"node"} if "stages" in given else {"rank", "node"})
    for worker in workers:
        verdict = checked.check("zeppelin", "streaming_diloco", worker, SOME)
        assert (verdict.played, verdict.fault, verdict.refused) == (len(SOME), "", "")


def test_a_system_that_chooses_before_a_run_is_refused_in_rounds_alone() -> None:
    checked = RoundCombinations(["static_best"])
    verdict = checked.check("static_best", "slowmo", "node", SOME)
    assert verdict.refused.startswith("system is StaticBest, which chooses by steps in which all come together; with")
    assert not verdict.played


def test_the_command_counts_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "rounds.jsonl"
    command = ["zbench.correctness", "rounds", "--systems", "local_packing", "--markdown", "--out", str(kept)]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 0
    told = capsys.readouterr().out
    assert "6 combinations, 6 played with 6 batches each, 0 refused, 0 skipped, 0 of them FAILED" in told
    assert "| local_packing | 6, rank | 6, node |" in told
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:4]))
    checked: list[str] = []
    check = RoundCombinations.check

    def noted(self: RoundCombinations, system: str, name: str, worker: str) -> RoundVerdict:
        checked.append(f"{name}, {worker}")
        return check(self, system, name, worker)

    monkeypatch.setattr(RoundCombinations, "check", noted)
    assert main() == 0
    assert capsys.readouterr().out == told
    assert checked == [f"{line['sync']}, {line['worker']}" for line in map(json.loads, lines[4:])]
