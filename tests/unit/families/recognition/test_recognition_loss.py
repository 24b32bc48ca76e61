"""Losses of recognition. Expected numbers come from hand calculation, enumeration, or torch on the whole batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.recognition.loss import CTC, NRTR, SAR, Multi
from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss

K = 5


def texts(part: slice = slice(None)) -> Texts:
    """Five texts of 0 to 3 characters."""
    words = ([0, 4, 2], [3], [1, 1], [], [2, 0])
    ctc = torch.tensor([[character + 1 for character in word] + [0] * (3 - len(word)) for word in words])
    sar = torch.tensor([[K + 1, *word, K + 1] + [K + 2] * (4 - len(word)) for word in words])
    lengths = torch.tensor([len(word) for word in words])
    return Texts(ctc[part], lengths[part], sar[part], torch.tensor([1.0, 0.5, 0.75, 0.2, 0.9])[part])


def value(loss: Loss, name: str) -> float:
    return (loss[name].total / loss[name].weight).item()


def probability(logits: Tensor, word: list[int]) -> float:
    """Probability of `word`: the sum over all alignments that decode to it, enumerated."""
    shares = logits.softmax(1)
    total = 0.0
    for path in itertools.product(range(K + 1), repeat=len(logits)):
        if [character for character, _ in itertools.groupby(path) if character] == word:
            total += math.prod(shares[place, character].item() for place, character in enumerate(path))
    return total


def test_ctc_is_the_mean_negative_log_probability_of_the_texts() -> None:
    logits = torch.randn(5, 4, K + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    words = [row[:length].tolist() for row, length in zip(texts().ctc, texts().lengths, strict=True)]
    expected = [-math.log(probability(sample, word)) for sample, word in zip(logits, words, strict=True)]
    assert value(CTC()(Outputs(logits), texts()), 'ctc') == pytest.approx(sum(expected) / 5)
    focal = [loss * (1 - math.exp(-loss)) ** 2 for loss in expected]
    assert value(CTC(focal=True)(Outputs(logits), texts()), 'ctc') == pytest.approx(sum(focal) / 5)


@pytest.mark.parametrize('focal', [False, True])
def test_a_text_longer_than_the_line_has_loss_zero_but_counts(focal: bool) -> None:
    """Two time steps suffice neither for three characters nor for two equal ones, which need a blank between them."""
    logits = torch.randn(5, 2, K + 1, generator=torch.Generator().manual_seed(0)).requires_grad_()
    total, weight, _ = CTC(focal=focal)(Outputs(logits), texts())['ctc']
    total.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad.abs().sum((1, 2)).gt(0).tolist() == [False, True, False, True, True]
    assert weight == 5


def test_a_batch_of_empty_texts_is_trained_on_blanks() -> None:
    logits = torch.randn(2, 4, K + 1, generator=torch.Generator().manual_seed(0)).requires_grad_()
    nothing = Texts(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 0), torch.ones(2))
    loss = CTC()(Outputs(logits), nothing)
    assert value(loss, 'ctc') == pytest.approx(-logits.log_softmax(2)[:, :, 0].sum().item() / 2)
    loss['ctc'].total.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_the_attention_head_is_trained_on_characters_and_ends_but_not_on_padding() -> None:
    """The texts have 8 characters and 5 ends; the prediction after the last position does not count."""
    logits = torch.randn(5, 6, K + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    text = texts()
    rows = [(sample, place) for sample in range(5) for place in range(int(text.lengths[sample]) + 1)]
    chosen = torch.stack([logits[sample, place] for sample, place in rows])
    expected = F.cross_entropy(chosen, torch.tensor([int(text.guide[sample, place + 1]) for sample, place in rows]))
    loss = SAR()(Outputs(torch.zeros(0), logits), text)
    assert loss['sar'].weight == 13
    assert value(loss, 'sar') == pytest.approx(expected.item())


def test_the_nrtr_head_is_trained_on_smoothed_characters_and_ends_but_not_on_padding() -> None:
    """The true one of N = K + 5 classes has target 0.9, each other one 0.1 / (N - 1)."""
    guide = torch.tensor([[2, 4, 5, 3, 0], [2, 6, 3, 0, 0]])
    text = Texts(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]), guide, torch.ones(2))
    logits = torch.randn(2, 4, K + 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = 0.0
    for sample, place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        target = torch.full((K + 5,), 0.1 / (K + 4), dtype=torch.float64)
        target[guide[sample, place + 1]] = 0.9
        expected -= (target * logits[sample, place].log_softmax(0)).sum().item() / 5
    loss = NRTR()(Outputs(torch.zeros(0), nrtr=logits), text)
    assert loss['nrtr'].weight == 5 == NRTR().weights(text, K)['nrtr']
    assert value(loss, 'nrtr') == pytest.approx(expected)
    with pytest.raises(ValueError, match=r'^the loss nrtr needs an NRTR head, which this network does not have; use ctc$'):
        NRTR()(Outputs(torch.zeros(2, 4, K + 1)), text)


def test_both_heads_are_weighted() -> None:
    outputs = Outputs(torch.randn(5, 4, K + 1), torch.randn(5, 6, K + 2))
    loss = Multi(ctc_weight=0.5, sar_weight=2.0)(outputs, texts())
    assert value(loss, 'ctc') == pytest.approx(0.5 * value(CTC()(outputs, texts()), 'ctc'))
    assert value(loss, 'sar') == pytest.approx(2 * value(SAR()(outputs, texts()), 'sar'))


def test_half_precision_logits_are_summed_in_single_precision() -> None:
    outputs = Outputs(torch.randn(5, 4, K + 1).bfloat16(), torch.randn(5, 6, K + 2).bfloat16())
    for loss in Multi()(outputs, texts()).values():
        assert loss.total.dtype == torch.float32


def test_a_network_without_attention_head_is_reported() -> None:
    with pytest.raises(ValueError, match=r'^the losses sar and multi need a SAR head, .*; use ctc$'):
        Multi()(Outputs(torch.zeros(5, 4, K + 1)), texts())
