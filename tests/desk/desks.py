"""Runs on a small desk: two nodes of two ranks with a NIC each; what tests start and read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.commands import ROOT, called

SMALL = (
    "executor=desk_attention",
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


def command(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs it in this process; `start` starts one of its own, to be killed or to run beside another."""
    return called(*SMALL, f"out={out}", *words)


def steps(out: Path) -> list[dict[str, Any]]:
    """The steps that a record holds so far; its last line may be under way."""
    if not out.exists():
        return []
    lines = [json.loads(line) for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line["kind"] == "step"]
