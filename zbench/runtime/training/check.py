"""Checks a step against the dense model (check=exact, check=float32): loss and gradients of the same weights and
tokens, in one process and in float64."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from zbench.describe.batch import Batch
from zbench.runtime.job.job import Job
from zbench.runtime.training.dense import dense_loss
from zbench.runtime.training.text import sequences


def worst_difference(
    job: Job,
    batch: Batch,
    loss: float,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    tell: Callable[[str], None],
) -> tuple[float, str]:
    """Returns (largest relative difference, where): of the loss, and of each gradient's largest element over its
    largest value.

    weights, gradients: whole, by parameter name, on the CPU. tell: is told of progress.
    """
    model = job.cost.model
    tokens = sequences(job.workload, batch, np.arange(len(batch.lengths)), model.vocab)
    counts, wide = batch.counts_of_sequences, replace(model, element_bytes=8)
    reference, expected = dense_loss(wide, weights, tokens, tell=tell, counts=counts)
    differences = {"the loss": abs(loss - reference) / abs(reference)}
    assert set(expected) == set(gradients)
    for name, value in expected.items():
        scale = value.abs().max().item()
        difference = (gradients[name] - value).abs().max().item()
        differences[f"the gradient of {name}"] = difference / scale if scale > 0 else difference
    where = max(differences, key=lambda name: (differences[name] != differences[name], differences[name]))  # NaN first
    return differences[where], where
