"""A page of an answer alone."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from zbench.advise.advice import Advice
from zbench.report import __main__ as report

QUESTION = {
    "lengths": "mine.txt",
    "num_lengths": 3,
    "longest": 9,
    "mean": 4.0,
    "cluster": "c</script>",
    "model": "m",
    "num_gpus": 4,
    "framework": "none",
    "systems": ["usp"],
    "tokens_per_gpu": 8,
    "tokens": 32,
    "batches": 2,
    "seed": 0,
    "mask": "causal",
    "settings": [],
    "world": "nominal",
}


def page_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["report", str(path), "-o", str(path.with_suffix(".html"))])
    return report.main()


def test_an_answer_alone_makes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "advice.json"
    path.write_text(json.dumps(Advice(QUESTION).values(), indent=1))
    assert page_of(path, monkeypatch) == 0
    assert "1 answer, 0 runs" in capsys.readouterr().out
    text = path.with_suffix(".html").read_text()
    begin = text.index('id="data">') + len('id="data">')
    data: dict[str, Any] = json.loads(text[begin : text.index("</script>", begin)])
    (shown,) = data["advice"]
    assert shown["title"].startswith("m on c\u2039/script>")
    assert "INCOMPLETE: it was stopped; what follows is what was finished." in shown["lines"]
    assert data["runs"] == []


def test_what_is_no_whole_answer_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "advice.json"
    path.write_text('{"format": "zbench-advice/1", "question": 3}')
    assert page_of(path, monkeypatch) == 2
    assert "is no whole answer of zbench advise --json" in capsys.readouterr().err
