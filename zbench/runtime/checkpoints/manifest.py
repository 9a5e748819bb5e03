"""A checkpoint's manifest: the size and digest of every file beside it, so that nothing is read that has changed.

It protects from a disk's or a copy's mistakes, and from mixing two checkpoints. Whoever changes files on purpose can
change the manifest, too; what they then cannot do is told in zbench.runtime.checkpoints.layout. Torch-free.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AT_ONCE = 8  # files looked at; each takes a core or a disk's queue
FILES, SEAL = "files", "sha256"

Entry = dict[str, Any]  # "bytes" and "sha256" of a file


class Changed(ValueError):
    """A checkpoint is not as it was written; the message is the end of a sentence, and names the file."""


def entries(folder: Path, names: Iterable[str]) -> dict[str, Entry]:
    """Returns the entries of a manifest for files: their sizes and digests."""
    names = list(names)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(lambda name: _entry(folder / name), names), strict=True))


def sealed(meta: Mapping[str, Any], files: Mapping[str, Entry]) -> str:
    """Returns the text of a manifest: `meta`, the files, and the digest of both."""
    whole = json.loads(json.dumps({**meta, FILES: files}))  # as it is read again: keys are text, tuples are lists
    return json.dumps({**whole, SEAL: _seal(whole)})


def open_manifest(text: str) -> dict[str, Any]:
    """Returns a manifest's content, as sealed() took it, with "files".

    Raises:
        ValueError: it is no manifest. Changed: it is not as it was written.
    """
    whole = json.loads(text)
    if not isinstance(whole, dict):
        raise ValueError("no object")
    if SEAL not in whole or not isinstance(whole.get(FILES), dict):
        raise Changed("was written by an older zbench, without digests of its files, and cannot be checked")
    if whole.pop(SEAL) != _seal(whole):
        raise Changed("is not as it was written")
    return whole


def check(folder: Path, files: Mapping[str, Entry], others: Collection[str]) -> None:
    """Compares a folder with its manifest, digests included. others: names that are no files of the manifest's.

    Raises:
        Changed: a file is missing, is there in addition, or has another content.
    """
    there = {path.name for path in folder.iterdir()} - set(others)
    if missing := sorted(files.keys() - there):
        raise Changed(f"lacks {missing[0]}")
    if added := sorted(there - files.keys()):
        raise Changed(f"has {added[0]!r}, which its run did not write")
    for name, entry in files.items():
        if not (folder / name).is_file() or (folder / name).is_symlink():
            raise Changed(f"has {name}, which is no file")
        if (size := (folder / name).stat().st_size) != entry.get("bytes"):
            raise Changed(f"has {name} with {size} bytes, and {entry.get('bytes')} were written")
    for name, entry in entries(folder, files).items():
        if entry != files[name]:
            raise Changed(f"has {name} with other content than was written")


def _entry(path: Path) -> Entry:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": digest}


def _seal(whole: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
