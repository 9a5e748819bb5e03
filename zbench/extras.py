"""Packages that only some jobs need, and the extra of zbench that installs each. Pure: no torch."""

from importlib.util import find_spec

EXTRAS = {
    "deepspeed": "peers",
    "matplotlib": "figures",
    "megatron": "peers",
    "plotly": "report",
    "pyarrow": "parquet",
    "tensorboard": "track",
    "torch": "torch",
    "wandb": "track",
}


def need(package: str, job: str) -> None:
    """Returns if `package` can be imported, without importing it.

    job: what needs it, as the user asked for it ("executor=torch").

    Raises:
        ValueError: it is not installed; the sentence names the extra that has it.
    """
    if find_spec(package) is None:
        raise ValueError(
            f"{job} needs the package {package}, which is not installed: pip install 'zbench[{EXTRAS[package]}]'"
        )
