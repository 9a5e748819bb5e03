"""A checkpoint's folder, as seen without torch: what it says of its run, and what may be done to it."""

import fcntl
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbench.describe.checks import is_whole
from zbench.record.fields import shortened
from zbench.runtime.checkpoints.manifest import FILES, Changed, check, open_manifest

META, LAYOUT = "zbench.json", "layout.json"
PART = f"{META}.part"  # the first file of a checkpoint that is being written; it becomes META when all others are there
_OURS = (META, PART, LAYOUT, ".metadata", ".metadata.tmp", "__*_*.distcp")
_META_BYTES = 1 << 28  # far more than any manifest has


def unfinished(path: str) -> Path:
    """Returns the folder in which a checkpoint is written, until it is whole."""
    return Path(f"{path}.unfinished")


def aside(path: str) -> Path:
    """Returns the folder to which the checkpoint before steps aside."""
    return Path(f"{path}.old")


def complete_folder(path: str) -> Path:
    """Returns the folder that holds the checkpoint `path`: the one that stepped aside where a run died in between."""
    return aside(path) if not (Path(path) / META).is_file() and (aside(path) / META).is_file() else Path(path)


def checkpoint_description(path: str) -> dict[str, Any]:
    """Reads what a checkpoint says of itself: "next_step", "run" (what its run was, by name), "files" (its manifest).

    Raises:
        ValueError: there is no checkpoint, or what it says of itself has changed since.
    """
    try:
        meta = open_manifest(_text(complete_folder(path) / META))
    except Changed as error:
        raise ValueError(f"resume is {path!r}; its {META} {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"resume is {path!r}; it takes the folder of a checkpoint") from error
    files, step = meta[FILES], meta.get("next_step")
    if not is_whole(step) or step < 0:
        raise ValueError(
            f"resume is {path!r}; next_step in its {META} is {shortened(step)}; "
            "it has to be a whole number of at least 0"
        )
    if not (
        isinstance(meta.get("run"), dict)
        and all(isinstance(entry, dict) for entry in files.values())
        and LAYOUT in files
    ):
        raise ValueError(f"resume is {path!r}; its {META} is not one of a checkpoint")
    return meta


def check_files(path: str) -> None:
    """Reads all of a checkpoint's files and compares them with its manifest.

    Raises:
        ValueError: one is not as it was written; the message names it.
    """
    files = checkpoint_description(path)[FILES]
    try:
        check(complete_folder(path), files, (META,))
    except Changed as error:
        raise ValueError(f"resume is {path!r}; its checkpoint {error}") from error
    except OSError as error:
        raise ValueError(f"resume is {path!r}; its checkpoint cannot be read: {error.strerror}") from error


def check_free(path: Any) -> None:
    """Refuses a folder that checkpoints must not replace.

    Raises:
        ValueError: it is no path, its parent cannot be written to, or it holds something else than a checkpoint.
    """
    if not isinstance(path, str) or not path:
        raise ValueError(f"executor.checkpoint is {path!r}; it takes the name of a folder")
    for folder in (Path(path), unfinished(path), aside(path)):
        if folder.exists() and (not folder.is_dir() or strangers(folder)):
            raise ValueError(f"executor.checkpoint is {path!r}; {folder} holds something else than a checkpoint")
        if not _replaceable(folder):
            raise ValueError(f"executor.checkpoint is {path!r}; {folder} holds files that no zbench wrote")
    parent = Path(path).absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not _writable(parent):
        raise ValueError(f"executor.checkpoint is {path!r}; {parent} cannot be written to")


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold on a folder, the right to write its checkpoint: two runs at once would mix their files. Ends with the
    process.

    A lock on a file beside the folder; a file system without locks gives it to all.
    """

    path: Path
    descriptor: int

    @staticmethod
    def of(path: str) -> "Hold":
        """Takes the right to write to the folder `path`, until end() or the process ends.

        Raises:
            ValueError: another run has it, or the file cannot be made.
        """
        file = Path(f"{path}.lock")
        while True:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                hold = Hold(file, os.open(file, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666))
            except OSError as error:
                raise ValueError(
                    f"executor.checkpoint is {path!r}; {file} cannot be written: {error.strerror}"
                ) from error
            found = os.fstat(hold.descriptor)
            if found.st_size or not stat.S_ISREG(found.st_mode):  # a package manager's, perhaps
                os.close(hold.descriptor)
                raise ValueError(f"executor.checkpoint is {path!r}; {file} is no lock of zbench's")
            try:
                fcntl.flock(hold.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(hold.descriptor)
                raise ValueError(
                    f"executor.checkpoint is {path!r}; another run is writing its checkpoints there"
                ) from error
            except OSError:
                return hold
            if file.exists() and file.stat().st_ino == os.fstat(hold.descriptor).st_ino:
                return hold
            os.close(hold.descriptor)  # whoever had it removed it just then

    def end(self) -> None:
        """Gives the right back."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def strangers(folder: Path) -> list[str]:
    """Lists names in a folder that no checkpoint has."""
    ours = {path.name for pattern in _OURS for path in folder.glob(pattern)}
    return sorted(path.name for path in folder.iterdir() if path.name not in ours)


def check_replaceable(folder: Path) -> None:
    """Refuses to let a new checkpoint take the place of a folder that holds something else.

    Raises:
        ValueError: it does; the message says what.
    """
    if found := strangers(folder):
        raise ValueError(f"executor.checkpoint would replace {folder}, which holds {found[0]!r}")
    if not _replaceable(folder):
        raise ValueError(f"executor.checkpoint would replace {folder}, which holds files that no zbench wrote")


def remove(folder: Path) -> None:
    """Removes a checkpoint's files and its folder, and nothing else.

    Raises:
        ValueError: the folder holds something else.
    """
    if not folder.exists():
        return
    if found := strangers(folder):
        raise ValueError(f"executor.checkpoint would replace {folder}, which holds {found[0]!r}")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _replaceable(folder: Path) -> bool:
    """Returns whether a folder is not there, is empty, or holds a checkpoint of zbench's, old and unfinished ones
    included."""
    if not folder.exists() or not any(folder.iterdir()) or (folder / PART).is_file():
        return True
    try:
        meta = json.loads(_text(folder / META))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(meta, dict) and {"next_step", "run"} <= meta.keys()


def _text(path: Path) -> str:
    """Reads a manifest's text; of a pipe or a device, which would not end, nothing is read."""
    if not path.is_file() or path.stat().st_size > _META_BYTES:
        raise ValueError(f"{path} is no file")
    return path.read_text()


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
