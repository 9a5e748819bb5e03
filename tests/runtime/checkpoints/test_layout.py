"""A checkpoint's files are data: whoever wrote them, opening them runs nothing."""

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from zbench.runtime.checkpoints.folder import LAYOUT
from zbench.runtime.checkpoints.layout import CheckpointWriter, Planner, Reader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # one process is enough
WEIGHTS = torch.arange(6.0).reshape(2, 3)
SETTINGS = {"lr": 3e-4, "betas": (0.9, 0.95), "fused": None}


class Evil:
    """What makes a folder when a pickle of it is opened."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def load(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = {"model": {"w": torch.zeros(2, 3)}, "optimizer": dict.fromkeys(SETTINGS, 0.0)}
    reader = Reader(folder, {path.name for path in folder.iterdir()})
    load_state(state, storage_reader=reader, planner=Planner(), no_dist=True)
    return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = CheckpointWriter(tmp_path / "point", single_file_per_rank=True)
    save_state({"model": {"w": WEIGHTS}, "optimizer": dict(SETTINGS)}, storage_writer=writer, no_dist=True)
    return tmp_path / "point"


def test_what_is_written_is_read(folder: Path) -> None:
    state = load(folder)
    assert torch.equal(state["model"]["w"], WEIGHTS)
    assert state["optimizer"] == SETTINGS


def change(folder: Path, how: Callable[[Any], object]) -> None:
    layout = json.loads((folder / LAYOUT).read_text())
    how(layout)
    (folder / LAYOUT).write_text(json.dumps(layout))


def put(folder: Path, name: str, content: bytes) -> None:
    """Lets an entry of the checkpoint be `content`, in a file of its own."""
    (folder / "__9_0.distcp").write_bytes(content)

    def point(layout: Any) -> None:
        (place,) = [place for place in layout["places"] if place[0] == name]
        place[3:] = ["__9_0.distcp", 0, len(content)]

    change(folder, point)


def saved(value: Any, **how: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **how)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["model.w", "optimizer.lr"])
@pytest.mark.parametrize("zipped", [True, False])
def test_an_object_of_a_class_is_never_made(name: str, zipped: bool, folder: Path, tmp_path: Path) -> None:
    put(folder, name, saved(Evil(tmp_path / "PWNED"), _use_new_zipfile_serialization=zipped))
    with pytest.raises(CheckpointException) as told:
        load(folder)
    assert "weights" in str(next(iter(told.value.failures.values()))[0]).lower()
    assert not (tmp_path / "PWNED").exists()
    torch.load(folder / "__9_0.distcp", weights_only=False)
    assert (tmp_path / "PWNED").exists()  # so it would have been made


def test_torch_s_own_pickle_is_not_opened(folder: Path, tmp_path: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "PWNED")))
    assert torch.equal(load(folder)["model"]["w"], WEIGHTS)
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    "how",
    [
        lambda layout: layout["places"][0].__setitem__(3, "../secret"),
        lambda layout: layout["places"][0].__setitem__(3, "/etc/passwd"),
        lambda layout: layout["places"][0].__setitem__(3, ["x"]),
        lambda layout: layout["places"].append([1]),
        lambda layout: layout["places"].clear(),
        lambda layout: layout.pop("tensors"),
        lambda layout: layout.update(tensors=[]),
        lambda layout: layout["tensors"]["model.w"].update(dtype="os"),
        lambda layout: layout["tensors"]["model.w"].update(dtype="float99"),
        lambda layout: layout["tensors"]["model.w"].update(size=[3, 2]),
        lambda layout: layout["tensors"]["model.w"].update(size="wide"),
        lambda layout: layout["tensors"].pop("model.w"),
        lambda layout: layout["values"].remove("optimizer.lr"),
    ],
)
def test_a_made_up_layout_is_refused(how: Callable[[Any], object], folder: Path) -> None:
    (folder.parent / "secret").write_bytes(saved(torch.ones(2, 3)))
    change(folder, how)
    with pytest.raises(CheckpointException):
        load(folder)
