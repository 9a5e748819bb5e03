"""Facts about a rank's machine, as files of the system tell them."""

from pathlib import Path

import pytest

from zbench.runtime.processes.host import driver


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\n"
            "GCC version:  gcc version 12.3.0\n",
            "580.159.04",
        ),
        ("", "unknown"),
    ],
)
def test_the_driver_is_named_for_both_kinds_of_kernel_modules(
    told: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: told)
    assert driver().startswith(f"driver {version}, CUDA ")
