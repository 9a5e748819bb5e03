"""Checkpoints: parameters, optimizer state, the step and what run it was; whole or not at all. Ranks' side.

torch.distributed.checkpoint writes into a folder beside the final one. When all ranks have written, the last
checkpoint steps aside under another name, the new one takes its place, and only then the old one goes: a run that
is killed at any moment leaves a whole checkpoint, and zbench.runtime.folder finds it. Collective.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from zbench.runtime.folder import META, aside, remove, strangers, unfinished, whole
from zbench.runtime.parameters import Parameters


def save(path: str, parameters: Parameters, meta: Mapping[str, Any]) -> None:
    """Writes the folder `path`. meta: what zbench.runtime.folder.told gives back."""
    final, new, old = Path(path), unfinished(path), aside(path)
    if dist.get_rank() == 0:
        remove(new)
        new.mkdir(parents=True)
    dist.barrier()
    save_state(parameters.state(), storage_writer=FileSystemWriter(new, single_file_per_rank=True, sync_files=True))
    if dist.get_rank() == 0:
        with (new / META).open("w") as stream:
            json.dump(meta, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if final.exists():
            if found := strangers(final):
                raise ValueError(f"executor.checkpoint would replace {final}, which holds {found[0]!r}")
            remove(old)
            final.rename(old)
        new.rename(final)
        remove(old)
    dist.barrier()


def load(path: str, parameters: Parameters) -> None:
    """Takes over a checkpoint.

    Raises:
        ValueError: it is broken; the message is one sentence.
    """
    state = parameters.state()
    try:
        load_state(state, storage_reader=FileSystemReader(whole(path)))
    except CheckpointException as error:  # of all ranks; each has its own reason, usually the same
        reason = str(next(iter(error.failures.values()))[0]).splitlines()[0]
        raise ValueError(f"resume is {path!r}; its checkpoint is broken: {reason}") from error
    parameters.load(state)
