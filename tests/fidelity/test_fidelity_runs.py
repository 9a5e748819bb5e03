"""Which executor runs have, and what measured steps are compared with: records of simulated runs that say that ranks
ran them, so that what predicts them has to come to their own seconds."""

from pathlib import Path

import pytest

from tests.helpers.commands import called
from zbench.fidelity.__main__ import fidelity, main, measuring
from zbench.record.record import Run, read
from zbench.run.known import Unknown
from zbench.run.parts import DESK, TORCH

SMALL = (
    "cluster=local_2x2",
    "model=tiny",
    "tokens_per_gpu=512",
    "workload=longtail_4k",
    "baseline=null",
    "tracker=none",
)


def as_if_measured(tmp_path: Path, executor: str, *words: str) -> Run:
    """Returns a simulated run of four GPUs whose record says that an executor measured it."""
    assert called(*SMALL, *words, f"out={tmp_path / 'runs.jsonl'}").returncode == 0
    run = read(str(tmp_path / "runs.jsonl"))[0][-1]
    run.start["facts"]["simulated"] = False
    run.start["config"]["executor"] = {"_target_": executor}
    return run


@pytest.mark.parametrize(
    ("executor", "words"),
    [
        (TORCH, ("system=zeppelin", "sharding=zero3", "sharding.collectives=hierarchical", "steps=2")),
        (DESK, ("system=ring", "parallel.pipeline_parallel=2", "sharding=zero2", "recompute=full", "steps=2")),
        (DESK, ("system=ring", "sync=local_sgd", "sync.steps=2", "steps=4")),
    ],
)
def test_whole_steps_are_predicted_as_the_whole_steps_that_they_are(
    executor: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    found = fidelity(as_if_measured(tmp_path, executor, *words))
    assert found.errors == pytest.approx([0] * len(found.errors))
    assert (found.error, found.bytes_error) == pytest.approx((0, 0))


def test_a_step_finds_what_the_one_before_left_though_that_does_not_count(tmp_path: Path) -> None:
    """Pipelines change, which costs seconds and bytes, in the step behind one that does not count."""
    run = as_if_measured(tmp_path, TORCH, "system=hydraulis", "tokens_per_gpu=2048", "steps=6")
    changed = [at for at, step in enumerate(run.steps) if "switch" in step["phases"]]
    assert changed
    run.steps[changed[0] - 1]["valid"] = False
    found = fidelity(run)
    assert found.errors == pytest.approx([0] * 5)
    assert found.bytes_error == pytest.approx(0)


def test_rounds_are_compared_whole(tmp_path: Path) -> None:
    """Of two rounds of two steps one has a step that does not count; in the other one seconds went from a step to the
    next."""
    run = as_if_measured(tmp_path, TORCH, "system=ring", "sync=local_sgd", "sync.steps=2", "steps=4")
    run.steps[0]["valid"] = False
    run.steps[2]["seconds"] += 0.01
    run.steps[3]["seconds"] -= 0.01
    found = fidelity(run)
    assert found.errors == pytest.approx([0])
    assert found.invalid == 2
    run.steps[3]["valid"] = False
    with pytest.raises(ValueError, match=r"^the run of ring has no measured step that counts: a round does with all"):
        fidelity(run)


def test_collectives_that_go_from_gpu_to_gpu_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over NICs that ranks share, which collectives in two levels, as in the other run, enter once."""
    shared = as_if_measured(tmp_path, TORCH, "system=zeppelin", "steps=1")
    for name in ("parameters", "gradients"):
        shared.steps[0]["nic_tx_for"][name] = [2 * size for size in shared.steps[0]["nic_tx_for"][name]]
    once = as_if_measured(tmp_path, TORCH, "system=ring", "steps=1")
    assert [fidelity(one).collectives for one in (shared, once)] == [2, 1]
    monkeypatch.setattr("zbench.fidelity.__main__.read_all", lambda paths: [shared, once])
    monkeypatch.setattr("sys.argv", ["zbench.fidelity"])
    assert main() == 0
    told = (
        "gathers and reductions of zeppelin went from GPU to GPU, up to 2 times the bytes over NICs of the collectives"
    )
    assert capsys.readouterr().out.splitlines()[-1].startswith(told)


def test_classes_of_one_s_own_take_trust(tmp_path: Path) -> None:
    run = as_if_measured(tmp_path, TORCH, "system=ring", "steps=1")
    run.start["config"]["system"] = {"_target_": "tests.systems.conformance.Gone"}
    with pytest.raises(Unknown, match="--trust runs it"):
        fidelity(run)
    with pytest.raises(ValueError, match="cannot be made again"):
        fidelity(run, trust=True)


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (["workload=pystdlib"], ["executor=torch"]),
        (["experiment=throughput"], ["executor=torch"]),
        (["experiment=desk_rounds"], []),
        (["executor=torch_attention"], []),
        (["executor=desk", "experiment=sharding"], []),
    ],
)
def test_runs_are_of_whole_steps_unless_something_else_is_said(words: list[str], added: list[str]) -> None:
    assert measuring(words) == added + words


@pytest.mark.parametrize(
    "words", [["executor=simulated"], ["experiment=sharding"], ["executor=torch", "executor=simulated"]]
)
def test_what_is_simulated_measures_nothing(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^executor is 'simulated'; it takes one that measures, as torch"):
        measuring(words)
