"""The facts that a run shares with the checkpoint that it goes on from, in sentences by the keys that set them."""

import json
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from zbench.describe.strategies.strategy_keys import typed_key
from zbench.record.fields import cut_short
from zbench.runtime.checkpoints.folder import checkpoint_description
from zbench.runtime.job.job import AdamW

NOTHING: Mapping[str, Any] = MappingProxyType({})
# Facts of a run that are no field of its model, nor have their key as a name already.
_KEYS: Mapping[str, str] = MappingProxyType({
    "GPUs": "cluster.num_nodes*cluster.gpus_per_node",
    "GPUs of a worker": "GPUs of a worker (sync.worker)",
    "mask": "mask",
    "seed": "seed",
    "workload": "workload",
    **{one.name: f"executor.optimizer.{one.name}" for one in fields(AdamW)},
})  # fmt: skip


def check_same(path: str, run: Mapping[str, Any], untold: Mapping[str, Any] = NOTHING) -> None:
    """Refuses to go on from the checkpoint of another run. run: the facts of this one, by name, as the checkpoint has
    those of its own; untold: what older checkpoints have without saying it.

    Raises:
        ValueError: something differs; the message names its key, and both values.
    """
    theirs = {"mask": "causal", **untold, **checkpoint_description(path)["run"]}  # as all were before there were others
    for name, value in json.loads(json.dumps(dict(run))).items():  # as it is read again: tuples are lists
        if theirs.get(name) != value:
            had, has = _both(theirs.get(name), value)
            why = ": check=exact computes in 8" if name == "element_bytes" else ""
            raise ValueError(f"resume is {path!r}; its run had {_key(name)} {had}, and this one has {has}{why}")


def _key(name: str) -> str:
    """Returns what a user types to set a fact of a run."""
    return _KEYS.get(name) or (name if "." in name else typed_key(name))


def _both(had: Any, has: Any) -> tuple[str, str]:
    """Returns two values for a sentence, of long ones what differs: all from the part on in which they first do."""
    texts = str(had), str(has)
    whole = tuple(map(cut_short, texts))
    if whole == texts:
        return texts
    pairs = enumerate(zip(*texts, strict=False))  # the shorter one may be how the other begins
    differ = next((at for at, (one, other) in pairs if one != other), min(map(len, texts)))
    begin = texts[0].rfind(", ", 0, differ) + len(", ")  # of an argument, or of an item
    had_part, has_part = (cut_short(f"...{one[begin:]}" if begin > 1 else one) for one in texts)
    return had_part, has_part
