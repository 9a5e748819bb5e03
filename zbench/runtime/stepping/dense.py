"""The dense reference of executed steps: the network of the torch executor, in one process, by the names of a step.

That of a model with experts, whose choices are given, is zbench.runtime.stepping.dense_experts. Loss and gradients are
those of torch's autograd.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from zbench.describe.arrays import Flags, Ints
from zbench.describe.model import Model
from zbench.runtime.stepping.dense_experts import expert_step
from zbench.runtime.stepping.weights import by_step, network_weights
from zbench.runtime.training.dense import dense_loss


@dataclass(frozen=True)
class DenseGradients:
    """A batch in one process. loss: the sum over all labels that count; gradients: of it, by the names of a step, of
    all layers in one tensor. router_logits: of every sequence of a model with experts, [layers, tokens, experts]."""

    loss: float
    gradients: Mapping[str, Tensor]
    router_logits: Sequence[Tensor] = field(default=(), kw_only=True)


def dense_gradients(
    model: Model,
    weights: Mapping[str, Tensor],
    sequences: Sequence[Ints],
    routes: Sequence[Ints],
    tell: Callable[[str], None] = lambda place: None,
    counts: Sequence[Flags] | None = None,
) -> DenseGradients:
    """Returns the loss and the gradients of whole sequences, in float64 whatever the model's dtype; the target of a
    sequence's last token is token 0.

    weights: by the names of a step, float64, of all layers in one tensor. routes: the experts of the sequences' tokens,
    of a model that has some, as of zbench.runtime.stepping.dense_experts.expert_step. tell: is told of progress.
    counts: of every sequence, which labels of its tokens count, bool [t], at least one in all; None: all do. Where tied
    embeddings are two tables of a step, one of which is the head's ("wh"), both have the gradient of the one that there
    is here, also where the step before had one alone.
    """
    if not model.tied_embeddings:
        return _gradients(model, weights, sequences, routes, tell, counts)
    one = {name: value for name, value in weights.items() if name != "wh"}
    found = _gradients(model, one, sequences, routes, tell, counts)
    return replace(found, gradients={**found.gradients, "wh": found.gradients["we"]})


def _gradients(
    model: Model,
    weights: Mapping[str, Tensor],
    sequences: Sequence[Ints],
    routes: Sequence[Ints],
    tell: Callable[[str], None],
    counts: Sequence[Flags] | None,
) -> DenseGradients:
    """Returns `dense_gradients` of weights among which there is one table of tied embeddings."""
    if model.num_experts > 1:
        logits = list[Tensor]()
        loss, gradients = expert_step(model, weights, sequences, routes, tell, logits, counts)
        return DenseGradients(loss, gradients, router_logits=logits)
    num_labels = sum(map(len, sequences)) if counts is None else sum(int(one.sum()) for one in counts)
    plain = replace(model.keeping_all, element_bytes=8)
    loss, gradients = dense_loss(plain, network_weights(model, weights), sequences, tell=tell, counts=counts)
    summed = {name: value * num_labels for name, value in gradients.items()}
    return DenseGradients(loss * num_labels, by_step(model, summed))
