"""The command in the test's own process, whose fleets of ranks find the fork server of the tests before."""

import importlib
import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def called(*words: str, folder: Path = ROOT, module: str = "zbench") -> subprocess.CompletedProcess[str]:
    """Runs `python -m` a module of zbench's with these words, in a folder, and returns its exit code and what it
    says."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as told,
        redirect_stderr(io.StringIO()) as errors,
    ):
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("HYDRA_FULL_ERROR", raising=False)
        patch.setattr(sys, "argv", [module, *words])
        code = importlib.import_module(f"{module}.__main__").main()
    return subprocess.CompletedProcess(words, code, told.getvalue(), errors.getvalue())
