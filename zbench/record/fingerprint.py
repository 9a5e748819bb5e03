"""The fingerprint of a run: what its numbers depend on besides its configuration, sources and versions. No torch, no
hydra."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_DRAWING = ("zbench/figures", "zbench/report")  # draw what others recorded: no run depends on them
_PATHS = ("zbench", "systems", "workloads", "conf", *(f":!{path}" for path in _DRAWING))  # as git takes them
# As the package has them: in a checkout these folders are links to those at its top, in a wheel they are its own.
_SOURCES = ("zbench/**/*.py", "zbench/systems/**/*.py", "zbench/workloads/**/*.py", "zbench/conf/**/*.yaml")


def fingerprint(root: Path = ROOT) -> dict[str, Any]:
    """Returns the commit (None outside a git checkout), whether sources were changed since, source digest, versions."""
    commit = _commit(root)
    return {
        "commit": commit,
        "dirty": bool(_git(root, "status", "--porcelain", "--", *_PATHS)) if commit else None,
        "sources": source_digest(root),
        "python": platform.python_version(),
        **versions(("zbench", "numpy", "numba")),
        "platform": platform.platform(),
        "processor": cpu_name(),
        "cores": os.cpu_count(),
    }


def cpu_name() -> str:
    """Names the processor as Linux does; one without a model name is just a CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def source_digest(root: Path = ROOT) -> str:
    """Names the program by the content of its sources and yamls, committed or not, that runs depend on."""
    digest, drawing = hashlib.sha256(), {root / path for path in _DRAWING}
    paths = {path for pattern in _SOURCES for path in root.glob(pattern) if not drawing & set(path.parents)}
    for path in sorted(paths):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def own_digest() -> str:
    """Returns the source digest of the program that this process runs, read once: it runs what it has loaded."""
    return source_digest()


def _commit(root: Path) -> str | None:
    """Returns the commit checked out at `root`; None if `root` merely lies inside somebody else's checkout."""
    answer = (_git(root, "rev-parse", "--show-toplevel", "HEAD") or "").split("\n")
    return answer[1] if len(answer) == 2 and Path(answer[0]).resolve() == root.resolve() else None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Looks up the versions of installed distributions; None for one that is missing."""
    return {name: _version(name) for name in packages}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
