"""Checkpoints: parameters, optimizer state, the step and what run it was; whole or not at all. Ranks' side.

torch.distributed.checkpoint writes into a folder beside the final one. When all ranks have written, the last
checkpoint steps aside under another name, the new one takes its place, and only then the old one goes: a run that
is killed at any moment leaves a whole checkpoint, and zbench.runtime.checkpoints.folder finds it. Collective.
"""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from zbench.runtime.checkpoints.folder import (
    META,
    PART,
    aside,
    check_replaceable,
    checkpoint_description,
    complete_folder,
    remove,
    unfinished,
)
from zbench.runtime.checkpoints.layout import CheckpointWriter, Planner, Reader
from zbench.runtime.checkpoints.manifest import FILES, Entry, entries, sealed


class KeptState(Protocol):
    """The state that a checkpoint keeps of this rank, or of all."""

    def state(self) -> dict[str, Any]:
        """Returns it, by name."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` has, by the same names."""


def save_checkpoint(path: str, parameters: KeptState, meta: Mapping[str, Any]) -> None:
    """Writes a checkpoint into the folder `path`. meta: what zbench.runtime.checkpoints.folder.checkpoint_description
    gives back."""
    final, new, old = Path(path), unfinished(path), aside(path)
    if dist.get_rank() == 0:
        if new.exists():
            check_replaceable(new)
            remove(new)
        new.mkdir(parents=True)
        (new / PART).touch()
    dist.barrier()
    save_state(parameters.state(), storage_writer=CheckpointWriter(new, single_file_per_rank=True, sync_files=True))
    files = _manifest(new)
    if dist.get_rank() == 0:
        with (new / PART).open("w") as stream:
            stream.write(sealed(meta, files))
            stream.flush()
            os.fsync(stream.fileno())
        (new / PART).rename(new / META)
        if final.exists():
            check_replaceable(final)
            remove(old)
            final.rename(old)
        new.rename(final)
        remove(old)
    dist.barrier()


def _manifest(folder: Path) -> dict[str, Entry]:
    """Returns the manifest of all files that ranks have written: each reads its own, and rank 0 the rest.
    Collective."""
    rank = dist.get_rank()
    names = {path.name for path in folder.glob(f"__{rank}_*.distcp")}
    if rank == 0:
        names |= {path.name for path in folder.iterdir() if path.suffix != ".distcp" and path.name != PART}
    found: list[dict[str, Entry]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, entries(folder, sorted(names)))
    return {name: entry for part in found for name, entry in part.items()}


def load_checkpoint(path: str, parameters: KeptState) -> None:
    """Takes over a checkpoint, which the driver has compared with its manifest.

    Raises:
        ValueError: it is broken; the message is one sentence.
    """
    state = parameters.state()
    try:
        load_state(
            state, storage_reader=Reader(complete_folder(path), checkpoint_description(path)[FILES]), planner=Planner()
        )
    except CheckpointException as error:  # of all ranks; each has its own reason, usually the same
        first = next(iter(error.failures.values()))[0]
        reason = next(iter(str(first).splitlines()), "") or type(first).__name__
        if isinstance(first, pickle.UnpicklingError):  # its own words tell how to run it all the same
            reason = "a file holds an object where a tensor or a setting belongs"
        raise ValueError(f"resume is {path!r}; its checkpoint is broken: {reason}") from error
    parameters.load(state)
