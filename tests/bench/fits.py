"""How many layers of Llama 3 8B are predicted to fit one H200 with 64K tokens, by what runs again in the backward.

python tests/bench/fits.py
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from zbench.correctness.ledger import Ledger
from zbench.describe.batch import Batch
from zbench.runtime.job.footprint import LEVELS, kept_layer_bytes, predicted_peak_bytes
from zbench.speed.__main__ import Session, SpeedSize
from zbench.speed.training import PARAMETERS, most_layers, single_rank_plan

size = SpeedSize()
parts = Session(size, "h200_4x8", Ledger(Path("fits.jsonl"), {})).parts(size.workloads[0])
plans = (single_rank_plan(Batch(np.array([size.tokens]), 0, 0), parts.model.num_heads),)
for level in LEVELS:
    layers = most_layers(parts.cost, size.tokens, int(parts.cluster.device.memory_bytes), (level,))
    cost = replace(parts.cost, model=replace(parts.model, num_layers=layers))
    needed = int(predicted_peak_bytes(plans, cost, PARAMETERS, level).max())
    each = kept_layer_bytes(parts.model, level)
    print(f"{level:7} {layers:3} layers, {needed / 1e9:.0f} GB, {each:,} bytes a token and layer")
