"""What the kernel says of threads that wait for a processor."""

from pathlib import Path

import pytest

from zbench.runtime.network import lateness
from zbench.runtime.network.lateness import Lateness


def test_the_threads_of_gloo_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for task, name, waited in (("1", "python", 9), ("2", "gloo_tcp_loop", 3), ("3", "gloo_tcp_loop", 4)):
        (tmp_path / task).mkdir()
        (tmp_path / task / "comm").write_text(f"{name}\n")
        (tmp_path / task / "schedstat").write_text(f"7 {waited * 10**9} 1\n")
    monkeypatch.setattr(lateness, "_TASKS", tmp_path)
    found = Lateness()
    found.begin()
    assert found.seconds() == 0
    (tmp_path / "3" / "schedstat").write_text("8 4500000000 2\n")
    assert found.seconds() == pytest.approx(0.5)
