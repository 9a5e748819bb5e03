"""Compiled functions on disk that are older than what they call: where numba keeps them, and when it compiles anew.

numba compiles a function anew where its own file has changed. A compiled function holds copies of what it calls and of
constants, so where only their file has changed (a pull, a checkout, an edit), new sources would give old numbers,
silently. Here a function is of the state of all files that it has functions or constants from, by itself or through
others. numba uses these classes where NUMBA_CACHE_LOCATOR_CLASSES names them, which importing zbench sees to.

Compiled functions of several processes have to go together, too. numba tells functions of one name and type apart by a
number, which every process counts from 1, and what is on disk keeps its number: of two functions inside numba with the
same number, as a sort's and an argsort's loop, a process that loads both calls the first for the second (wrong plans,
or a crash). Here no two of them have the same number, in whatever process they were compiled.
"""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from numba.core import bytecode, caching

PACKAGE = Path(__file__).resolve().parents[1]
NAMING = b"numbers of no order"  # of compiled functions: what was compiled under another one is not used
FOLDERS = (".", "systems", "workloads")  # the last two are links in a checkout
_IMPORT = re.compile(r"^(?:from ([\w.]+) import (\(|[\w, ]+)|import ([\w.]+))", re.MULTILINE)


class _Numbers:
    """Numbers of functions that are compiled, which no other process has, not even one that this one forks."""

    def __next__(self) -> int:
        return uuid4().int >> 64


_IDENTITY: Any = bytecode.FunctionIdentity  # Any, as numba's own types have a count there
_IDENTITY._unique_ids = _Numbers()


class _Stamped:
    """A locator's stamp, which has to be the same for a compiled function to be used again.

    Files are named with it, too: numba reads an index before it compares the stamp inside, and an index may hold
    classes (a NamedTuple that a function takes) that a later state of the sources does not have.
    """

    _py_file: str

    def get_source_stamp(self) -> bytes:
        return _stamp(Path(self._py_file).resolve())

    def get_disambiguator(self) -> str:
        return f"{super().get_disambiguator()}-{self.get_source_stamp().hex()[:8]}"  # type: ignore[misc]


@cache
def _stamp(own: Path) -> bytes:
    digest = hashlib.sha256(NAMING)
    for path in sorted(reached(own, _known(PACKAGE))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


class Provided(_Stamped, caching.UserProvidedCacheLocator):
    """Keeps compiled functions in NUMBA_CACHE_DIR."""


class InTree(_Stamped, caching.InTreeCacheLocator):
    """Keeps compiled functions beside the sources."""


class UserWide(_Stamped, caching.UserWideCacheLocator):
    """Keeps compiled functions in the user's cache folder, where the sources' cannot be written."""


@cache
def _known(package: Path) -> "Sources":
    return Sources(package)


class Sources:
    """The files of zbench, in the folder `package`, each with those that it has compiled functions or constants from.

    Links are resolved. A file is read when it is asked for: compiled functions come from a seventh of them.

    Imports count at the top of a file, and constants by name: those of a module without compiled functions that are
    used as `module.NAME` are not seen.
    """

    def __init__(self, package: Path) -> None:
        self._package = package
        self._folders = [(package / folder).resolve() for folder in FOLDERS]
        self._modules: dict[str, Path | None] = {}
        self._texts: dict[Path, str] = {}
        self._found: dict[Path, set[Path]] = {}

    def imports(self, path: Path) -> set[Path]:
        """Lists what the imports of a file may bring, nothing of one that is not zbench's: `from a import b` may mean
        the module a.b, or what a has; what is in capitals is a constant."""
        if path not in self._found:
            mine = any(path.is_relative_to(folder) for folder in self._folders)
            self._found[path] = self._imported(path) if mine else set()
        return self._found[path]

    def _imported(self, path: Path) -> set[Path]:
        found: set[Path] = set()
        for module, names, plain in _IMPORT.findall(self._text(path)):
            known = [name.split(" as ")[0].strip() for name in names.split(",")]
            constants = names == "(" or any(name.isupper() for name in known)
            for one in (module, plain, *(f"{module}.{name}" for name in known)):
                other = self._file(one)
                if other is not None and (constants or "numba" in self._text(other)):
                    found.add(other)
        return found

    def _file(self, module: str) -> Path | None:
        """Returns the file of a module of zbench's, None where there is none, as of a package."""
        if module not in self._modules:
            first, *rest = module.split(".")
            path = self._package.joinpath(*rest).with_suffix(".py")
            self._modules[module] = path.resolve() if first == "zbench" and rest and path.is_file() else None
        return self._modules[module]

    def _text(self, path: Path) -> str:
        if path not in self._texts:
            self._texts[path] = path.read_text(encoding="utf-8")
        return self._texts[path]


def reached(path: Path, known: Sources) -> set[Path]:
    """Returns the file itself and all that it depends on."""
    found, left = {path}, [path]
    while left:
        new = known.imports(left.pop()) - found
        found |= new
        left += new
    return found
