"""What a checkpoint's folder says, and what is never done to it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.runtime.checkpoints.folder import (
    LAYOUT,
    META,
    PART,
    Hold,
    aside,
    check_files,
    check_free,
    check_replaceable,
    checkpoint_description,
    complete_folder,
    remove,
    unfinished,
)
from zbench.runtime.checkpoints.manifest import entries, sealed


def checkpoint(folder: Path, step: int, **run: object) -> str:
    folder.mkdir()
    names = [".metadata", "__0_0.distcp", LAYOUT]
    for name in names:
        (folder / name).write_text(f"{name} of step {step}")
    (folder / META).write_text(sealed({"next_step": step, "run": run}, entries(folder, names)))
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


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", LAYOUT, "zbench.json"])
def test_what_torch_or_another_program_saved_is_not_replaced(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / name).write_text("{}")
    with pytest.raises(ValueError, match=r"executor.checkpoint is .*theirs holds files that no zbench wrote"):
        check_free(str(folder))
    with pytest.raises(ValueError, match=r"would replace .*, which holds files that no zbench wrote"):
        check_replaceable(folder)
    folder.rename(aside(str(tmp_path / "mine")))
    with pytest.raises(ValueError, match=r"mine.old holds files that no zbench wrote"):
        check_free(str(tmp_path / "mine"))


def test_a_checkpoint_of_an_older_zbench_can_be_replaced(tmp_path: Path) -> None:
    checkpoint(tmp_path / "point", 1)
    (tmp_path / "point" / META).write_text(OLD)
    check_free(str(tmp_path / "point"))
    check_replaceable(tmp_path / "point")


def test_what_is_unfinished_is_replaced_where_it_is_a_checkpoint_s(tmp_path: Path) -> None:
    path, theirs = str(tmp_path / "point"), unfinished(str(tmp_path / "point"))
    theirs.mkdir()
    check_free(path)
    (theirs / "__0_0.distcp").write_text("all of it")  # as torch saves it
    with pytest.raises(ValueError, match=r"executor.checkpoint is .*point.unfinished holds files that no zbench wrote"):
        check_free(path)
    (theirs / PART).touch()
    check_free(path)
    (theirs / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match=r"point.unfinished holds something else than a checkpoint"):
        check_free(path)


def test_another_program_s_lock_is_left_alone(tmp_path: Path) -> None:
    """checkpoint=poetry has its lock in poetry.lock."""
    (tmp_path / "poetry.lock").write_text("all of it")
    with pytest.raises(ValueError, match=r"executor.checkpoint is .*; .*poetry.lock is no lock of zbench's"):
        Hold.of(str(tmp_path / "poetry"))
    assert (tmp_path / "poetry.lock").read_text() == "all of it"
    os.mkfifo(tmp_path / "pipe.lock")
    with pytest.raises(ValueError, match="is no lock of zbench's"):
        Hold.of(str(tmp_path / "pipe"))


def test_a_pipe_is_no_manifest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / META)
    with pytest.raises(ValueError, match="it takes the folder of a checkpoint"):
        checkpoint_description(str(tmp_path))


def test_a_checkpoint_that_stepped_aside_is_found(tmp_path: Path) -> None:
    """A run died after the old one gave way and before the new one took its place."""
    path = str(tmp_path / "point")
    checkpoint(aside(path), 4)
    checkpoint(unfinished(path), 6)
    assert complete_folder(path) == aside(path)
    assert checkpoint_description(path)["next_step"] == 4
    checkpoint(Path(path), 6)
    assert checkpoint_description(path)["next_step"] == 6


OLD = json.dumps({"next_step": 2, "run": {}})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it takes the folder of a checkpoint"),
        ("[1]", "it takes the folder of a checkpoint"),
        ("[" * 100_000, "it takes the folder of a checkpoint"),
        (OLD, "was written by an older zbench, without digests of its files, and cannot be checked"),
        (sealed({"next_step": 2, "run": {}}, {}), "is not one of a checkpoint"),
        *(
            (
                sealed({"next_step": step, "run": {}}, {LAYOUT: {}}),
                rf"next_step in its zbench.json is {text}; it has to be a whole number of at least 0",
            )
            for step, text in (("2", "'2'"), (-5, "-5"), (True, "True"), (2.0, "2.0"), (None, "None"))
        ),
        (sealed({"next_step": 2}, {LAYOUT: {}}), "is not one of a checkpoint"),
        (
            sealed({"next_step": 2, "run": {}}, {LAYOUT: {}}).replace("2", "3", 1),
            "zbench.json is not as it was written",
        ),
    ],
)
def test_what_is_no_checkpoint_is_told(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / META).write_text(text)
    with pytest.raises(ValueError, match=f"^resume is '{tmp_path}'; .*{reason}$"):
        checkpoint_description(str(tmp_path))


def flip(path: Path) -> None:
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def relink(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def repipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DATA = "__0_0.distcp"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda folder: flip(folder / DATA), "has __0_0.distcp with other content than was written"),
    "flipped layout": (lambda folder: flip(folder / LAYOUT), "has layout.json with other content than was written"),
    "truncated": (lambda folder: os.truncate(folder / DATA, 3), "has __0_0.distcp with 3 bytes, and 22 were written"),
    "empty": (lambda folder: os.truncate(folder / ".metadata", 0), "has .metadata with 0 bytes, and 19 were written"),
    "missing": (lambda folder: (folder / DATA).unlink(), "lacks __0_0.distcp"),
    "extra": (lambda folder: (folder / "__1_0.distcp").touch(), "has '__1_0.distcp', which its run did not write"),
    "link": (lambda folder: relink(folder / LAYOUT), "has layout.json, which is no file"),
    "pipe": (lambda folder: repipe(folder / LAYOUT), "has layout.json, which is no file"),
    "of another step": (
        lambda folder: (folder / LAYOUT).write_text("layout.json of step 7"),
        "has layout.json with other content than was written",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_by_the_file_s_name(damage: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "point", 6)
    check_files(path)
    damages, reason = DAMAGE[damage]
    damages(tmp_path / "point")
    with pytest.raises(ValueError, match=f"^resume is '{path}'; its checkpoint {reason}$"):
        check_files(path)


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
