"""Whether a tracker's package is there, told without importing it. Pure: no torch."""

import sys
from importlib.util import find_spec

EXTRA = "pip install 'zbench[track]'"


def installed(package: str) -> bool:
    """Whether `import package` would find one; a folder of that name that happens to lie here is none."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        spec = find_spec(package)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None


def check_installed(tracker: str, package: str) -> None:
    """Raises ValueError where the package of tracker=NAME is missing."""
    if not installed(package):
        raise ValueError(f"tracker is {tracker!r}; the package {package} is not installed: {EXTRA}, or tracker=none")
