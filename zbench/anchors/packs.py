"""Packs of documents as MagiAttention's benchmark draws them, from its published table of document lengths. Pure: no
torch.

A document's length is the middle of its bin. Longer than a quarter of the pack, it is cut in pieces of
a quarter and a tail. Pieces fill packs in order; the last one goes on in the next pack. The benchmark
shuffles its whole table; here every draw is independent, which for its 13 million documents is the same.
"""

import numpy as np

from zbench.anchors.anchor import published_rows
from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints


def document_packs(total: int, count: int, seed: int) -> list[Ints]:
    """Draws `count` packs of exactly `total` tokens each: arrays of document lengths."""
    rng = np.random.default_rng((seed, total))
    lengths, weights = _pieces(max(total // 4, 1))
    out: list[Ints] = []
    rest = 0
    for _ in range(count):
        pack: list[int] = []
        room = total
        while room:
            piece = rest or int(rng.choice(lengths, p=weights))
            pack.append(min(piece, room))
            rest = piece - pack[-1]
            room -= pack[-1]
        out.append(np.array(pack, np.int64))
    return out


def _pieces(limit: int) -> tuple[Ints, Floats]:
    """Returns (lengths, probabilities) of the pieces that documents of the table are cut in."""
    lengths, counts = [], []
    for row in published_rows("documents"):
        middle, count = (int(row["low"]) + int(row["high"])) // 2, int(row["documents"])
        whole, tail = divmod(middle, limit)
        lengths += [limit, tail]
        counts += [whole * count, count if tail else 0]
    weights = np.array(counts, np.float64)
    return np.array(lengths, np.int64), weights / weights.sum()
