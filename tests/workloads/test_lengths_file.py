"""Lengths from a user's file: every format, both orders, and every bad file."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.workloads.lengths_file import LengthsFile

LENGTHS = [7, 1, 300, 42, 5]


def write(folder: Path, suffix: str, lengths: list[int] = LENGTHS, field: str = "length") -> Path:
    path = folder / f"lengths{suffix}"
    if suffix == ".txt":
        path.write_text("".join(f"{length}\n" for length in lengths))
    elif suffix == ".npy":
        np.save(path, np.array(lengths, dtype=np.int32))
    elif suffix == ".npz":
        np.savez(path, **{field: np.array(lengths), "other": np.zeros(2)})
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps({field: length, "id": "x"}) + "\n" for length in lengths))
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({field: lengths, "id": lengths}), path)
    return path


def make(path: object, tokens: int = 1000, **fields: object) -> LengthsFile:
    return LengthsFile(seed=0, tokens=tokens, path=str(path), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".txt", ".npy", ".npz", ".jsonl", ".parquet"])
def test_every_format_gives_the_lengths(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    assert make(path, sum(LENGTHS), order="file").batch(0).lengths.tolist() == LENGTHS
    drawn = make(path, 100_000).batch(0).lengths
    assert set(drawn[:-1].tolist()) == set(LENGTHS)
    assert drawn.sum() == 100_000


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".parquet"])
def test_the_field_can_be_named(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, field="num_tokens")
    assert make(path, sum(LENGTHS), field="num_tokens", order="file").batch(0).lengths.tolist() == LENGTHS


def test_blank_lines_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\r\n 7 \r\n\r\n3.0\n1e2")
    assert make(path, 110, order="file").batch(0).lengths.tolist() == [7, 3, 100]


def test_random_draws_are_uniform_over_the_file(tmp_path: Path) -> None:
    lengths = make(write(tmp_path, ".npy"), 10_000_000).batch(3).lengths
    _, counts = np.unique(lengths[:-1], return_counts=True)
    assert counts / lengths.size == pytest.approx(np.full(5, 0.2), abs=0.005)


def in_order(lengths: list[int], tokens: int, limit: int, over_limit: str, steps: int) -> list[list[int]]:
    """The file's order, one document after the other."""
    usable = [min(length, limit) for length in lengths if over_limit == "cut" or length <= limit]
    batches, position = [], 0
    for _ in range(steps):
        batch: list[int] = []
        while sum(batch) < tokens:
            batch.append(min(usable[position % len(usable)], tokens - sum(batch)))
            position += 1
        batches.append(batch)
    return batches


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    tokens=st.integers(1, 300),
    limit=st.integers(1, 60),
    over_limit=st.sampled_from(["cut", "drop"]),
)
def test_file_order_goes_round_and_round(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], tokens: int, limit: int, over_limit: str
) -> None:
    path = write(tmp_path_factory.mktemp("order"), ".txt", lengths)
    fields = {"order": "file", "context_limit": limit, "over_limit": over_limit}
    if over_limit == "drop" and min(lengths) > limit:
        with pytest.raises(ValueError, match=r"workload\.context_limit is"):
            make(path, tokens, **fields)
        return
    expected = in_order(lengths, tokens, limit, over_limit, 6)
    workload = make(path, tokens, **fields)
    # Asked last step first, and anew for each step: only (seed, step) may matter.
    assert [workload.batch(step).lengths.tolist() for step in reversed(range(6))] == expected[::-1]
    assert [make(path, tokens, **fields).batch(step).lengths.tolist() for step in range(6)] == expected


def test_a_late_step_in_file_order_is_quick_to_find(tmp_path: Path) -> None:
    workload = make(write(tmp_path, ".txt"), 10, order="file")
    assert workload.batch(20_000).num_tokens == 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("5\n0\n7\n", r"line 2 is 0, and a length must be a whole number of at least 1"),
        ("5\n\n-3\n", r"line 3 is -3"),
        ("1.5\n", r"line 1 is 1\.5"),
        ("5\n6\nseven\n", r"line 3 is 'seven'"),
        ("5\nnan\n", r"line 2 is nan"),
        ("inf\n", r"line 1 is inf"),
        ("5,6\n", r"line 1 is '5,6'"),
        ("9" * 40 + "\n", r"line 1 is 9+, .* at most 1099511627776"),
        ("", r"holds no lengths; it must hold at least 1"),
        ("\n \n", r"holds no lengths"),
    ],
)
def test_bad_text_files_name_the_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"workload\.path is '.*bad\.txt'.* " + said):
        make(path)


