"""Checks what the torch executor accepts, before any process is started. Imports no torch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zbench.describe.checks import check_boolean
from zbench.describe.layers.model_parameters import VALUE, WORDS
from zbench.describe.model import Model
from zbench.plans.plan import ATTENTIONS
from zbench.runtime.job.job import CUDA_KERNELS, KERNELS

LEAST_INTERVAL = 1e-3  # seconds between looks at NICs' counters: a look takes a tenth of that
_GPUS = ("nvidiactl", "nvhost-ctrl-gpu", "kfd", "dxg")  # in /dev: NVIDIA's driver, on Tegra, AMD's, and in WSL
_MODULES = {"flash-attn-2": "flash_attn", "flash-attn-3": "flash_attn_interface"}


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ValueError unless the setting `name` has one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(choices)}")


def at_least(name: str, value: Any, least: float) -> None:
    """Raises ValueError unless the setting `name` is a number of at least `least`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value < math.inf:
        raise ValueError(f"{name} is {value!r}; it takes a number of at least {least}")


def check_nic_counters(counters: Any, interval: Any) -> None:
    """Refuses what cannot be of executor.nic_counters, and of executor.nic_interval, seconds between looks at them.

    Raises:
        ValueError: the message names the key.
    """
    check_boolean("executor.nic_counters", counters)
    if interval is None:
        return
    at_least("executor.nic_interval", interval, LEAST_INTERVAL)
    if not counters:
        raise ValueError(
            f"executor.nic_interval is {interval}; it needs the NICs' counters, executor.nic_counters=true"
        )


def with_known_keys(name: str, given: Any, fields: Iterable[str]) -> dict[str, float]:
    """Returns `given`, a mapping with no other keys than `fields`."""
    if not isinstance(given, dict):
        raise ValueError(f"{name} is {given!r}; it takes keys among {', '.join(fields)}")
    for key in given:
        if key not in fields:
            raise ValueError(f"{name}.{key} is no key; there are {', '.join(fields)}")
    return given


def check_model(model: Model, vocab: int | None) -> None:
    """Refuses models that the network would refuse. vocab: what the workload's tokens need, None where it makes them to
    fit."""
    if model.element_bytes not in (2, 4, 8):
        raise ValueError(
            f"model.element_bytes is {model.element_bytes}; training takes 2 (bfloat16), 4 (float32) or 8 (float64)"
        )
    if model.lse_bytes != max(4, model.element_bytes):
        raise ValueError(
            f"model.lse_bytes is {model.lse_bytes}; with model.element_bytes={model.element_bytes} kernels give "
            f"{max(4, model.element_bytes)}"
        )
    if model.head_dim % 2:
        raise ValueError(f"model.head_dim is {model.head_dim}; RoPE turns pairs, so it has to be even")
    if model.head == VALUE:
        raise ValueError(f"model.head is {VALUE}; training takes targets that are words, and a model with {WORDS}")
    if vocab is not None and model.vocab < vocab:
        raise ValueError(f"model.vocab is {model.vocab}; the workload's tokens are bytes, which need {vocab}")


def check_kernel(kernel: Any, element_bytes: int, environment: Mapping[str, str], devices: Path = Path("/dev")) -> None:
    """Refuses a kernel as far as that is known without torch; the rest (compute capability, versions) ranks find out.

    environment: os.environ. devices: where the system lists its GPUs.
    """
    one_of("executor.kernel", kernel, KERNELS)
    if kernel not in CUDA_KERNELS:
        return
    if element_bytes != 2:
        raise ValueError(
            f"executor.kernel is {kernel!r}; it takes bfloat16, and model.element_bytes is {element_bytes} here "
            "(2 is bfloat16; check=exact computes in float64)"
        )
    if why := no_gpu(environment, devices):
        others = ", ".join(name for name in KERNELS if name not in CUDA_KERNELS)
        raise ValueError(f"executor.kernel is {kernel!r}; it takes a GPU, and {why}; a CPU takes {others}")
    if kernel in _MODULES and find_spec(_MODULES[kernel]) is None:
        raise ValueError(f"executor.kernel is {kernel!r}; its package {_MODULES[kernel]} is not installed")


def no_gpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """Returns why there is no GPU, as far as that is known without torch; None where there seems to be one."""
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides all"
    return None if any((devices / name).exists() for name in _GPUS) else "this machine has none"


def kind_of(parameters: str | None, model: Model) -> str:
    """Returns how ranks hold parameters (zbench.runtime.job.job.PARAMETERS) where the setting leaves it to the
    model."""
    return parameters or ("sharded" if model.sharding == "zero3" else "replicated")


def check_package(package: str, check: Sequence[str]) -> None:
    """Refuses a package, to compute attention in the plan's place, that is missing or cannot be checked."""
    one_of("plan.attention", package, ATTENTIONS)
    if find_spec(package) is None:
        raise ValueError(f"system has {package} compute attention, and it is missing; the extra 'peers' installs it")
    if "bytes" in check:
        raise ValueError(
            f"check=bytes cannot be where {package} computes attention: it sends messages of its own, not the plan's"
        )
