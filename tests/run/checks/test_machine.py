"""What the machine says of itself."""

from pathlib import Path

import pytest

from zbench.run.checks.machine import cores, free_disk, free_memory


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [(None, None, 2048), ("max", "9", 2048), ("1000", "300", 700), ("9000", "0", 2048), ("10", "20", 0)],
)
def test_a_containers_limit_counts(limit: str | None, used: str | None, free: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2 kB\n")
    if limit is not None and used is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    assert free_memory(tmp_path / "meminfo", tmp_path) == free


def test_this_machine(tmp_path: Path) -> None:
    assert cores() >= 1
    assert free_memory() > 2**20
    assert free_disk(tmp_path / "new.jsonl") == free_disk(tmp_path / "other.jsonl") or free_disk(tmp_path / "new.jsonl")
    assert free_disk(Path("/dev/null")) is None
