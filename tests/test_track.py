"""A tracker never asks, never waits long, and never costs a run its numbers."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zbench import track
from zbench.track import Careful, Nothing, Wandb


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, str] = {}
        self.code: int | None = None

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


class FakeWandb(SimpleNamespace):
    """Stands for the module: what was asked of it, and whether it lets anybody online."""

    def __init__(self, online: bool = True) -> None:
        super().__init__(online=online, asked=[], run=FakeRun())

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def setup(self, settings: dict[str, Any]) -> None:
        assert settings["silent"]

    def init(self, **arguments: Any) -> FakeRun:
        self.asked.append(arguments)
        if arguments["mode"] == "online" and not self.online:
            raise ConnectionError("no entity\nof that name")
        return self.run


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
    tracker.start("id", "ring longtail", {"steps": 2})
    tracker.log(0, {"mfu": 0.5})
    tracker.finish("finished")
    (asked,) = wandb.asked
    assert (asked["mode"], asked["dir"], asked["name"]) == ("offline", "results", "ring longtail")
    assert asked["config"] == {"steps": 2, "run": "id"}
    assert wandb.run.logged == [(0, {"mfu": 0.5})]
    assert (wandb.run.code, wandb.run.summary) == (0, {"status": "finished"})
    assert (tmp_path / "results").is_dir()


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_did_not_finish_says_so(wandb: FakeWandb, status: str) -> None:
    tracker = Wandb("zbench", "results")
    tracker.finish(status)  # before any start: nothing to finish
    tracker.start("id", "name", {})
    tracker.finish(status)
    assert (wandb.run.code, wandb.run.summary["status"]) == (1, status)


def test_logged_in_and_refused_it_goes_offline_once(
    wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k")
    monkeypatch.setattr(track, "_answers", lambda server: True)
    wandb.online = False
    tracker = Wandb("zbench", "results")
    tracker.start("a", "a", {})
    tracker.start("b", "b", {})
    assert [asked["mode"] for asked in wandb.asked] == ["online", "offline", "offline"]
    assert capsys.readouterr().err == (
        "zbench: wandb does not answer (no entity); its runs are kept offline in results/wandb\n"
    )


def test_the_users_own_mode_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert track._mode() == "disabled"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert track._mode() == "offline"  # as nobody is logged in, and it would ask


def test_a_login_is_found_in_the_netrc_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not track._logged_in("https://api.wandb.ai")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert track._logged_in("https://api.wandb.ai")
    assert not track._logged_in("https://wandb.example.org")
    (tmp_path / "broken").write_text("machine machine machine")
    monkeypatch.setenv("NETRC", str(tmp_path / "broken"))
    assert not track._logged_in("https://api.wandb.ai")


@pytest.fixture
def mute_server() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_does_not_answer_is_not_waited_for(mute_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "_ANSWER_SECONDS", 0.2)
    began = time.monotonic()
    assert not track._answers(mute_server)
    assert not track._answers("http://127.0.0.1:1")
    assert not track._answers("nonsense")
    assert time.monotonic() - began < 2
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.endswith("(ask)"):
            thread.join()


def test_any_failure_is_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Nothing):
        def log(self, step: int, metrics: Any) -> None:
            raise RuntimeError("kaputt\nand more")

    tracker = Careful(Broken())
    tracker.start("id", "name", {})
    for step in range(3):
        tracker.log(step, {})
    tracker.finish("finished")
    assert capsys.readouterr().err == ("zbench: tracking stops, the run and its record go on: RuntimeError: kaputt\n")


def test_ctrl_c_is_not_swallowed() -> None:
    class Stopped(Nothing):
        def log(self, step: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Careful(Stopped()).log(0, {})
