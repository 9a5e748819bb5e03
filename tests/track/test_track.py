"""A tracker never asks, never waits long, and never costs a run its numbers."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.record.test_record import write
from tests.record.test_rows import MINE, RING, run_of, start
from zbench import __main__ as zbench_main
from zbench.console.command import ran
from zbench.interfaces.protocols import Tracked
from zbench.record.record import read
from zbench.track import Careful, Nothing, TensorBoard, Wandb
from zbench.track import __main__ as track_main
from zbench.track import wandb as track


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.id, self.artifacts = "id", []
        self.code: int | None = None

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def log_artifact(self, artifact: "FakeArtifact") -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


class FakeArtifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.type, self.files = name, type, []

    def add_file(self, path: str) -> None:
        self.files.append(Path(path).read_text())


class FakeWandb(SimpleNamespace):
    """Stands for the module: what was asked of it, and whether it lets anybody online."""

    def __init__(self, online: bool = True) -> None:
        super().__init__(online=online, asked=[], run=FakeRun())

    Artifact = FakeArtifact

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def setup(self, settings: dict[str, Any]) -> None:
        assert settings["silent"]

    def init(self, **arguments: Any) -> FakeRun:
        self.asked.append(arguments)
        if arguments["mode"] == "online" and not self.online:
            raise ConnectionError("no entity\nof that name")
        return self.run


def tracked(name: str = "name", config: dict[str, Any] | None = None) -> Tracked:
    return Tracked("id", name, "sweep", "simulated", ("ring", "longtail"), config or {})


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No login of whoever runs the tests."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    return fake


def test_without_a_login_it_is_offline_and_asks_nobody(wandb: FakeWandb, tmp_path: Path) -> None:
    tracker = Wandb("zbench", "results")
    tracker.start(tracked("ring longtail", {"steps": 2}))
    tracker.log(0, {"mfu": 0.5})
    (tmp_path / "t.json").write_text("{}")
    tracker.attach("timeline", str(tmp_path / "t.json"))
    tracker.finish("finished", {"mfu": 0.4})
    (asked,) = wandb.asked
    assert (asked["mode"], asked["dir"], asked["name"]) == ("offline", "results", "ring longtail")
    assert (asked["id"], asked["resume"]) == ("id", "allow")
    assert (asked["group"], asked["job_type"], asked["tags"]) == ("sweep", "simulated", ["ring", "longtail"])
    assert asked["config"] == {"steps": 2, "run": "id"}
    assert [(one.name, one.type, one.files) for one in wandb.run.artifacts] == [("timeline-id", "timeline", ["{}"])]
    assert tracker.where() == "offline in results/wandb"
    assert wandb.run.logged == [(0, {"mfu": 0.5})]
    assert (wandb.run.code, wandb.run.summary) == (0, {"mfu": 0.4, "status": "finished"})
    assert (tmp_path / "results").is_dir()


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_did_not_finish_says_so(wandb: FakeWandb, status: str) -> None:
    tracker = Wandb("zbench", "results")
    tracker.finish(status, {})  # before any start: nothing to finish
    tracker.start(tracked())
    tracker.finish(status, {})
    assert (wandb.run.code, wandb.run.summary["status"]) == (1, status)


def test_logged_in_and_refused_it_goes_offline_once(
    wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k")
    monkeypatch.setattr(track, "server_answers", lambda server: True)
    wandb.online = False
    tracker = Wandb("zbench", "results")
    tracker.start(tracked("a"))
    tracker.start(tracked("b"))
    assert [asked["mode"] for asked in wandb.asked] == ["online", "offline", "offline"]
    assert capsys.readouterr().err == (
        "zbench: wandb does not answer (no entity); its runs are kept offline in results/wandb\n"
    )


def test_the_users_own_mode_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert track.wandb_mode() == "disabled"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert track.wandb_mode() == "offline"  # as nobody is logged in, and it would ask


def test_a_login_is_found_in_the_netrc_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not track.is_logged_in("https://api.wandb.ai")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert track.is_logged_in("https://api.wandb.ai")
    assert not track.is_logged_in("https://wandb.example.org")
    (tmp_path / "broken").write_text("machine machine machine")
    monkeypatch.setenv("NETRC", str(tmp_path / "broken"))
    assert not track.is_logged_in("https://api.wandb.ai")


@pytest.fixture
def mute_server() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_does_not_answer_is_not_waited_for(mute_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "_ANSWER_SECONDS", 0.2)
    assert not track.server_answers(mute_server)
    assert not track.server_answers("http://127.0.0.1:1")
    assert not track.server_answers("nonsense")
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.endswith("(ask)"):
            thread.join()


def test_any_failure_is_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Nothing):
        def log(self, step: int, metrics: Any) -> None:
            raise RuntimeError("kaputt\nand more")

    tracker = Careful(Broken())
    tracker.start(tracked())
    for step in range(3):
        tracker.log(step, {})
    tracker.attach("timeline", "t.json")
    tracker.finish("finished", {})
    assert capsys.readouterr().err == ("zbench: tracking stops, the run and its record go on: RuntimeError: kaputt\n")


def test_ctrl_c_is_not_swallowed() -> None:
    class Stopped(Nothing):
        def log(self, step: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Careful(Stopped()).log(0, {})


# -- tensorboard ----------------------------------------------------------------------------------
def events(folder: Path) -> EventAccumulator:
    (run,) = folder.iterdir()
    found = EventAccumulator(str(run))
    found.Reload()
    return found


def test_tensorboard_has_scalars_configuration_status_and_files(tmp_path: Path) -> None:
    tracker = TensorBoard("board")
    for _ in range(2):  # sent again: nothing is doubled
        tracker.start(tracked("ring a/b", {"steps": 2}))
        for step in range(2):
            tracker.log(step, {"mfu": 0.25 + step})
        (tmp_path / "t.json").write_text("{}")
        tracker.attach("timeline", str(tmp_path / "t.json"))
        tracker.curves(3, "NICs", 0.001, {"NIC 0 sends": [0.5, 1.0]})
        tracker.finish("finished", {"mfu": 0.5})
    found = events(tmp_path / "board")
    assert [(event.step, event.value) for event in found.Scalars("mfu")] == [(0, 0.25), (1, 1.25)]
    assert [event.value for event in found.Scalars("run/mfu")] == [0.5]
    curve = found.Scalars("NICs, step 3/NIC 0 sends")
    assert [(event.step, event.value) for event in curve] == [(0, 0.5), (1000, 1.0)]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in ("config", "status")}
    assert json.loads(texts["config"]) == {
        "steps": 2,
        "run": "id",
        "group": "sweep",
        "job_type": "simulated",
        "tags": ["ring", "longtail"],
    }
    assert texts["status"] == "finished"
    assert (tmp_path / "board" / "ring a-b, id" / "timeline.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["../../x", "/etc", "..", "a\0b\nc", "é" * 300, "x" * 1000, "", "<a href='//x'>"])
def test_whatever_a_run_is_called_it_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    tracker = TensorBoard(str(tmp_path / "board"))
    tracker.start(tracked(name))
    tracker.finish("finished", {})
    assert [path.name for path in tmp_path.iterdir()] == ["board"]
    (folder,) = (tmp_path / "board").iterdir()
    assert folder.name.endswith(", id")
    assert [path.is_file() for path in folder.iterdir()] == [True]


def test_other_files_in_a_run_s_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "name, id").mkdir()
    (tmp_path / "name, id" / "events.of-mine.txt").touch()
    (tmp_path / "name, id" / "events.out.tfevents.1").touch()
    tracker = TensorBoard(str(tmp_path))
    tracker.start(tracked())
    tracker.finish("finished", {})
    names = {path.name for path in (tmp_path / "name, id").iterdir()}
    assert "events.of-mine.txt" in names
    assert "events.out.tfevents.1" not in names


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^tracker.dir is '.*/file'; it cannot be written: "):
        TensorBoard(str(tmp_path / "file")).start(tracked())


@pytest.mark.parametrize(("tracker", "package"), [(Wandb, "wandb"), (TensorBoard, "tensorboard")])
def test_without_its_package_a_tracker_is_one_sentence(
    tracker: type, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}, which is not installed: pip install 'zbench\[track\]'"):
        tracker(*["x"] * (2 if tracker is Wandb else 1))


# -- sending recorded runs ------------------------------------------------------------------------
@pytest.fixture
def record(tmp_path: Path) -> str:
    path = tmp_path / "r.jsonl"
    for run in (run_of(start("a", RING), 6.0, 6.0), run_of(start("b", MINE), 2.0, 4.0)):
        assert run.end is not None
        write(path, run.start, *run.steps, run.end)
    return str(path)


def sync(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["track", "sync", *arguments])
    return track_main.main()


def test_sync_sends_every_step_and_the_figures_of_the_run(
    record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync(monkeypatch, record, "--tracker", "tensorboard", "--set", "dir=board") == 0
    assert capsys.readouterr().out == "2 runs sent; they are in board; tensorboard --logdir board shows them\n"
    found = EventAccumulator(str(tmp_path / "board" / "the_system the_workload the_cluster num_nodes=16, b"))
    found.Reload()
    assert [event.step for event in found.Scalars("step_seconds")] == [0, 1]
    assert [event.value for event in found.Scalars("run/speedup")] == [2.0]


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_run_whose_id_is_a_path_is_not_sent(
    tracker: str, record: str, tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(record).write_text(Path(record).read_text().replace('"run":"b"', '"run":"../../b"'))
    before = sorted(tmp_path.parent.iterdir())
    assert sync(monkeypatch, record, "--tracker", tracker, "--set", "dir=board") == 0
    assert sorted(tmp_path.parent.iterdir()) == before
    sent = [asked["id"] for asked in wandb.asked] or [path.name[-3:] for path in (tmp_path / "board").iterdir()]
    assert sent in (["a"], [", a"])


def test_sync_to_wandb_is_offline_without_a_login(
    record: str, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync(monkeypatch, record) == 0
    assert [(asked["mode"], asked["id"]) for asked in wandb.asked] == [("offline", "a"), ("offline", "b")]
    assert wandb.asked[0]["config"]["fingerprint"] == {"sources": "s"}
    assert wandb.run.summary["speedup"] == 2.0
    assert "2 runs sent; they are offline in results/wandb" in capsys.readouterr().out


def test_sync_sends_the_timeline_of_a_step_simulated_again(
    wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = [
        "tracker=none",
        "baseline=null",
        "model=tiny",
        "cluster=local_2x2",
        "workload=fixed",
        "workload.length=64",
        "tokens_per_gpu=64",
        "steps=1",
        "system=ring",
        "out=small.jsonl",
    ]
    monkeypatch.setattr(sys, "argv", ["zbench", *settings])
    assert zbench_main.main() == 0
    assert sync(monkeypatch, "small.jsonl", "--timeline") == 0
    (artifact,) = wandb.run.artifacts
    assert artifact.name == "timeline-id"
    assert '"simulated": true' in artifact.files[0]
    assert wandb.run.logged[0][1]["num_transfers"] == read("small.jsonl")[0][0].steps[0]["num_transfers"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["missing.jsonl"], "'missing.jsonl' cannot be read: No such file"),
        (["r.jsonl", "--tracker", "board"], "invalid choice: 'board'"),
        (["r.jsonl", "--timeline"], "run a cannot be made again from its record"),
        (["other.jsonl", "--timeline"], "run o names os.system, which is not part of zbench; --trust runs it"),
        (["r.jsonl", "--set", "colour=red"], "colour"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(
    arguments: list[str],
    reason: str,
    record: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"steps": 1, "seed": 0, "tokens_per_gpu": 8, "out": "o", "baseline": None, "trace": None, "rerun": True}
    run = run_of(start("o", RING), 6.0)
    run.start["config"] |= {**settings, "cluster": {"_target_": "os.system", "command": "touch PWNED"}}
    write(Path("other.jsonl"), run.start, *run.steps)
    monkeypatch.setattr(sys, "argv", ["track", "sync", *arguments])
    assert ran(track_main.main, "") == 2
    assert not Path("PWNED").exists()
    assert reason in capsys.readouterr().err.splitlines()[-1]
