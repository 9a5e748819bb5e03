"""Checkpoints: parameters, optimizer state and the step, whole or not at all.

torch.distributed.checkpoint writes into a folder beside the final one, which takes its name only when all ranks
have written: a run that is killed while it saves leaves the last whole checkpoint as it was. Collective.
"""

import json
import shutil
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from zbench.runtime.parameters import Parameters

META = "zbench.json"


def save(path: str, parameters: Parameters, next_step: int) -> None:
    """Writes the folder `path`. next_step: the first step that is not in it."""
    final, unfinished = Path(path), Path(f"{path}.unfinished")
    if dist.get_rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    dist.barrier()
    writer = FileSystemWriter(unfinished, single_file_per_rank=True)
    save_state(parameters.state(), storage_writer=writer)
    if dist.get_rank() == 0:
        (unfinished / META).write_text(json.dumps({"next_step": next_step}))
        if final.exists():
            shutil.rmtree(final)
        unfinished.rename(final)
    dist.barrier()


def load(path: str, parameters: Parameters) -> int:
    """Takes over a checkpoint; returns the step to go on with."""
    state = parameters.state()
    load_state(state, storage_reader=FileSystemReader(path))
    parameters.load(state)
    return next_step(path)


def next_step(path: str) -> int:
    return int(json.loads((Path(path) / META).read_text())["next_step"])
