"""What a checkpoint's folder says, and what is never done to it."""

import json
from pathlib import Path

import pytest

from zbench.runtime.folder import META, Hold, aside, check_free, check_same, remove, told, unfinished, whole


def checkpoint(folder: Path, step: int, **run: object) -> str:
    folder.mkdir()
    (folder / META).write_text(json.dumps({"next_step": step, "run": run}))
    (folder / ".metadata").write_text("")
    (folder / "__0_0.distcp").write_text("")
    return str(folder)


def test_a_folder_with_other_things_is_refused_and_never_removed(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    checkpoint(folder, 3)
    (folder / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match=r"executor.checkpoint is .* holds something else than a checkpoint"):
        check_free(str(folder))
    with pytest.raises(ValueError, match=r"holds .thesis"):
        remove(folder)
    assert (folder / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize("path", [None, "", 3])
def test_a_checkpoint_needs_a_name(path: object) -> None:
    with pytest.raises(ValueError, match="takes the name of a folder"):
        check_free(path)


def test_a_new_folder_and_an_old_checkpoint_are_free(tmp_path: Path) -> None:
    check_free(str(tmp_path / "new" / "deep"))
    check_free(checkpoint(tmp_path / "point", 1))
    remove(tmp_path / "point")
    assert not (tmp_path / "point").exists()


def test_a_checkpoint_that_stepped_aside_is_found(tmp_path: Path) -> None:
    """A run died after the old one gave way and before the new one took its place."""
    path = str(tmp_path / "point")
    checkpoint(aside(path), 4)
    checkpoint(unfinished(path), 6)
    assert whole(path) == aside(path)
    assert told(path)["next_step"] == 4
    checkpoint(Path(path), 6)
    assert told(path)["next_step"] == 6


def test_another_run_s_checkpoint_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "point", 2, seed=0, hidden=64)
    check_same(path, {"seed": 0, "hidden": 64})
    with pytest.raises(ValueError, match=r"resume is .*; its run had hidden 64, and this one has 128"):
        check_same(path, {"seed": 0, "hidden": 128})


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"next_step": 2}'])
def test_what_is_no_checkpoint_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / META).write_text(text)
    with pytest.raises(ValueError, match="resume is "):
        told(str(tmp_path))


def test_one_run_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "point")
    hold = Hold.of(path)
    with pytest.raises(ValueError, match=r"executor.checkpoint is .*; another run is writing its checkpoints there"):
        Hold.of(path)
    Hold.of(str(tmp_path / "other")).end()
    hold.end()
    Hold.of(path).end()
    assert list((tmp_path / "new").iterdir()) == []
    hold.path.touch()  # as a run that was killed leaves it
    Hold.of(path).end()
    with pytest.raises(ValueError, match=r"'/dev/null/x'; /dev/null/x.lock cannot be written: "):
        Hold.of("/dev/null/x")
