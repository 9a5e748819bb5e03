"""Calibrating: constants of a machine that is the cost model itself, a real one of two ranks, and every mistake."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import zbench.__main__
from zbench.calibrate import __main__
from zbench.calibrate.curves import Curves
from zbench.calibrate.gauge import Gauge
from zbench.calibrate.quantity import quantity
from zbench.calibrate.sheet import Circumstances, device_sheet, sheet
from zbench.calibrate.subject import AttentionCall, RankResources, Subject, Used, layer_shapes
from zbench.calibrate.survey import Survey, written
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import CURVES, Device
from zbench.describe.model import Model
from zbench.describe.units import parse
from zbench.runtime.processes.world import ProcessPlace

MODEL = Model(
    "small",
    num_layers=2,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_hidden=192,
    vocab=256,
    element_bytes=4,
)
EXPERTS = replace(MODEL, num_experts=8, experts_per_token=2)
DEVICE = Device("made up", 9e10, 8e9, 5e9, 2e9, 4e10, 3e10, 2e10, 3e-6, 2e-4)
CLUSTER = Cluster("made up", 2, 4, 2, 1e9, 1.0, 4e-4, 2e9, 1.0, 1e-4, DEVICE, nic_channels=4, nvlink_channels=2)
TINY = ["--gpus-per-node", "2", "--seconds", "0.02", "--tokens", "64"]


@dataclass(frozen=True)
class Described:
    """A fleet whose ranks take as long as the cost model says, on a cluster with constants to be found again."""

    cost: Cost
    subject: Subject
    num_ranks: int = 8
    clock: Iterator[int] = field(default_factory=count)

    def call(self, method: str, *arguments: Any, per_rank: Sequence[Any] | None = None) -> list[Any]:
        return [getattr(self, method)(*arguments) for _ in range(self.num_ranks)]

    def about(self) -> RankResources:
        device = self.cost.cluster.device
        return RankResources(
            "here", device.name, 4, 1, int(device.memory_bytes), "2.11", "gloo", "a kernel", "driver 1.2, CUDA 3", 132
        )

    def used(self) -> Used:
        """Three cores of four are busy, two of them with the eight ranks."""
        now = next(self.clock)
        return Used("here", 4, now, 3.0 * now, 0.25 * now)

    def matmul(self, shapes: Sequence[tuple[int, int, int]], backward: bool, window: float) -> float:
        flops = sum(2.0 * rows * ins * outs for rows, ins, outs in shapes) * (3 if backward else 1)
        device = self.cost.cluster.device
        curve = device.matmul_by_tokens.get(self.cost.model.name)
        rate = device.matmul_flops if curve is None else 1 / curve.seconds(np.array([float(shapes[0][0])]))[0]
        return (rate if backward else device.peak_flops) / flops

    def attention(self, call: AttentionCall, backward: bool, window: float) -> float:
        model = self.cost.model
        heads = np.array([model.num_heads]), np.array([model.num_kv_heads])
        return 1 / self.cost.kernel_seconds(call.work, *heads, backward)[0]

    def multiply(self, rows: int, columns: int, window: float) -> float:
        return self.cost.cluster.device.copy_bandwidth / (3 * rows * columns * self.cost.model.element_bytes)

    def permute(self, rows: int, window: float) -> float:
        model = self.cost.model
        return 1 / self.cost.repack_seconds(rows * model.num_heads * model.head_dim * model.element_bytes)

    def smallest(self, window: float) -> float:
        return 1 / self.cost.cluster.device.kernel_seconds

    def exchange(self, across: bool, alone: bool, size: int, rounds: int) -> float:
        load = 1 if alone else self.subject.ranks_per_nic if across else 1
        return self._seconds(across, size * load, load)

    def together(self, across: bool, size: int, rounds: int) -> float:
        load = self.subject.ranks_per_nic if across else 1
        return self._seconds(across, size * load, load * len(self.subject.peers(0, across)))

    def routed(self, size: int, rounds: int) -> float:
        share = size / self.subject.nics_per_node
        return 2 * self._seconds(False, share, 1) + self._seconds(True, share, 1)

    def _seconds(self, across: bool, size: float, messages: int) -> float:
        there = np.array([across])
        return float(self.cost.spread_seconds(size, there, messages)[0] + self.cost.latency_seconds(there)[0])


def surveyed(window: float = 1.0) -> tuple[Survey, list[str]]:
    told: list[str] = []
    subject = Subject(MODEL, 2, 4, 2, 4096, "auto")
    fleet = Described(Cost(CLUSTER, MODEL), subject)
    survey = Survey(Gauge(fleet, window, told.append), subject)  # type: ignore[arg-type]
    survey.take()
    return survey, told


def test_the_constants_of_a_described_machine_are_found_again() -> None:
    survey, told = surveyed()
    found = {name: figure.value for name, figure in survey.figures.items()}
    exact = (
        "peak_flops",
        "matmul_flops",
        "memory_bytes",
        "copy_bandwidth",
        "strided_rate",
        "kernel_seconds",
        "call_seconds",
        "attention_forward_flops",
        "attention_backward_flops",
    )
    assert {name: found[name] for name in exact} == pytest.approx({name: getattr(DEVICE, name) for name in exact})
    links = ("nic_latency", "nvlink_latency", "nic_bandwidth", "nvlink_bandwidth")
    assert {name: found[name] for name in links} == pytest.approx(
        {name: getattr(CLUSTER, name) for name in links},
        rel=0.01,  # messages of 8 bytes; bandwidth with its latency
    )
    assert (found["nic_channels"], found["nvlink_channels"]) == (4, 2)
    # A NIC's channel has a quarter of 1 GB/s. Shares are a half: 2 x 1/2 at 1 GB/s (NVLink's channel), 1/2 at 250 MB/s.
    assert rates_told(survey.figures["nic_channels"].of) == pytest.approx((250e6, 1e9, 1e9 / 3), rel=0.01)
    assert len(told) > len(found)
    assert survey.gauge.others == pytest.approx({"devices": 0.25, "links": 0.25})


class Crowded(Described):
    """A machine whose processors are held up where all send to all."""

    def together(self, across: bool, size: int, rounds: int) -> float:
        return 5 * super().together(across, size, rounds)


def test_all_peers_with_less_than_one_leave_the_bandwidth_of_one() -> None:
    subject = Subject(MODEL, 2, 4, 2, 4096, "auto")
    found = Survey(Gauge(Crowded(Cost(CLUSTER, MODEL), subject), 1.0, lambda line: None), subject).take()  # type: ignore[arg-type]
    assert found["nic_bandwidth"].value == pytest.approx(CLUSTER.nic_bandwidth / CLUSTER.nic_channels, rel=0.01)
    assert found["nic_bandwidth"].of.startswith("bytes to one peer between nodes, more than bytes to all peers")
    assert found["nic_channels"].value == 1
    assert found["nic_channels"].of.endswith(
        "all have less than one, so nic_bandwidth is the one peer's: measure again"
    )


def rates_told(text: str) -> tuple[float, ...]:
    """Returns the bytes/s that a text tells of one peer, of all peers, and of one peer through all NICs."""
    rate = r"([^;]*)"
    found = re.search(
        rf"one peer has {rate} and all together {rate}; one peer through all 2 NICs of a node {rate}", text
    )
    assert found is not None
    return tuple(parse("x", rate, "bytes/s") for rate in found.groups())


def test_sizes_rise_until_the_next_one_outgrows_a_window() -> None:
    _, told = surveyed(window=0.01)
    assert [line for line in told if line.startswith("matmul 512")]  # 3 ms
    assert not [line for line in told if line.startswith("matmul 1024")]


def test_attention_no_longer_than_its_rows_is_told() -> None:
    slow = Cost(replace(CLUSTER, device=replace(DEVICE, copy_bandwidth=1e3)), MODEL)
    subject = Subject(MODEL, 2, 4, 2, 64, "auto")

    class Contradictory(Described):
        def attention(self, call: AttentionCall, backward: bool, window: float) -> float:
            return 1e3

    with pytest.raises(ValueError, match="attention forward of 131072 tokens took 1 ms, no longer than its rows"):
        Survey(Gauge(Contradictory(slow, subject), 0.1, print), subject).take()  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (2, 1), (3, 4), (4, 2)])
def test_every_rank_sends_to_whom_receives_from_it(nodes: int, gpus: int) -> None:
    subject = Subject(MODEL, nodes, gpus, 1, 64, "auto")
    for across, num in ((True, nodes - 1), (False, gpus - 1)):
        partners = [subject.partners(rank, across) for rank in range(subject.num_ranks)]
        assert {len(found) for found in partners} == {num}
        for distance in range(num):
            sent = {(rank, partners[rank][distance][0]) for rank in range(subject.num_ranks)}
            assert sent == {(partners[rank][distance][1], rank) for rank in range(subject.num_ranks)}
            assert all((a // gpus != b // gpus) == across for a, b in sent)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (2, 1), (3, 4), (4, 2)])
def test_every_rank_sends_to_all_and_receives_from_them(nodes: int, gpus: int) -> None:
    subject = Subject(MODEL, nodes, gpus, 1, 64, "auto")
    for across in (True, False):
        found = [subject.peers(rank, across) for rank in range(subject.num_ranks)]
        sent = {(rank, to) for rank, pairs in enumerate(found) for to, _ in pairs}
        assert sent == {(source, rank) for rank, pairs in enumerate(found) for _, source in pairs}
        assert sent == {
            (a, b)
            for a in range(len(found))
            for b in range(len(found))
            if a != b and (a // gpus != b // gpus) == across
        }
        assert len(sent) == sum(map(len, found))


@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=lambda model: str(model.num_experts))
def test_a_layers_matmuls_are_those_that_the_cost_model_counts(model: Model) -> None:
    shapes = layer_shapes(model, 1024)
    assert sum(rows * ins * outs for rows, ins, outs in shapes) == 1024 * model.layer_matmul_params


@given(st.floats(1e-9, 1e17), st.sampled_from(("B", "B/s", "FLOP/s", "s")))
def test_quantities_are_read_back(value: float, name: str) -> None:
    kinds = {"B": "bytes", "B/s": "bytes/s", "FLOP/s": "FLOP/s", "s": "seconds"}
    text = quantity(value, name)
    assert parse("x", text, kinds[name]) == pytest.approx(value, rel=0.0051)
    assert len(text.partition(" ")[0]) <= 5


def test_the_sheet_is_the_cluster() -> None:
    survey, _ = surveyed()
    where = Circumstances("the command", "2020-01-02", survey.gauge.abouts, survey.gauge.others)
    text = sheet('a "name"', survey.subject, survey.figures, where)
    made = instantiate(OmegaConf.create(text))
    assert (made.name, made.num_ranks, made.num_nics, made.device.name) == ('a "name"', 8, 4, "made up")
    for name, figure in survey.figures.items():
        assert getattr(made if hasattr(made, name) else made.device, name) == pytest.approx(figure.value, rel=0.0051)
        (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{name}: ")]
        assert f"{written(name, figure.value)} # measured: {figure.of}" in line
    assert "the command" in text
    assert "2020-01-02" in text
    assert "25% while links were measured (of all cores); measure again when they are idle." in text
    idle = replace(where, others={"links": 0.1})
    assert "measure again" not in sheet("idle", survey.subject, survey.figures, idle)
    assert "take the same way" in text  # two nodes on one host


CURVED = replace(
    DEVICE,
    **{name: {128: 1e10, 512: 2e10 - at * 1e9, 4096: 4e10} for at, name in enumerate(CURVES)},
    matmul_by_tokens={"small": {64: 1e10, 4096: 4e10}},
)


def test_the_curves_of_a_described_machine_are_found_again() -> None:
    subject = Subject(MODEL, 1, 1, 1, 4096, "auto")
    fleet = Described(Cost(replace(CLUSTER, device=CURVED), MODEL), subject, num_ranks=1)
    gauge = Gauge(fleet, 5.0, lambda line: None)  # type: ignore[arg-type]
    known = {
        name: getattr(CURVED, name)
        for name in (
            "peak_flops",
            "memory_bytes",
            "copy_bandwidth",
            "strided_rate",
            "matmul_flops",
            "kernel_seconds",
            "call_seconds",
        )
    }
    curves = Curves(gauge, subject, known, [MODEL])
    curves.take()
    for name in CURVES:
        sizes = np.array(sorted(curves.found[name]), np.float64)
        rates = [curves.found[name][int(size)] for size in sizes]
        assert rates == pytest.approx(1 / getattr(CURVED, name).seconds(sizes), rel=1e-6)
        assert sizes[0] == 128
        assert sizes[-1] > 1000
    tokens = np.array(sorted(curves.matmuls["small"]), np.float64)
    expected = 1 / CURVED.matmul_by_tokens["small"].seconds(tokens)
    assert list(curves.matmuls["small"].values()) == pytest.approx(expected)
    others = [point for point in curves.points if point.predicted is not None]
    assert {point.call.causal for point in others} == {True, False}
    assert any(point.call.queries < point.call.keys for point in others)
    assert any(point.call.queries > point.call.keys for point in others)
    assert any(point.call.segments == 1 for point in others)
    assert max(curves.errors()) < 0.05  # between the sizes that were measured


def test_the_device_sheet_is_the_device() -> None:
    subject = Subject(MODEL, 1, 1, 1, 1024, "auto", peak_flops=5e15)
    fleet = Described(Cost(replace(CLUSTER, device=CURVED), MODEL), subject, num_ranks=1)
    gauge = Gauge(fleet, 1.0, lambda line: None)  # type: ignore[arg-type]
    figures = Survey(gauge, subject).take(links=False)
    curves = Curves(gauge, subject, {name: figure.value for name, figure in figures.items()}, [MODEL])
    curves.take()
    text = device_sheet(subject, figures, curves, Circumstances("the command", "2020-01-02", gauge.abouts, {}))
    made = instantiate(OmegaConf.create(text), _convert_="all")
    assert isinstance(made, Device)
    assert made.peak_flops == 5e15
    assert "NOT measured: as given by --peak; measured were 90 GFLOP/s" in text
    assert "driver 1.2, CUDA 3" in text
    assert made.multiprocessors == 132
    for name in CURVES:
        assert getattr(made, name).rates == pytest.approx(
            [curves.found[name][int(size)] for size in getattr(made, name).sizes], rel=0.006
        )
    assert list(made.matmul_by_tokens) == ["small"]


# -- for real -----------------------------------------------------------------------------------------
@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench.calibrate", *arguments])
    return __main__.main()


def test_two_ranks_measure_and_the_simulator_runs_on_what_they_wrote(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine" / "cluster").mkdir(parents=True)
    assert call(monkeypatch, "--nodes", "1", *TINY, "-o", "mine/cluster/measured.yaml") == 0
    out, err = capsys.readouterr()
    assert out == "Wrote mine/cluster/measured.yaml\n"
    assert all(line.startswith("calibrate: ") for line in err.splitlines())
    assert [path.name for path in (here / "mine" / "cluster").iterdir()] == ["measured.yaml"]
    text = Path("mine/cluster/measured.yaml").read_text()
    made = instantiate(OmegaConf.create(text))
    assert isinstance(made, Cluster)  # which takes positive numbers only
    assert made.num_ranks == 2
    assert text.count("# measured: ") == 11
    assert text.count("# NOT measured: there is one node") == 3
    assert "nvlink_channels: 1 # NOT measured: there is one peer inside a node\n" in text
    assert made.device.matmul_flops < 1e13
    assert 1e-6 < made.nvlink_latency < 1
    arguments = ["system=ring", "cluster=measured", "model=tiny", "steps=1", "tracker=none", "baseline=null", "out=r"]
    monkeypatch.setattr(sys, "argv", ["zbench", "--config-dir", "mine", *arguments])
    assert zbench.__main__.main() == 0
    assert "SIMULATED on measured: 1 node x 2" in capsys.readouterr().out


def test_four_ranks_measure_one_peer_and_all_of_them(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--nodes", "2", "--gpus-per-node", "2", "--nics-per-node", "2", "--seconds", "0.02", "--tokens", "64"]
    assert call(monkeypatch, *asked, "-o", "mine.yaml") == 0
    text = Path("mine.yaml").read_text()
    made = instantiate(OmegaConf.create(text))
    assert 1 <= made.nic_channels <= 32
    assert made.nvlink_channels == 1
    (told,) = [line for line in text.splitlines() if line.startswith("nic_channels: ")]
    one, together, routed = rates_told(told)
    assert max(one, together) == pytest.approx(made.nic_bandwidth)
    assert made.nic_channels == max(round(together / one), 1)
    assert routed > 0


def test_one_rank_measures_a_device_with_curves(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--only-device", "--device", "cpu", "--tokens", "256", "--matmuls", "tiny,desk", "-o", "mine.yaml"]
    for seconds in ("0.004", "0.03", "0.2"):  # where others keep the processors busy, it asks for longer windows
        rc = call(monkeypatch, *asked, "--seconds", seconds, "--points", "points.jsonl")
        out, err = capsys.readouterr()
        assert rc == 0 or f"--seconds is {seconds} and has to be longer" in err
        if rc == 0:
            break
    assert (rc, out) == (0, "Wrote mine.yaml\n")
    made = instantiate(OmegaConf.load("mine.yaml"), _convert_="all")
    assert isinstance(made, Device)
    assert set(made.matmul_by_tokens) == {"tiny", "desk"}
    assert made.attention(True) is not None
    points = [json.loads(line) for line in Path("points.jsonl").read_text().splitlines()]
    assert {(point["causal"], point["backward"]) for point in points} >= {
        (a, b) for a in (True, False) for b in (True, False)
    }


def test_a_rank_that_fails_leaves_the_old_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = "# Measured by zbench.calibrate\n"
    Path("old.yaml").write_text(old)
    assert call(monkeypatch, "--nodes", "1", *TINY, "--kernel", "flash-attn-2", "-o", "old.yaml") == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "executor.kernel is 'flash-attn-2'" in err
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("old.yaml", old)]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing(here: Path) -> None:
    command = [sys.executable, "-m", "zbench.calibrate", "--nodes", "1", *TINY, "-o", "new.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("calibrate: 2 ranks")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "zbench: stopped; nothing is written"
    assert not list(here.iterdir())
    with pytest.raises(ProcessLookupError):  # nobody of the group is left
        os.killpg(process.pid, 0)


# -- mistakes -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--nodes has to be given, as in --nodes 2"),
        (["--nodes", "2"], "--gpus-per-node has to be given"),
        (["--nodes", "two", *TINY], "argument --nodes: invalid int value: 'two' (see --help)"),
        (["--nodes", "0", *TINY], "--nodes is 0; it takes a whole number of at least 1"),
        (["--nodes", "1", *TINY, "--tokens", "-1"], "--tokens is -1; it takes a whole number of at least 1"),
        (["--nodes", "1", *TINY, "--nics-per-node", "3"], "--nics-per-node is 3; at most one per GPU"),
        (["--nodes", "1", *TINY, "--seconds", "nan"], "--seconds is nan; it takes a number above 0"),
        (["--nodes", "1", *TINY, "--model", "tinny"], "model is 'tinny'; it takes one of"),
        (["--nodes", "1", *TINY, "--kernel", "best"], "argument --kernel: invalid choice: 'best'"),
        (["--nodes", "1", *TINY, "--nope"], "unrecognized arguments: --nope (see --help)"),
        (["--nodes", "1", "--only-device"], "--only-device is of one rank that it starts itself; it takes no --nodes"),
        (["--nodes", "1", *TINY, "--points", "p"], "--points is p; it belongs to --only-device"),
        (["--only-device", "--device", "cuda"], "--device is cuda; torch finds no CUDA device on this machine"),
        (["--only-device", "--peak", "9 GB/s"], "--peak is '9 GB/s'; it takes FLOP/s"),
        (["--nodes", "1", *TINY, "-o", "x.json"], "-o is 'x.json'; it takes a file that ends in .yaml"),
        (["--nodes", "1", *TINY, "-o", "no/x.yaml"], "-o is 'no/x.yaml'; its folder no does not exist"),
        (["--only-device", "--points", "no/p"], "--points is 'no/p'; its folder no does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], told: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("zbench: ")
    assert told in err
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("nodes", "gpus", "num_local", "shape"),
    [
        (None, None, 4, "(2, 4)"),
        (2, None, 4, "(2, 4)"),
        (None, 4, None, "(2, 4)"),
        (2, 4, None, "(2, 4)"),
        (4, 2, 8, "(4, 2)"),  # nodes of one machine
        (None, None, None, "--nodes has to be given"),
        (None, 3, 4, "--nodes x --gpus-per-node is 6; 8 processes were started"),
        (0, None, 4, "--nodes is 0; it takes a whole number of at least 1"),
        (2, -1, 4, "--gpus-per-node is -1; it takes a whole number of at least 1"),
        (4, 2, 4, "--gpus-per-node is 2; 4 processes were started on each machine"),
    ],
)
def test_processes_already_started_say_the_shape(
    nodes: int | None, gpus: int | None, num_local: int | None, shape: str
) -> None:
    world = ProcessPlace(0, 8, 0, num_local, "host", 29500, True, "0", False)
    asked = argparse.Namespace(nodes=nodes, gpus_per_node=gpus, only_device=False, matmuls=None, points=None)
    if shape.startswith("("):
        assert str(__main__.asked_shape(asked, world)) == shape
    else:
        with pytest.raises(ValueError, match=shape):
            __main__.asked_shape(asked, world)


def test_elements_that_nothing_computes_with_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model.element_bytes is 3; measuring takes 2 \(bfloat16\), 4"):
        Subject(replace(MODEL, element_bytes=3), 1, 1, 1, 64, "auto")
