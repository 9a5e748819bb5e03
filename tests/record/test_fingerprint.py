"""The source digest names the program by content; the commit is only told of the program's own checkout."""

import subprocess
from pathlib import Path

import pytest

from zbench.record.fingerprint import ROOT, fingerprint, source_digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("zbench/a.py", "systems/b.py", "workloads/c.py", "conf/system/d.yaml", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in ("systems", "workloads", "conf"):
        (tmp_path / "zbench" / name).symlink_to(f"../{name}")
    return tmp_path


def git(tree: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(tree), *name, *arguments], check=True, capture_output=True)


def test_the_digest_changes_with_every_source_and_with_nothing_else(tree: Path) -> None:
    before = source_digest(tree)
    (tree / "README.md").write_text("other")
    for drawing in ("figures", "report"):
        (tree / "zbench" / drawing).mkdir()
        (tree / "zbench" / drawing / "bars.py").touch()
    assert source_digest(tree) == before
    seen = {before}
    for name in ("zbench/a.py", "systems/b.py", "workloads/c.py", "conf/system/d.yaml"):
        (tree / name).write_text("other")
        seen.add(source_digest(tree))
    (tree / "zbench/deep").mkdir()
    (tree / "zbench/a.py").rename(tree / "zbench/deep/a.py")
    seen.add(source_digest(tree))
    assert len(seen) == 6


def test_commit_and_dirty(tree: Path) -> None:
    assert (fingerprint(tree)["commit"], fingerprint(tree)["dirty"]) == (None, None)
    git(tree, "init", "-q")
    assert fingerprint(tree)["commit"] is None
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "all")
    assert len(fingerprint(tree)["commit"]) == 40
    (tree / "record.jsonl").touch()
    for drawing in ("figures", "report"):
        (tree / "zbench" / drawing).mkdir()
        (tree / "zbench" / drawing / "bars.py").touch()
    assert fingerprint(tree)["dirty"] is False
    (tree / "systems/new.py").touch()
    assert fingerprint(tree)["dirty"] is True


def test_somebody_elses_checkout_is_not_ours(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "all")
    assert fingerprint(tree / "zbench")["commit"] is None


def test_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fingerprint()
    assert len(found["sources"]) == 64
    assert found["numpy"]
    assert (ROOT / "conf" / "config.yaml").is_file()
    monkeypatch.setenv("PATH", "")
    assert fingerprint()["commit"] is None
