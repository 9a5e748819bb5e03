"""What of an executor's settings is known without torch."""

from pathlib import Path

import pytest

from zbench.runtime.job import settings
from zbench.runtime.job.settings import check_kernel


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    (tmp_path / "nvidiactl").touch()
    return tmp_path


def test_a_kernel_for_gpus_is_refused_where_there_is_none(tmp_path: Path, devices: Path) -> None:
    for environment, folder, why in (
        ({}, tmp_path / "none", "this machine has none"),
        ({"CUDA_VISIBLE_DEVICES": ""}, devices, "CUDA_VISIBLE_DEVICES hides all"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, devices, "CUDA_VISIBLE_DEVICES hides all"),
    ):
        told = f"executor.kernel is 'torch-flash-cuda'; it takes a GPU, and {why}; a CPU takes auto, matmul"
        with pytest.raises(ValueError, match=told):
            check_kernel("torch-flash-cuda", 2, environment, folder)
    check_kernel("torch-flash-cuda", 2, {"CUDA_VISIBLE_DEVICES": "0"}, devices)
    for kernel in ("auto", "matmul", "torch-flash-cpu"):
        check_kernel(kernel, 8, {}, tmp_path / "none")


def test_a_kernel_of_a_package_takes_bfloat16_and_the_package(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"it takes bfloat16, and model\.element_bytes is 8 here"):
        check_kernel("flash-attn-3", 8, {}, devices)
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="its package flash_attn_interface is not installed"):
        check_kernel("flash-attn-3", 2, {}, devices)
    monkeypatch.setattr(settings, "find_spec", lambda name: name == "flash_attn")
    check_kernel("flash-attn-2", 2, {}, devices)
