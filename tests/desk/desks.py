"""Runs on a small desk: two nodes of two ranks with a NIC each; what tests start and read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMALL = (
    "executor=desk",
    "cluster=desk_2x4_a800",
    "cluster.gpus_per_node=2",
    "cluster.nics_per_node=2",
    "workload=longtail_4k",
    "workload.context_limit=256",
    "tokens_per_gpu=64",
    "baseline=null",
    "tracker=none",
)


def start(out: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "zbench", *SMALL, f"out={out}", *words]
    return subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command(out: Path, *words: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
    running = start(out, *words)
    with running:
        try:
            told, errors = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
    return subprocess.CompletedProcess(running.args, running.returncode, told, errors)


def steps(out: Path) -> list[dict[str, Any]]:
    """The steps that a record holds so far; its last line may be under way."""
    if not out.exists():
        return []
    lines = [json.loads(line) for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line["kind"] == "step"]