def test_a_binary_file_called_txt_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"5\n\xff\xfe\x00\n")
    with pytest.raises(ValueError, match="line 2 is "):
        make(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"length": 5}\n{"size": 6}\n', r"workload\.field is 'length'; it must be .*: line 2 has size"),
        ('{"length": 5}\n\n{"length": "6"}\n', r"line 3 is '6', and a length"),
        ('{"length": 5}\n{"length": 0}\n', r"line 2 is 0"),
        ('{"length": 5.5}\n', r"line 1 is 5\.5"),
        ('{"length": true}\n', r"line 1 is True"),
        ('{"length": null}\n', r"line 1 is None"),
        ('{"length": [5]}\n', r"line 1 is \[5\]"),
        ('{"length": 5}\n{"length": \n', r"line 2 must be a JSON object \("),
        ("5\n", r"line 1 must be a JSON object, not int"),
        ("{}\n", r"line 1 has none"),
        ("", r"holds no lengths"),
    ],
)
def test_bad_jsonl_files_name_the_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        make(path)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([5, 0]), r"entry 2 is 0, and a length"),
        (np.array([5, -1]), r"entry 2 is -1"),
        (np.array([2.0, 2.5]), r"entry 2 is 2\.5"),
        (np.array([np.nan]), r"entry 1 is nan"),
        (np.array(["a"]), r"entry 1 is 'a'"),
        (np.array([True]), r"entry 1 is True"),
        (np.array([], dtype=np.int64), r"holds no lengths"),
        (np.ones((2, 2)), r"an array of 2 dimensions; it must have 1"),
        (np.array(5), r"an array of 0 dimensions"),
        (np.array([{}], dtype=object), r"it must be a readable numpy file"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_bad_numpy_files_name_the_entry(tmp_path: Path, suffix: str, array: np.ndarray, said: str) -> None:
    path = tmp_path / f"bad{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, length=array)
    with pytest.raises(ValueError, match=said):
        make(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"not a file of that kind", b"PK\x03\x04", b"\x93NUMPY"])
def test_unreadable_files_are_one_sentence(tmp_path: Path, suffix: str, content: bytes) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"workload\.path is '.*bad.*'; it must be a readable"):
        make(path)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_unknown_field_names_those_there_are(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    with pytest.raises(ValueError, match=r"workload\.field is 'lenght'; it must be .*: length, (other|id)"):
        make(path, field="lenght")


def test_bad_parquet_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 2 is 0, and a length"):
        make(write(tmp_path, ".parquet", [5, 0]))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lengths.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"workload.path=.* needs the package pyarrow, .*zbench\[parquet\]"):
        make(path)


def test_missing_paths_and_kinds_of_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"workload\.path is needed and not given; it must be a file of lengths"):
        LengthsFile(seed=0, tokens=10)
    with pytest.raises(ValueError, match=r"workload\.path is '.*none\.txt', which does not exist; it must be a file"):
        make(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"which is a folder; it must be a file of lengths"):
        make(tmp_path)
    (tmp_path / "a.csv").write_text("5\n")
    with pytest.raises(ValueError, match=r"a\.csv'; it must be a file that ends in"):
        make(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"workload\.order is 'sorted'; it must be one of random, file"):
        make(write(tmp_path, ".txt"), order="sorted")
    with pytest.raises(ValueError, match=r"workload\.context_limit is 3; .* the shortest length in .*, 5"):
        make(write(tmp_path, ".txt", [5, 6]), context_limit=3, over_limit="drop")


@pytest.mark.parametrize("name", ["x.txt", "x.npy", "x.jsonl", "x.parquet"])
def test_a_pipe_is_no_file_of_lengths(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=r"workload\.path is .*, a pipe or a device; it must be a file of lengths"):
        make(tmp_path / name)
