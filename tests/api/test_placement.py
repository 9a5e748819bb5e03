"""zbench placement: the table of placements, and where the models of the best one are."""

from pathlib import Path

import pytest

from zbench.api.words import run_sub_command


def test_the_command_tells_of_each_placement_and_the_best_ones_layouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("64\n" * 8)
    words = [str(lengths), str(lengths), "cluster=local_2x2", "model=tiny", "algorithm=grpo", "nodes=1,2"]
    assert run_sub_command("placement", [*words, "cluster.num_nodes=2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tiny on local_2x2 (num_nodes=2), 8 sequences" in said
    for name in ("colocate", "split", "standalone", "searched"):
        assert f"│ 4 │ {name} " in said
    assert "│ 2 │ standalone │ no room" in said  # three sets of at least a GPU each
    assert "searched on 4 GPUs" in said
    assert "Models of a set take turns" in said


def test_a_model_of_another_size_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("64\n")
    words = [str(lengths), str(lengths), "cluster=local_2x2", "model=tiny", "critic=tiny", "critic.name=small"]
    assert run_sub_command("placement", [*words, "nodes=1"]) == 0
    assert "tiny, critic small on local_2x2, 1 sequence " in " ".join(capsys.readouterr().out.split()) + " "
