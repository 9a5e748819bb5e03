"""Labels of packed batches, a loss weighted by tokens, and what needs no ranks to be refused."""

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

import zbench.torch
from zbench.torch import IGNORED


def test_labels_end_with_their_sequence() -> None:
    assert zbench.torch.next_tokens(torch.tensor([5, 6, 7, 8, 9, 4]), [3, 1, 2]).tolist() == [6, 7, -100, -100, 4, -100]
    masked = torch.tensor([IGNORED, IGNORED, 7, 8])  # a prompt of two tokens
    assert zbench.torch.next_tokens(masked, [4]).tolist() == [IGNORED, 7, 8, IGNORED]


def test_shares_add_up_to_the_mean_over_labels() -> None:
    logits = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 2, IGNORED, 4, IGNORED, 0, 0, 3, IGNORED])
    parts = zip(logits.split([7, 0, 2]), labels.split([7, 0, 2]), strict=True)
    shares = [zbench.torch.token_loss(some, ids, (labels >= 0).sum()) for some, ids in parts]
    whole = cross_entropy(logits, labels, ignore_index=IGNORED)
    torch.testing.assert_close(torch.stack(shares).sum(), whole, rtol=1e-14, atol=0)
    (ours,), (theirs,) = (torch.autograd.grad(loss, logits) for loss in (torch.stack(shares).sum(), whole))
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-16)
    assert zbench.torch.token_loss(logits.bfloat16(), labels, 6).dtype == torch.float32


def test_what_cannot_be_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^tokens has shape \[5\]; lengths add up to 6, so it takes \[6\]$"):
        zbench.torch.next_tokens(torch.zeros(5), [3, 3])
    for lengths, told in (([3, -1, 3], r"lengths\[1\] is -1"), ([2.5, 2.5], r"lengths\[0\] is 2.5")):
        with pytest.raises(ValueError, match=f"^{told}; it takes a whole number of at least 1$"):
            zbench.torch.next_tokens(torch.zeros(5), lengths)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^tokens is of type list; it takes a tensor \[N\]$"):
        zbench.torch.next_tokens([1, 2], [2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^labels has shape \[4\]; it takes one for each row of logits, \[5\]$"):
        zbench.torch.token_loss(torch.zeros(5, 3), torch.zeros(4, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match=r"^num_labels is 0; it takes the labels of the whole batch, at least 1$"):
        zbench.torch.token_loss(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), 0)
    for labels, told in (
        (torch.zeros(2), r"labels is torch\.float32; it takes torch\.int64"),
        (torch.tensor([IGNORED, 3]), r"labels has 3; logits have 3 columns, so it takes 0 to 2, or -100 where"),
    ):
        with pytest.raises(ValueError, match=f"^{told}"):
            zbench.torch.token_loss(torch.zeros(2, 3), labels, 2)
    for count in ("5", float("nan"), 2.5, True, None, torch.ones(2)):
        with pytest.raises(
            ValueError, match=r"^num_labels is .*; it takes a whole number: the labels of the whole batch"
        ):
            zbench.torch.token_loss(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^logits is of type list; it takes a tensor$"):
        zbench.torch.token_loss([1], torch.zeros(1, dtype=torch.int64), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^logits has shape \[1, 2, 3\]; it takes \[T, V\]"):
        zbench.torch.token_loss(torch.zeros(1, 2, 3), torch.zeros(1, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match=r"^lengths is of type int; it takes the tokens of each sequence"):
        zbench.torch.next_tokens(torch.zeros(5), 5)  # type: ignore[arg-type]
    for group in (3, "gloo", {}):
        with pytest.raises(ValueError, match=r"^group is .*; it takes a group of torch\.distributed, as new_group"):
            zbench.torch.Runtime(group)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^there is no process group; torch\.distributed\.init_process_group comes"):
        zbench.torch.Runtime()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"needs the package transformers, .* pip install 'zbench\[examples\]'$"):
        zbench.torch.register_with_transformers()
