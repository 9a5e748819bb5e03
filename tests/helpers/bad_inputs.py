"""The files that bad input names (tests/helpers/bad_inputs.txt), and the table itself."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from tests.record.test_record import FAULTS, changed, end_line, start_line, step_line

LONG = 300  # letters of a name
TABLE = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True, slots=True)
class Bad:
    """A command line, the exit code it has to end with, and what its sentence has to say."""

    code: int
    line: str
    told: str


def table() -> list[Bad]:
    lines = [line.split(" | ") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [Bad(int(code), line.strip(), told.strip()) for code, line, told in lines]


def make_files(folder: Path) -> None:
    """Fills an empty folder."""
    for make in (_texts, _numpy, _json, _parquet, _yamls, _records):
        make(folder)
    for name in ("folder.txt", "nofiles", "emptyfile"):
        (folder / name).mkdir()
    (folder / "emptyfile" / "a").touch()
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "dangling.txt").symlink_to("nowhere")


def _texts(folder: Path) -> None:
    texts = {
        "empty": "",
        "blank": "\n\n",
        "neg": "12\n-4\n",
        "word": "12\nfoo\n",
        "frac": "1.5\n",
        "nan": "nan\n",
        "inf": "inf\n",
        "big": "9" * 5000 + "\n",
        "huge": "1" + "0" * 20 + "\n",
        "nul": "1\0\n",
        "zero": "0\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "bin.txt").write_bytes(bytes(range(256)))
    (folder / "utf16.txt").write_bytes("12\n13\n".encode("utf-16"))
    (folder / "lengths.csv").write_text("1\n")


def _header(shape: str, kind: str = "'<i8'") -> bytes:
    """Returns the header of a .npy file, saying whatever it is to say."""
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _numpy(folder: Path) -> None:
    raw = {
        "garbage.npy": b"garbage",
        "hundred_million.txt": b"100000000\n",
        "empty.npy": b"",
        "rows.npy": _header("(1000000000000,)"),
        "neg.npy": _header("(-5,)"),
        "many.npy": _header("(10**40,)"),
        "huge.npy": _header(f"({10**30},)"),
        "trunc.npy": _header("(100,)") + bytes(80),
        "obj.npy": _header("(1,)", "'|O'"),
        "deep.npy": _header("(" * 5000),
        "zerosize.npy": _header("(1000000000000,)", "'|V0'"),
        "garbage.npz": b"PK\x03\x04garbage",
        "text.npz": b"abc",
    }
    for name, content in raw.items():
        (folder / name).write_bytes(content)
    arrays = {
        "two": np.ones((2, 2), np.int64),
        "float": np.array([1.5]),
        "str": np.array(["a"]),
        "complex": np.array([1j]),
        "none": np.array([], np.int64),
        "time": np.array(["2020-01-01"], "M8[D]"),
        "scalar": np.array(5),
        "rec": np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]),
        "bool": np.array([True]),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "other.npz", a=np.array([1]))
    whole = (folder / "other.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "crc.npz").write_bytes(whole[:70] + bytes([whole[70] ^ 255]) + whole[71:])
    members = {
        "bomb": ("length.npy", _header("(1000000000000,)") + bytes(10_000_000)),
        "bad": ("length.npy", b"nonsense"),
        "txt": ("length.txt", b"nonsense"),
    }
    for name, (member, content) in members.items():
        with zipfile.ZipFile(folder / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)


def _json(folder: Path) -> None:
    texts = {
        "nested": "[" * 100_000 + "]" * 100_000,
        "deep": '{"length":' * 100_000 + "1" + "}" * 100_000,
        "list": "[1]",
        "field": '{"n":1}',
        "word": '{"length":"x"}',
        "null": '{"length":null}',
        "nan": '{"length":NaN}',
        "bad": '{"length":1}\n{"len',
        "digits": '{"length":' + "9" * 5000 + "}",
        "text": '{"text":5}',
        "notext": '{"text":""}',
        "mixed": '{"1":2}',
    }
    for name, text in texts.items():
        (folder / f"{name}.jsonl").write_text(f"{text}\n")
    (folder / "bin.jsonl").write_bytes(b"\xff\xfe\n")
    others = {  # that are no record of zbench's, though they begin as one might
        "pretty": '{\n  "kind": "step",\n  "run": "r"\n}\n',
        "log": '{"kind":"step","service":"my app log"}\n',
        "broken": '{"kind": "Deployment", "metadata": {\n',
    }
    for name, text in others.items():
        (folder / f"{name}.json").write_text(text)


def _parquet(folder: Path) -> None:
    columns = {
        "str": {"length": ["a"]},
        "col": {"n": [1]},
        "null": {"length": pyarrow.array([None], pyarrow.int64())},
        "none": {"length": pyarrow.array([], pyarrow.int64())},
        "ok": {"length": [1, 2, 3] * 1000},
    }
    for name, column in columns.items():
        parquet.write_table(pyarrow.table(column), folder / f"{name}.parquet")
    whole = (folder / "ok.parquet").read_bytes()
    raw = {
        "garbage": b"garbage",
        "empty": b"",
        "magic": b"PAR1" + bytes(100) + b"PAR1",
        "cut": whole[: len(whole) // 2],
        "magic2": b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1",
        "data": whole[:20] + b"\xff" * 180 + whole[200:],
        "meta": whole[:-300] + b"\x01" * 250 + whole[-50:],
    }
    for name, content in raw.items():
        (folder / f"{name}.parquet").write_bytes(content)


def _yamls(folder: Path) -> None:
    """A folder for --config-dir."""
    ring = "_target_: zbench.systems.ring.Ring\n"
    texts = {
        "system/tab": "_target_: a\n\tb: 1\n",
        "system/list": "- 1\n- 2\n",
        "system/empty": "",
        "system/text": "text",
        "system/anchor": "a: *nope\n",
        "system/dup": f"{ring}backward: [",
        "system/args": f"{ring}_args_: [1,2,3,4]\n",
        "workload/nopart": "_target_: zbench.workloads.lengths_file.LengthsFile\nlengths: 5\n",
    }
    for name, text in texts.items():
        path = folder / "yaml" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "yaml" / "system" / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")


def _records(folder: Path) -> None:
    """good.jsonl and other.jsonl, of a run each; for each of FAULTS, by number, one of a broken run alone."""
    for name in ("good", "other"):
        choices = {"system": name, "workload": "w", "cluster": "c", "model": "m", "executor": "simulated"}
        start = start_line(name, config={"steps": 1, "choices": choices})
        _write(folder / f"{name}.jsonl", start, step_line(name), end_line(name))
    for number, (kind, name, value, _) in enumerate(FAULTS):
        lines = {"start": start_line(), "first": step_line(), "step": step_line(number=1), "end": end_line()}
        lines[kind] = changed(lines[kind], name, value)
        _write(folder / f"fault{number}.jsonl", *lines.values())


def _write(path: Path, *lines: object) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
