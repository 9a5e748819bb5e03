"""python -m zbench.correctness mutate: every wrong plan is rejected, and a verifier that lets one through is found."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import pytest

from tests.correctness.verifiers import absent, accepting, blind, dying, leaving, stumbling
from zbench.correctness import __main__, mutate
from zbench.correctness.mutations.kinds import KINDS
from zbench.correctness.reference.judge import Verifier, verifier
from zbench.correctness.score import Score, failures
from zbench.correctness.workers import UNBROKEN, Judged, Name, Share, judged, mutant_shares
from zbench.run.choices import choices, missing_package


def of(system: str, kinds: Sequence[str], verify: Verifier, rounds: int = 1, jobs: int = 1) -> list[Judged]:
    """Mutants of these kinds alone, so many of each."""
    names = [Name(3, system, at) for at in range(rounds * len(KINDS))]
    return list(judged(mutant_shares([name for name in names if name.kind in kinds]), jobs, verify))


def broken(found: Iterable[Judged]) -> list[Judged]:
    return [one for one in found if one.kind != UNBROKEN]


def test_every_wrong_plan_of_every_system_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main(["--mutants", str(20 * len(choices("system"))), "--seed", "7", "--jobs", "2", "--markdown"]) == 0
    out = capsys.readouterr().out
    table = dict(re.findall(r"^\| (\S+) \| (\d+) \|", out, re.MULTILINE))
    assert {name for name in choices("system") if not missing_package(name)} <= set(table)
    assert all(table[name] == "20" for name in choices("system") if not missing_package(name))
    found = re.search(
        r"mutation score 100 %: verify rejects (\d+) of \1 wrong plans; of (\d+) .* unbroken ones 0\n", out
    )
    assert found
    assert int(found[1]) > int(found[2]) > 10


def test_the_same_seed_makes_the_same_mutants() -> None:
    names = [[Name(seed, "ring", at) for at in range(12)] for seed in (5, 5, 6)]
    first, again, other = (sorted(map(str, judged([one[:6], one[6:]], 2, verifier))) for one in names)
    assert first == again
    assert first != other


def test_a_verifier_that_accepts_everything_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main(["--systems", "ring", "--mutants", "25", "--jobs", "1"], accepting) == 1
    out = capsys.readouterr().out
    assert "mutation score 0 %: verify rejects 0 of" in out
    assert re.search(r"^not as it has to be: ring, mutant \d+, .*: a rule of arrays is broken", out, re.MULTILINE)


def test_a_verifier_that_does_not_look_at_lanes_is_found() -> None:
    lanes = ("item of lanes", "lanes emptied")
    found = of("ring", lanes, blind, 4)
    assert Score.of(found).caught < Score.of(found).wrong
    assert Score.of(of("ring", lanes, verifier, 4)).share == "100 %"


@pytest.mark.parametrize(("verify", "how"), [(dying, "signal 11"), (leaving, "exit code 0")])
def test_a_process_that_dies_counts_its_mutant_as_missed_and_no_other(verify: Verifier, how: str) -> None:
    kinds = ("plan's backward_mode", "plan's num_ranks", "plan's num_heads", "plan's mask")
    found = broken(of("ring", kinds, verify, 2))
    assert [one.kind in kinds for one in found] == [True] * 8
    died = [one for one in found if one.died]
    assert {(one.kind, one.died) for one in died} == {("plan's num_ranks", how)}
    assert [one for one in found if one.is_missed] == died
    assert (Score.of(found).wrong, Score.of(found).caught) == (8, 8 - len(died))


def test_a_verifier_that_judges_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main(["--systems", "ring", "--mutants", "5", "--jobs", "1"], absent) == 1
    out = capsys.readouterr().out
    assert "mutation score -: verify rejects 0 of 0 wrong plans" in out
    assert "100 %" not in out
    assert "not as it has to be: ring: 5 mutants were not judged" in out
    assert "not as it has to be: ring, mutant 0, unbroken: its process ended, exit code 0" in out


def test_nothing_is_said_of_a_verifier_by_mutants_that_are_right() -> None:
    name = Name(0, "ring", 0)
    found = [Judged(name, KINDS[0], "", "", "")]
    assert failures(found, [name]) == ["no mutant was found wrong, so that nothing is known of the verifier"]
    assert failures([Judged(name, KINDS[0], "", "outputs are off", "it is no plan")], [name]) == []


def test_a_verifier_that_stumbles_has_rejected_nothing() -> None:
    missed = [one for one in of("ring", ["lanes emptied"], stumbling, 6) if one.is_missed]
    assert missed
    assert all(one.wrong for one in missed)


def test_what_was_judged_is_shown_when_the_user_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(given: list[Share], jobs: int, verify: Verifier) -> Iterator[Judged]:
        yield Judged(Name(0, "ring", 0), UNBROKEN, "", "", "")
        yield Judged(Name(0, "ring", 0), KINDS[0], "", "outputs are off", "it is no plan")
        raise KeyboardInterrupt

    monkeypatch.setattr(mutate, "judged", stopped)
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "mutate", "--systems", "ring"])
    assert __main__.main() == 130
    heard = capsys.readouterr()
    assert "mutation score 100 %: verify rejects 1 of 1 wrong plans" in heard.out
    assert heard.err.endswith("zbench: stopped; the tables are of what was judged until then\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mutat"], "'mutat' is no subcommand of zbench.correctness; it takes loop, matrix, mutate"),
        (["mutate", "--systems", "rings"], "--systems has 'rings'; it takes allgather"),
        (["mutate", "--mutants", "0"], "--mutants is 0; it takes a whole number of at least 26"),
        (["mutate", "--seed", "-1"], "--seed is -1; it takes a whole number of at least 0"),
        (["mutate", "--jobs", "0"], "--jobs is 0; it takes a whole number of at least 1"),
        (["mutate", "--steps", "1"], "unrecognized arguments: --steps (see --help)"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", *arguments])
    assert __main__.main() == 2
    err = capsys.readouterr().err
    assert err.startswith(f"zbench: {told}")
    assert err.count("\n") == 1
