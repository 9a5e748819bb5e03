"""Writes and reads where a checkpoint's tensors lie in its files, as JSON. Ranks' side.

torch.distributed.checkpoint keeps this in a pickle, .metadata, and opening a stranger's pickle runs what it says. So
zbench writes it once more as plain data and reads that alone. The tensors themselves, and the optimizer's settings
beside them, are opened by torch.load with weights_only, which makes tensors and plain values and calls nothing else.
"""

import io
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult

from zbench.runtime.checkpoints.folder import LAYOUT


class CheckpointWriter(FileSystemWriter):
    """Writes a checkpoint's files, and the layout beside torch's own."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes torch's metadata, and beside it the layout as JSON."""
        super().finish(metadata, results)
        with (Path(self.path) / LAYOUT).open("w") as stream:
            json.dump(_as_json(metadata), stream)
            stream.flush()
            os.fsync(stream.fileno())


class Reader(FileSystemReader):
    """Reads a checkpoint by its layout, and opens no other files than `names`."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        super().__init__(folder)
        self.names = names

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads where tensors lie from the layout.

        Raises:
            ValueError: the layout is none.
        """
        try:
            metadata = _metadata(json.loads((Path(self.path) / LAYOUT).read_text()), self.names)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{LAYOUT} is not one of a checkpoint ({type(error).__name__}: {error})") from error
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class Planner(DefaultLoadPlanner):
    """Takes plain values from a checkpoint and no objects of any class."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Takes plain values and refuses objects of any class."""
        plain = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), plain)  # torch's own next step opens anything
        plain.seek(0)
        super().load_bytes(read_item, plain)


def _as_json(metadata: Metadata) -> dict[str, Any]:
    """Returns the layout as JSON has it."""
    entries = metadata.state_dict_metadata
    tensors = {
        name: {
            "dtype": str(entry.properties.dtype).removeprefix("torch."),
            "size": list(entry.size),
            "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
        }
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    places = [
        [index.fqn, None if index.offset is None else list(index.offset), index.index, *_span(info)]
        for index, info in metadata.storage_data.items()
    ]
    return {"tensors": tensors, "values": [name for name in entries if name not in tensors], "places": places}


def _metadata(layout: dict[str, Any], names: Collection[str]) -> Metadata:
    """Makes the layout that torch has of the one that JSON has. names: the files it may speak of.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        str(name): BytesStorageMetadata() for name in layout["values"]
    }
    for name, entry in layout["tensors"].items():
        chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, sizes in entry["chunks"]]
        entries[name] = TensorStorageMetadata(
            TensorProperties(_dtype(entry["dtype"])), torch.Size(entry["size"]), chunks
        )
    places = {}
    for name, offset, index, file, begin, length in layout["places"]:
        if file not in names:
            raise ValueError(f"{file!r:.100} is none of its files")
        places[MetadataIndex(name, offset, index)] = _StorageInfo(file, int(begin), int(length))
    return Metadata(entries, planner_data={}, storage_data=places)


def _span(info: _StorageInfo) -> tuple[str, int, int]:
    assert not info.transform_descriptors, "zbench's checkpoints are written as they are"
    return info.relative_path, info.offset, info.length


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return found
