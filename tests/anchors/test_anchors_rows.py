"""A user's own rows of measured attention: read from CSV, predicted, compared; bad files told in one sentence."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.anchors import attention, measured
from zbench.anchors.__main__ import main
from zbench.anchors.anchor import published_rows
from zbench.anchors.measured import COLUMNS, MeasuredRow, read_measured
from zbench.anchors.presets import cluster

HEADER = ",".join(COLUMNS)
GOOD = "h100,causal,fwd,8,8192,ulysses,600.3"  # a known row

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)
ROWS = st.builds(
    MeasuredRow,
    NAMES,
    NAMES,
    st.sampled_from(measured.PASSES),
    st.integers(1, 1024),
    st.integers(1, 16384),
    NAMES,
    st.floats(1e-3, 1e4),
)


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench.anchors", *words])
    return main()


def file_of(folder: Path, *lines: str) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def rows_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    assert called(monkeypatch, "--rows", str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


@given(rows=st.lists(ROWS, min_size=1, max_size=5), order=st.permutations(COLUMNS), extra=st.booleans())
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[MeasuredRow], order: list[str], extra: bool
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    names = [*order, "note"] if extra else order
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**row.columns(), **({"note": "x,\ny"} if extra else {})} for row in rows)
    assert read_measured(path) == rows


def test_rows_are_predicted_as_the_anchors_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        ",".join(row[name] for name in COLUMNS) for row in published_rows("attention") if "varlen" not in row["mask"]
    ]
    found = rows_of(monkeypatch, capsys, file_of(tmp_path, *lines))
    by_case = {anchor.case: anchor for anchor in attention.anchors(cluster)}
    assert len(found) == len(lines) == 48
    for row in found:
        assert list(row) == [*COLUMNS, "measured", "predicted", "error", "known"]
        given = MeasuredRow(*(row[name] for name in COLUMNS))
        anchor = by_case[f"{given.configuration} {given.method}, TFLOP/s/GPU"]
        assert (row["measured"], row["predicted"], row["known"]) == (anchor.measured, anchor.predicted, anchor.known)
        assert row["error"] == row["predicted"] / row["measured"] - 1


def test_a_row_is_known_by_its_configuration_and_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = GOOD.replace("h100", "b200")
    upper = GOOD.replace("h100", "H100")
    path = file_of(tmp_path, GOOD, GOOD.replace("600.3", "600.4"), GOOD.replace(",8,", ",4,"), other, upper)
    found = rows_of(monkeypatch, capsys, path)
    assert [row["known"] for row in found] == [True, True, False, False, True]
    assert found[0]["predicted"] == found[-1]["predicted"]


def test_rows_without_a_plan_are_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "h100,full,fwd,8,8192,magi_native,662.6",
        "mi300x,full,fwd,8,16384,ulysses,900",
        GOOD,
        "h100,sliding,bwd,8,8192,usp,100",
        "h100,full,bwd,128,8192,ulysses,100",
    )
    path = file_of(tmp_path, *lines)
    assert called(monkeypatch, "--rows", str(path), "--json") == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["predicted"] is None for row in rows] == [True, True, False, True, True]
    assert [row["error"] is None for row in rows] == [True, True, False, True, True]
    assert called(monkeypatch, "--rows", str(path)) == 0
    table = capsys.readouterr().out
    for words in (
        "method magi_native: it is of group magi, --group magi",
        "hw mi300x",
        "mask sliding",
        "method ulysses on 128 GPUs",
    ):
        assert f"1 row of {words}" in said.err
        assert f"left out: 1 row of {words}" in table
    assert "method ulysses on 128 GPUs" in table
    assert "rows: 1 case," in table
    assert "played on equal nodes: h100, 8 GPUs: 1 node of 8 GPUs and 8 NICs" in table


def test_rows_of_a_group_are_predicted_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, GOOD, "h100,full,fwd,8,8192,magi_native,662.6")
    predicted = []
    for group in attention.GROUPS:
        assert called(monkeypatch, "--rows", str(path), "--group", group, "--json") == 0
        predicted.append([row["predicted"] for row in json.loads(capsys.readouterr().out)])
    assert [[rate is None for rate in rates] for rates in predicted] == [[False, True], [True, False]]
    assert predicted[0] == [row["predicted"] for row in rows_of(monkeypatch, capsys, path)]


def test_a_published_group_is_shown_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(monkeypatch, "--group", "magi", "--json") == 0
    assert {row["anchor"] for row in json.loads(capsys.readouterr().out)} == {"magi"}
    assert called(monkeypatch, "--group", "magi") == 0
    said = capsys.readouterr().out
    assert "all known: 32 cases" in said
    assert "all blind" not in said


def test_the_command_prints_a_table_of_rows(tmp_path: Path) -> None:
    path = file_of(tmp_path, GOOD, GOOD.replace("ulysses", "ring_p2p").replace("600.3", "420.8"))
    command = [sys.executable, "-m", "zbench.anchors", "--rows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for words in ("h100 causal fwd 8 GPUs x 8192 ulysses", "600.3", "known", "rows: 2 cases", "1 of 1 orders kept"):
        assert words in done.stdout
    assert all(line.startswith("predicting: ") for line in done.stderr.splitlines())  # told where it takes long


def test_rows_of_which_none_has_a_plan_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, "mi300x,full,fwd,8,16384,ulysses,900")
    for more in ([], ["--json"]):
        assert called(monkeypatch, "--rows", str(path), *more) == 2
        said = capsys.readouterr()
        assert (
            "left out: 1 row of hw mi300x: no cluster is described with it; there are h100, b200" in said.out + said.err
        )
        assert "has no row that can be predicted" in said.err


def test_names_are_taken_in_any_case_and_repeats_are_no_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = GOOD.replace("ulysses", "ring_p2p").replace("600.3", "420.8")
    again = "H100,Causal,FWD,8,8192,Ring_P2P,320"
    path = file_of(tmp_path, GOOD, ring, again)
    found = rows_of(monkeypatch, capsys, path)
    assert found[1]["predicted"] == found[2]["predicted"]
    assert (found[2]["mask"], found[2]["known"]) == ("Causal", True)
    assert called(monkeypatch, "--rows", str(path)) == 0
    assert "; 1 of 1 orders kept" in capsys.readouterr().out


@pytest.mark.parametrize("hw", list(attention.CLUSTERS))
@pytest.mark.parametrize("num_gpus", [1, 2, 3, 12, 14, 32])
def test_any_number_of_gpus_has_a_cluster_and_predictions(num_gpus: int, hw: str) -> None:
    rows = [
        MeasuredRow(hw, mask, "bwd", num_gpus, 2048, method, 1.0)
        for mask in ("full", "varlen_causal")
        for methods in attention.METHODS.values()
        for method in methods
    ]
    on = attention.cluster_of_gpus(cluster(attention.CLUSTERS[hw][0]), num_gpus)
    assert on.num_ranks == num_gpus
    assert on.nics_per_node == on.gpus_per_node <= 8
    peak = on.device.peak_flops
    for group, methods in attention.METHODS.items():
        rates = attention.predict(rows, cluster, group=group)
        assert [rate is not None for rate in rates] == [row.method in methods for row in rows]
        assert all(0 < rate < peak for rate in rates if rate is not None)


def test_blackwell_runs_the_other_backend() -> None:
    """Over twice as fast at whole tiles, and no wrapper that gathers and scatters."""
    rows = [MeasuredRow(hw, "full", "fwd", 8, 16384, "ring_p2p", 1.0) for hw in attention.CLUSTERS]
    hopper, blackwell = attention.predict(rows, cluster)
    assert hopper is not None
    assert blackwell is not None
    assert 2 * hopper < blackwell < cluster("b200_4x8").device.attention_forward_flops


def test_progress_counts_what_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "NUM_PACKS", 3)
    made = [
        ("full", "fwd", "usp"),
        ("varlen_full", "fwd", "usp"),
        ("varlen_full", "bwd", "usp"),
        ("varlen_full", "bwd", "ring_p2p"),
        ("varlen_full", "bwd", "magi_native"),
    ]
    rows = [MeasuredRow("h100", mask, pass_, 8, 512, method, 1.0) for mask, pass_, method in made]
    told: list[int] = []
    attention.predict(rows, cluster, told.append)
    assert told == list(range(1, 1 + 3 + 3 + 1))
    assert attention.num_plays(rows) == told[-1]


BAD = {
    "missing column": (HEADER.replace("mask,", "") + "\nh100,fwd,8,8192,usp,1\n", "the header has no column mask"),
    "column twice": (f"{HEADER},hw\n{GOOD},h100\n", "line 1: the header has the column hw twice"),
    "word for GPUs": (f"{HEADER}\n{GOOD}\n{GOOD.replace(',8,', ',eight,')}\n", "line 3: cp_size is 'eight'"),
    "word for a rate": (f"{HEADER}\n{GOOD.replace('600.3', 'fast')}\n", "line 2: tflops_per_gpu is 'fast'"),
    "negative rate": (f"{HEADER}\n{GOOD.replace('600.3', '-600.3')}\n", "line 2: tflops_per_gpu is '-600.3'"),
    "no number": (f"{HEADER}\n{GOOD.replace('600.3', 'nan')}\n", "line 2: tflops_per_gpu is 'nan'"),
    "infinite": (f"{HEADER}\n{GOOD.replace('600.3', '1e999')}\n", "line 2: tflops_per_gpu is '1e999'"),
    "negative tokens": (f"{HEADER}\n{GOOD.replace('8192', '-1')}\n", "line 2: seqlen_per_rank is '-1'"),
    "a part of a GPU": (f"{HEADER}\n{GOOD.replace(',8,', ',8.5,')}\n", "line 2: cp_size is '8.5'"),
    "too many GPUs": (f"{HEADER}\n{GOOD.replace(',8,', ',1000000,')}\n", "line 2: cp_size is '1000000'"),
    "too many tokens": (f"{HEADER}\n{GOOD.replace('8192', '16777216')}\n", "line 2: seqlen_per_rank is 16777216"),
    "other pass": (f"{HEADER}\n{GOOD.replace('fwd', 'both')}\n", "line 2: pass is 'both'; it takes fwd or bwd"),
    "no method": (f"{HEADER}\n{GOOD.replace('ulysses', '')}\n", "line 2: method is ''"),
    "value missing": (f"{HEADER}\n{GOOD.rpartition(',')[0]}\n", "line 2: it has 6 values for 7 columns"),
    "value too many": (f"{HEADER}\n{GOOD},1\n", "line 2: it has 8 values for 7 columns"),
    "quote left open": (f'{HEADER}\n"{GOOD}\n', "it cannot be read as CSV"),
    "long word": (f"{HEADER}\n{GOOD.replace('600.3', 'x' * 9999)}\n", f"tflops_per_gpu is '{'x' * 56}..."),
    "empty": ("", "is empty"),
    "blank": ("\n \n", "is empty"),
    "only a header": (f"{HEADER}\n\n", "has no rows below its header"),
    "other text": ("%PDF-1.7\n", "line 1: the header has no column hw"),
    "not text": (b"hw\n\xff\xfe", "line 2: it is not UTF-8 text"),
    "huge": (HEADER + "\n" * (measured.MOST_BYTES + 1), f"has more than {measured.MOST_BYTES} bytes"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_file_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    content, words = BAD[case]
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert called(monkeypatch, "--rows", str(path)) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith(f"zbench: {path}")
    assert words in said.err
    assert said.err.count("\n") == 1
    assert len(said.err) < 300 + len(str(path))


@pytest.mark.parametrize("name", [".", "nothing.csv"])
def test_what_is_no_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert called(monkeypatch, "--rows", str(tmp_path / name)) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith(f"zbench: {tmp_path / name} cannot be read: ")


def test_an_unknown_option_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(monkeypatch, "--row") == 2
    assert capsys.readouterr().err.startswith("zbench: ")
