"""Packages that only some jobs need, and the extra of zbench that installs each. Pure: no torch."""

import sys
from importlib.util import find_spec

EXTRAS = {
    "deepspeed": "peers",
    "matplotlib": "figures",
    "megatron": "peers",
    "plotly": "report",
    "pyarrow": "parquet",
    "tensorboard": "track",
    "torch": "torch",
    "transformers": "examples",
    "wandb": "track",
}


def installed(package: str) -> bool:
    """Returns whether `import package` would find one; a folder of that name that happens to lie here is none."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        spec = find_spec(package)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None


def need(package: str, job: str) -> None:
    """Raises an error that names the extra to install unless `package` can be imported; imports nothing.

    job: what needs it, as the user asked for it ("executor=torch").

    Raises:
        ValueError: it is not installed; the sentence names the extra that has it.
    """
    if not installed(package):
        raise ValueError(
            f"{job} needs the package {package}, which is not installed: pip install 'zbench[{EXTRAS[package]}]'"
        )
