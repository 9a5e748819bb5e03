"""The folder of Python's standard library, as workload=pystdlib reads it. Pure."""

import sysconfig


def folder() -> str:
    """Finds the standard library of the Python that runs this."""
    return sysconfig.get_path("stdlib")
