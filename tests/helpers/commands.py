"""The command in the test's own process, whose fleets of ranks find the fork server of the tests before."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from zbench import __main__

ROOT = Path(__file__).parents[2]


def called(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs `python -m zbench` with these words, in a folder, and returns its exit code and what it says."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as told,
        redirect_stderr(io.StringIO()) as errors,
    ):
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("HYDRA_FULL_ERROR", raising=False)
        patch.setattr(sys, "argv", ["zbench", *words])
        code = __main__.main()
    return subprocess.CompletedProcess(words, code, told.getvalue(), errors.getvalue())
