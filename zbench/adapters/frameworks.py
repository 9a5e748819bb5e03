"""Finds the frameworks' modules, and puts a function of ours in place of one of theirs."""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any


def framework_module(name: str, adapter: str, install: str) -> ModuleType:
    """Imports a framework's module. adapter: who needs it. install: the words that say where to get it.

    Raises:
        ValueError: it cannot be imported; the sentence says what to install.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of every accelerated package that the framework does without
            return import_module(name)
    except ImportError as error:
        raise ValueError(f"{adapter} needs {name}, which cannot be imported ({error}); {install}") from error


def replace_function(module: ModuleType, name: str, new: Any) -> list[str]:
    """Puts `new` in place of a module's function, and of its copies in modules of the package that imported it by name.

    Returns the names of the modules that have it now. Modules imported later take it from `module`.
    """
    old = getattr(module, name)
    package = module.__name__.partition(".")[0]
    changed = []
    for other_name, other in sorted(sys.modules.items()):
        inside = other_name == package or other_name.startswith(f"{package}.")
        if inside and other is not None and vars(other).get(name) is old:
            setattr(other, name, new)
            changed.append(other_name)
    return changed
