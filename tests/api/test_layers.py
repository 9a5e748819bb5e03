"""zbench layers: the table of searches and the stages of the best."""

from pathlib import Path

import pytest

from zbench.api.words import run_sub_command


def test_the_command_tells_each_search_and_what_a_run_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("16384\n" * 16)
    words = [str(lengths), "cluster=a800_4x8", "cluster.num_nodes=1", "model=llama_7b"]
    assert run_sub_command("layers", [*words, "play=true"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one for all layers, which a run plays" in said
    assert "by layer, balanced stages" in said
    assert "5 sharded 8, recompute full; 27 sharded 8" in said
    assert "Seconds are by arithmetic and not played." in said
    assert "Whole steps of the first two, proven and played" in said
    recomputed = said[said.index("Whole steps of the first two") :].split("the same, but for recomputation, by layer")[
        1
    ]
    assert "73.4" in recomputed
    assert "parallel.tensor_parallel=2 parallel.pipeline_parallel=1 sharding=zero3 recompute=none" in said
