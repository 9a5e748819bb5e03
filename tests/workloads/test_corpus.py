"""Corpora of real documents: folders, jsonl and parquet files, and their tokens."""

import json
import os
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from zbench.workloads import stdlib
from zbench.workloads.corpus import Corpus

TEXTS = {"a.txt": "alpha", "b/c.txt": "gamma äö", "b/d.md": "delta " * 50, "empty.txt": "", "skip/e.txt": "hidden"}


def folder(root: Path) -> Path:
    for name, text in TEXTS.items():
        path = root / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "docs"


def make(path: object, tokens: int = 2000, **fields: object) -> Corpus:
    return Corpus(seed=0, tokens=tokens, path=str(path), **fields)  # type: ignore[arg-type]


def heads(corpus: Corpus, step: int = 0) -> set[bytes]:
    """What the sequences of a batch say, except the last, which is cut."""
    return {bytes(ids.astype(np.uint8)) for ids in corpus.tokens_of(corpus.batch(step))[:-1]}


def test_a_folder_gives_its_files_as_bytes(tmp_path: Path) -> None:
    corpus = make(folder(tmp_path), exclude=["skip"])
    batch = corpus.batch(0)
    tokens = corpus.tokens_of(batch)
    assert [ids.size for ids in tokens] == batch.lengths.tolist()
    assert all(ids.dtype == np.int64 for ids in tokens)
    assert heads(corpus) == {TEXTS[name].encode() for name in ("a.txt", "b/c.txt", "b/d.md")}


def test_a_sequence_is_the_head_of_its_document(tmp_path: Path) -> None:
    corpus = make(folder(tmp_path), context_limit=3)
    assert heads(corpus) == {text.encode()[:3] for text in TEXTS.values() if text}
    dropped = make(folder(tmp_path), context_limit=6, over_limit="drop")
    assert heads(dropped) == {b"alpha", b"hidden"}


def test_pattern_chooses_file_names(tmp_path: Path) -> None:
    assert heads(make(folder(tmp_path), pattern="*.md")) == {TEXTS["b/d.md"].encode()}


def test_links_that_lead_back_or_nowhere_are_left_out(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "b" / "back").symlink_to(root)
    (root / "nowhere.txt").symlink_to(root / "not there")
    assert len(heads(make(root))) == 4


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_of_a_file_are_documents(tmp_path: Path, suffix: str) -> None:
    texts = ["one", "", "zwei äö", "a longer third one\n"]
    path = tmp_path / f"docs{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"body": text}) for text in texts) + "\n\n")
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"body": texts}), path)
    assert heads(make(path, field="body")) == {text.encode() for text in texts if text}


def test_a_tokenizer_replaces_bytes(tmp_path: Path) -> None:
    words: dict[bytes, int] = {}

    def tokenize(text: bytes) -> list[int]:
        return [words.setdefault(word, 1000 + len(words)) for word in text.split()]

    corpus = make(folder(tmp_path), pattern="*.md", tokenizer=tokenize)
    assert corpus.batch(0).lengths.tolist() == [50] * 40
    assert set(np.concatenate(corpus.tokens_of(corpus.batch(0))).tolist()) == {1000}
    with pytest.raises(ValueError, match=r"workload\.tokenizer gives '.*' 0 tokens; it must give at least 1"):
        make(folder(tmp_path), tokenizer=lambda text: [])


def test_batches_are_a_function_of_seed_and_step(tmp_path: Path) -> None:
    path = folder(tmp_path)
    corpus, other = make(path), make(path)
    for step in (5, 0, 3):
        corpus.batch(step)
    one, two = corpus.batch(7), other.batch(7)
    assert one.digest == two.digest
    assert one.documents is not None
    assert two.documents is not None
    assert (one.documents == two.documents).all()
    assert (one.documents.size, one.documents.dtype) == (one.lengths.size, np.int64)
    assert corpus.batch(8).digest != one.digest


def test_a_document_that_shrank_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path)
    corpus = make(path, pattern="a.txt")
    (path / "a.txt").write_text("al")
    with pytest.raises(ValueError, match=r"a\.txt' with 2 tokens; it must still have the 5"):
        corpus.tokens_of(corpus.batch(0))


def test_bad_corpora_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"workload\.path is needed and not given; it must be a folder of documents"):
        Corpus(seed=0, tokens=10)
    with pytest.raises(ValueError, match=r"workload\.path is '.*missing', which does not exist; it must be a folder"):
        make(tmp_path / "missing")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"none'; it must hold at least 1 file that is not empty and fits '\*'"):
        make(tmp_path / "none")
    with pytest.raises(ValueError, match=r"docs'; it must hold at least 1 file .* fits '\*\.rs'"):
        make(folder(tmp_path), pattern="*.rs")
    with pytest.raises(ValueError, match=r"a\.txt'; it must be a folder, or a file that ends in \.jsonl or \.parquet"):
        make(folder(tmp_path) / "a.txt")
    with pytest.raises(ValueError, match=r"workload\.context_limit is 2; .* the shortest document in .*, 5"):
        make(folder(tmp_path), context_limit=2, over_limit="drop")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"it must hold at least 1 document with text in 'text'"),
        ('{"text": ""}\n', r"it must hold at least 1 document"),
        ('{"text": "a"}\n{"body": "b"}\n', r"workload\.field is 'text'; it must be a field .*: line 2 has body"),
        ('{"text": 5}\n', r"workload\.field is 'text'; it must be text in every row .*, and line 1 is int"),
        ('{"text": null}\n', r"line 1 is NoneType"),
        ("[]\n", r"line 1 must be a JSON object, not list"),
        ("{\n", r"line 1 must be a JSON object \("),
    ],
)
def test_bad_jsonl_corpora_name_the_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        make(path)


def test_bad_parquet_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    path = tmp_path / "docs.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": ["a", None], "n": [1, 2]}), path)
    with pytest.raises(ValueError, match=r"workload\.field is 'body'; it must be a column of .*: text, n"):
        make(path, field="body")
    with pytest.raises(ValueError, match=r"and row 2 is NoneType"):
        make(path)
    with pytest.raises(ValueError, match=r"and row 1 is int"):
        make(path, field="n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs the package pyarrow"):
        make(path)


def test_the_standard_library_is_scanned_without_opening_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"pattern": "*.py", "exclude": ["site-packages", "dist-packages", "__pycache__"]}
    with monkeypatch.context() as patch:
        for opens in ("builtins.open", "io.open", "os.open"):
            patch.setattr(opens, None)  # an error if it is called
        corpus = make(sysconfig.get_path("stdlib"), 1 << 20, **fields)
    batch = corpus.batch(0)
    assert sum(ids.size for ids in corpus.tokens_of(batch)) == 1 << 20


def test_pipes_and_devices_are_no_documents(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jsonl")
    for path in (tmp_path / "x.jsonl", "/dev/zero"):
        with pytest.raises(ValueError, match=r"workload\.path is .*, a pipe or a device; it must be a folder"):
            make(path)
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert [int(length) for length in make(tmp_path, 6).batch(0).lengths] == [3, 3]


def test_the_standard_library_is_a_corpus() -> None:
    assert Path(stdlib.folder(), "os.py").is_file()
