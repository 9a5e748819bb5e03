"""python -m zbench.correctness peers: they train as one dense process does, and every other byte has a reason."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from zbench.console import extras
from zbench.console.extras import installed
from zbench.correctness import __main__
from zbench.correctness.peers import command
from zbench.correctness.peers.cases import DEGREES, GRADIENTS, OTHER, PARAMETERS, PEERS, Peer, Trained, step_of
from zbench.correctness.peers.command import PeerVerdict, beside_peers, judged_own, judged_peer
from zbench.correctness.steps.cases import Executed
from zbench.runtime.processes.fleet import RankFailed
from zbench.step.byte_law import stated_bytes

FSDP2_WHOLE = next(peer for peer in PEERS if peer.told("reshard_after_forward"))


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command as a shell does, and returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "peers", *arguments])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return __main__.main()


def test_peers_train_as_one_dense_process_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DDP and FSDP2, and DeepSpeed's three stages where it is installed, beside every sharding of zbench's."""
    assert called(monkeypatch, "--ranks", "2", "--seed", "1", "--markdown") == 0
    found = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in found if line.startswith("| ")][2:]
    with_deepspeed = installed("deepspeed")
    alike = [peer for peer in PEERS if peer.sharding not in DEGREES]  # others need more processes than two
    peers = [str(peer) for peer in alike if with_deepspeed or peer.family != "deepspeed"]
    assert {row[1] for row in rows} == {"zbench", *peers}
    assert [row[0] for row in rows if row[2] == "64" and row[1] == "zbench"] == ["none", "2", "3"]
    assert found[-1] == f"{len(rows)} kinds of training compared, 0 of them FAILED"


def test_peers_in_pairs_train_as_one_dense_process_does() -> None:
    """FSDP2 on a mesh of two dimensions, and with pairs for the backward, beside nested degrees on four processes."""
    peers = [peer for peer in PEERS if peer.sharding in DEGREES and peer.family == "fsdp2"]
    found = list(beside_peers(peers, 4, 0))
    assert [one.fault for one in found] == [""] * 4
    hsdp = {one.by: one.sent for one in found if one.sharding == "3 in pairs"}
    assert hsdp["fsdp2 mesh=2"] == {of: hsdp["zbench"][of] for of in (PARAMETERS, GRADIENTS)}


def test_a_peer_that_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    assert not extras.installed("deepspeed")
    assert called(monkeypatch, "--peers", "deepspeed") == 2
    assert "--peers deepspeed needs the package deepspeed, which is not installed" in capsys.readouterr().err


def test_peers_that_are_not_installed_are_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    chosen: list[Peer] = []

    def noted(peers: list[Peer], ranks: int, seed: int) -> list[PeerVerdict]:
        chosen.extend(peers)
        return []

    monkeypatch.setattr(command, "beside_peers", noted)
    assert called(monkeypatch) == 1  # nothing was trained
    assert {peer.family for peer in chosen} == {"ddp", "fsdp2"}
    told = "not run: deepspeed, as deepspeed is not installed: pip install 'zbench[peers]'"
    assert told in capsys.readouterr().out.splitlines()


def test_what_differs_or_has_no_reason_is_told() -> None:
    own = {PARAMETERS: 100_000, GRADIENTS: 50_000, OTHER: 8}
    # two processes: embedding, norm and head once more, (2 x 18 + 1) x 8 elements of 8 bytes
    right = Trained(1e-16, 1e-15, 1e-16, ({}, {PARAMETERS: 102_368, GRADIENTS: 50_000}))
    assert judged_peer(FSDP2_WHOLE, [right, right], own).fault == ""
    for changed, told in (
        ({"loss": 1e-11}, "the losses differ by 1.0e-11, above 1e-12"),
        ({"gradients": float("nan")}, "the gradients differ by nan, above 1e-12"),
        ({"parameters": 0.5}, "the parameters differ by 5.0e-01, above 1e-12"),
        ({"sent": ({PARAMETERS: 102_368, GRADIENTS: 50_008},)}, "processes have counted different bytes"),
    ):
        assert told in judged_peer(FSDP2_WHOLE, [right, replace(right, **changed)], own).fault
    more = replace(right, sent=({PARAMETERS: 102_376},))
    fault = judged_peer(FSDP2_WHOLE, [more, more], own).fault
    assert fault == "+8 bytes of parameters have no reason; -50,000 bytes of gradients have no reason"


def test_bytes_that_zbench_does_not_say_are_told() -> None:
    case = step_of("3", 8, 2, 0)
    stated = stated_bytes(case.step)
    right = [Executed(2.0 if rank == 0 else None, 2.0, 1e-15, 1e-15, stated[rank]) for rank in range(2)]
    verdict = judged_own("3", 8, right, case.step)
    assert verdict.fault == ""
    assert verdict.sent == {PARAMETERS: 35_392, GRADIENTS: 18_880, OTHER: 8}  # by hand: 4,424, 2,360 and 1 elements
    wrong = [right[0], replace(right[1], bytes={"gradients": (1, 2)})]
    assert (
        "process 1 has (sent, received) {'gradients': (1, 2)}; the step says"
        in judged_own("3", 8, wrong, case.step).fault
    )
    nowhere = [replace(one, loss=None) for one in right]
    assert "the losses differ by inf" in judged_own("3", 8, nowhere, case.step).fault


@pytest.mark.parametrize(("fails", "by"), [("run", "zbench"), ("train", str(PEERS[0]))])
def test_who_fails_is_named_and_the_next_is_tried_on_fresh_processes(
    monkeypatch: pytest.MonkeyPatch, fails: str, by: str
) -> None:
    started = []

    class Fleet:
        def __init__(self, *_: Any, **__: Any) -> None:
            started.append(self)

        def __enter__(self) -> "Fleet":
            return self

        def __exit__(self, *_: object) -> None: ...

        def call(self, name: str, *_: Any) -> list[Executed]:
            if name == fails:
                raise RankFailed("rank 1: it ended")
            return []

    monkeypatch.setattr(command, "LocalFleet", Fleet)
    monkeypatch.setattr(command, "judged_own", lambda *_: PeerVerdict("", "zbench", 8, (), {}, {}, "", ""))
    found = [one for one in beside_peers([PEERS[0], PEERS[0]], 2, 0) if one.fault]
    assert [(one.by, one.fault) for one in found] == [(by, "rank 1: it ended")] * 2
    assert len(started) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "1"], "--ranks is 1; it takes a whole number from 2 to 8"),
        (["--ranks", "9"], "--ranks is 9; it takes a whole number from 2 to 8"),
        (["--ranks", "two"], "argument --ranks: invalid int value: 'two'"),
        (["--peers", "fsdp"], "--peers has 'fsdp'; it takes ddp, fsdp2, deepspeed"),
        (["--peers", ""], "--peers has ''; it takes ddp, fsdp2, deepspeed"),
        (["--seed", "-1"], "--seed is -1; it takes a whole number of at least 0"),
    ],
)
def test_bad_input_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert called(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
