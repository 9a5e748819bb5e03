"""Memory that processes share: weights in slices, and keys and values by heads."""

from pathlib import Path

import torch

from zbench.correctness.seesaw.cases import FOUR_LAYERS
from zbench.correctness.steps.dense import drawn_weights
from zbench.runtime.rollouts.host_memory import HostKeys, HostWeights, weight_shapes

MODEL = FOUR_LAYERS
WEIGHTS = drawn_weights(MODEL, 1)


def test_slices_make_up_the_weights_that_another_process_wrote(tmp_path: Path) -> None:
    path = str(tmp_path / "weights")
    HostWeights(MODEL, path).write(WEIGHTS)
    for name, shape in weight_shapes(MODEL).items():
        host = HostWeights(MODEL, path)
        whole = WEIGHTS[name] if name in ("we", "gl", "wh") else WEIGHTS[name][0 if name in ("we",) else 3]
        assert tuple(whole.shape) == shape
        layer = 0 if name in ("we", "gl", "wh") else 3
        parts = [host.slice_of(name, layer, part, 2) for part in range(2)]
        if name[0] == "g":
            assert torch.equal(parts[0], whole)
            assert host.copied == 2 * whole.nbytes
        else:
            assert torch.equal(torch.cat(parts, 1 if name == "wz" else 0), whole)
            assert host.copied == whole.nbytes


def test_keys_that_one_layout_writes_are_read_by_another(tmp_path: Path) -> None:
    one, other = (HostKeys(MODEL, str(tmp_path / "keys"), 9) for _ in range(2))
    kept = torch.randn(5, 2, MODEL.num_kv_heads, MODEL.head_dim, dtype=torch.float64)
    one.put(range(4, 9), 2, range(MODEL.num_kv_heads), kept)
    halves = [other.take(range(4, 9), 2, heads) for heads in (range(2), range(2, 4))]
    assert torch.equal(torch.cat(halves, 2), kept)
    assert one.written == other.read == kept.nbytes
    assert not other.take(range(4), 2, range(1)).any()
    assert not other.take(range(4, 9), 1, range(1)).any()
