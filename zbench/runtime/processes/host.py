"""Facts about a rank's machine."""

import re
import resource
from pathlib import Path

import torch

from zbench.record.fingerprint import cpu_name

__all__ = ["cpu_name", "driver", "measured_peak_bytes", "memory_bytes", "taken_bytes"]


def memory_bytes(device: torch.device, described: float) -> int:
    """Returns the bytes that may be used of a device that is described to have so many: of a GPU no more than it
    has."""
    if device.type == "cuda":
        return int(min(described, torch.cuda.get_device_properties(device).total_memory))
    return int(described)


def driver() -> str:
    """Names NVIDIA's driver, with the version of CUDA that torch was built for: "driver 550.54.15, CUDA 12.8"."""
    try:
        told = Path("/proc/driver/nvidia/version").read_text()
    except OSError:  # in some containers it is not shown
        told = ""
    version = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", told)  # "for x86_64" may stand between
    return f"driver {version[1] if version else 'unknown'}, CUDA {torch.version.cuda}"


def measured_peak_bytes(device: torch.device) -> int:
    """Returns the most memory in use so far: of the GPU's allocator, else of the process (its resident set)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def taken_bytes(device: torch.device) -> int:
    """Returns the bytes that nobody else can have now: of a GPU by whoever uses it, contexts and what allocators keep
    among it; else as peak_bytes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return measured_peak_bytes(device)
