"""The contract of every segmentation loss: the cut of a step changes nothing, and options are checked before it.

Expected numbers come from the uncut batch, from the definition of the Lovász extension by sorting, and by hand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from phalanx.config.bind import Part, bind
from phalanx.config.read import ConfigError, override, read
from phalanx.engine.schema import Recipe
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss import LOSSES, PixelLoss
from phalanx.families.segmentation.loss.connectivity import SemanticConnectivity
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.dice import Dice
from phalanx.families.segmentation.loss.lovasz import LovaszHinge, LovaszSoftmax
from phalanx.families.segmentation.loss.rmi import RegionMutualInformation
from phalanx.families.segmentation.loss.terms import Mixed, build_terms
from phalanx.families.segmentation.task import Segmentation
from phalanx.parallel.step import WholeStep

UNET_PET = Path(__file__).parents[4] / 'recipes' / 'segmentation' / 'unet_pet.yml'


def batch() -> tuple[Tensor, Tensor]:
    """Logits [7, 5, 6, 8] and labels [7, 6, 8]; one sample is completely void, and class 4 is in one sample only."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, 5, 6, 8, generator=generator)
    labels = torch.randint(0, 4, (7, 6, 8), generator=generator)
    labels[2, 0] = 4
    labels[4] = VOID
    labels[6, 1:] = VOID
    return logits.requires_grad_(), labels


def value_and_gradient(loss: PixelLoss) -> tuple[float, Tensor]:
    logits, labels = batch()
    value = loss(logits, labels, WholeStep()).mean()
    value.backward()
    assert logits.grad is not None
    return value.item(), logits.grad


def test_lovasz_softmax_matches_the_sorted_definition() -> None:
    logits, labels = batch()
    valid = labels != VOID
    probabilities = logits.detach().double().softmax(1).movedim(1, 3)[valid]  # [N, 5]
    losses = []
    for number in range(5):
        own = labels[valid] == number
        errors, order = (own.double() - probabilities[:, number]).abs().sort(descending=True)
        wrong_own, wrong_others = own[order].cumsum(0), (~own[order]).cumsum(0)
        one_minus_iou = 1 - (own.sum() - wrong_own) / (own.sum() + wrong_others)
        losses.append((errors * one_minus_iou.diff(prepend=torch.zeros(1))).sum())
    value, _ = value_and_gradient(LovaszSoftmax())
    assert value == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)


def binary_batch() -> tuple[Tensor, Tensor]:
    """Logits [7, 2, 13, 14] and labels [7, 13, 14] of two classes; some samples have no pixel of the second."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (7, 13, 14), generator=generator)
    labels[3:5] = 0
    labels[:, 0] = VOID
    return 2 * torch.randn(7, 2, 13, 14, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize('samples', [slice(0, 7), slice(3, 5)], ids=['both classes', 'the first alone'])
def test_lovasz_hinge_matches_the_sorted_definition(samples: slice) -> None:
    """Scores as in PaddleSeg, with its constant outside the quotient; a bin of errors is 0.01 % to 0.1 % wide."""
    logits, labels = (whole[samples] for whole in binary_batch())
    probability, truth = logits.softmax(1)[:, 1][labels != VOID], labels[labels != VOID]
    score = torch.log(probability + 1e-9 / (1 - probability + 1e-9))
    errors, order = (1 - score * (2 * truth - 1)).sort(descending=True)
    own = truth[order]
    one_minus_iou = 1 - (own.sum() - own.cumsum(0)) / (own.sum() + (1 - own).cumsum(0))
    expected = (errors.relu() * one_minus_iou.diff(prepend=torch.zeros(1))).sum()
    total, weight, _ = LovaszHinge()(logits, labels, WholeStep())
    assert (total / weight).item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_lovasz_hinge_of_log_odds_by_hand() -> None:
    """Log-odds 0.5 and -3 of the class, -1 of no class: errors 0.5, 4 and 0. The largest alone takes half of the IoU away, both
    pixels of the class all of it: 4 * 1/2 + 0.5 * 1/2."""
    logits = torch.tensor([[[[0.0, 2.0, 0.25]], [[0.5, -1.0, -0.75]]]], dtype=torch.float64)
    total, weight, _ = LovaszHinge(score='log_odds')(logits, torch.tensor([[[1, 1, 0]]]), WholeStep())
    assert (total / weight).item() == pytest.approx(2.25, rel=1e-4)


def test_rmi_is_the_log_determinant_of_the_posterior_covariance() -> None:
    """In numpy, region by region; sums of squares, and a ridge of 5e-4 on both matrices, as in PaddleSeg."""

    def vectors(maps: np.ndarray) -> np.ndarray:  # [13, 14] -> [9, 9]: of maxima over windows, at the edges over what is there
        windows = np.array(
            [[maps[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].max() for x in range(0, 14, 3)] for y in range(0, 13, 3)]
        )
        found = [windows[y : y + 3, x : x + 3].ravel() for y in range(3) for x in range(3)]
        return (np.array(found) - np.mean(found, 0)).T

    logits, labels = binary_batch()
    losses, ridge = [], 5e-4 * np.eye(9)
    for sample in range(7):
        for number in range(2):
            valid = labels[sample].numpy() != VOID
            truth = vectors((labels[sample].numpy() == number).astype(float))
            guess = vectors(logits[sample, number].sigmoid().numpy() * valid + 1e-6)
            slopes = np.linalg.solve(guess @ guess.T + ridge, guess @ truth.T)
            losses.append(np.log(np.linalg.det(truth @ truth.T - truth @ guess.T @ slopes + ridge)) / 2 / 9)
    total, weight, _ = RegionMutualInformation()(logits, labels, WholeStep())
    assert (total / weight).item() == pytest.approx(sum(losses) / 7, rel=1e-6)


def test_the_lovasz_hinge_is_for_two_classes() -> None:
    LovaszHinge().check(2)
    with pytest.raises(ValueError, match='lovasz_hinge needs 2 classes, but the data set has 19; use lovasz'):
        LovaszHinge().check(19)


def test_dice_by_hand() -> None:
    """Two pixels of class 0 and a void one; class 0 gets 3/4 in the first and 1/4 in the second."""
    logits = torch.tensor([[[[3.0, 1, 5]], [[1.0, 3, 5]]]]).log()  # [1, 2, 1, 3]
    term = Dice(smooth=1)(logits, torch.tensor([[[0, 0, VOID]]]), WholeStep())
    class_0 = 1 - (2 * (3 / 4 + 1 / 4) + 1) / (3 / 4 + 1 / 4 + 2 + 1)
    class_1 = 1 - 1 / (1 / 4 + 3 / 4 + 1)
    assert (term.total / term.weight).item() == pytest.approx((class_0 + class_1) / 2)


def predicting(*rows: str) -> tuple[Tensor, Tensor]:
    """Logits [1, 3, H, W] and labels [1, H, W] of an image; each cell of a row has the predicted, then the true class."""
    predicted, true = (torch.tensor([[int(place[n]) for place in row.split()] for row in rows]) for n in (0, 1))
    logits = nn.functional.one_hot(predicted, 3).permute(2, 0, 1).float()
    return logits[None].requires_grad_(), true.where(true != 9, VOID)[None]


@pytest.mark.parametrize(
    ('rows', 'classes'),
    [
        pytest.param(['11 11 11 01', '11 11 01 01'], [1 - 5 / 8], id='one area of 8, 5 pixels of which are found'),
        pytest.param(['11 01 01 11 11 11'], [1 - (1 / 6 + 3 / 6) / 2], id='an area found in two parts: the mean of both'),
        pytest.param(['11 11 00 01 11 11'], [1, 1 - (1 + 2 / 3) / 2], id='two areas, each with its part; class 0 costs 1'),
        pytest.param(['11 11 00 10 00 00'], [1, 1 - 1 / 2], id='an area that meets none counts as one more'),
        pytest.param(['01 01 00 10'], [1, 1 - 0 / 2], id='an area where there is none, none where there is one'),
        pytest.param(['01 01 00 00'], [1, 1 + 2 / 4], id='a class that is nowhere found: 1, and its share of the image'),
        pytest.param(['22 22 12 12'], [1 - 2 * 2 / (2 * 2 + 4 - 2 * 2)], id='pixels of class 2 count twice'),
        pytest.param(['11 01', '01 11'], [1 - 2 / 4], id='what touches at a corner is one area'),
        pytest.param(['11 11 09 09 19'], [1 - 1 / 2], id='void is not a class, but areas may be predicted there'),
        pytest.param(['09 19'], [0], id='every pixel is ignored'),
    ],
)
def test_semantic_connectivity_by_hand(rows: list[str], classes: list[float]) -> None:
    """The cost per class, by the formulas of Chu et al.; their mean is that of the image."""
    logits, labels = predicting(*rows)
    term = SemanticConnectivity()(logits, labels, WholeStep())
    assert (term.total / term.weight).item() == pytest.approx(sum(classes) / len(classes))


def test_only_the_first_of_many_predicted_components_are_used() -> None:
    """Five predicted components and a true one, 6 and 2 with backgrounds; the true one overlaps the fourth and the fifth."""
    logits, labels = predicting('19 09 19 09 19 09 11 01 11')
    for most, expected in ((10, 1 - (1 / 3) / 4), (5, 1 - (1 / 3) / 4), (4, 1 - 0 / 4), (1, 1 + 1 / 9)):
        term = SemanticConnectivity(most=most)(logits, labels, WholeStep())
        assert (term.total / term.weight).item() == pytest.approx(expected), most


def test_semantic_connectivity_has_no_gradient_but_leaves_no_parameter_without_one() -> None:
    logits, labels = predicting('11 01 00')
    SemanticConnectivity()(logits, labels, WholeStep()).total.backward()
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize('name', ['cross_entropy', 'ohem', 'dice'])
def test_there_must_be_one_class_weight_per_class(name: str) -> None:
    options = {'min_kept_per_sample': 10} if name == 'ohem' else {}
    part = Part(LOSSES[name], class_weights=(1, 2), **options).with_name(name)
    part().check(2)
    for loss in (part(), Mixed(losses=(part,), coefficients=(1,))):
        (term,) = build_terms([(name, loss, 1.0)])
        with pytest.raises(ValueError, match=r'^class_weights has 2 values, but there are 19 classes: give one per class$'):
            term.loss.check(19)


def test_a_recipe_mixes_losses_of_one_output() -> None:
    parts = '[{name: cross_entropy, class_weights: [1, 2, 3]}, lovasz]'
    root = override(read(UNET_PET), f'loss=[{{name: mixed, losses: {parts}, coefficients: [0.8, 0.2]}}]')
    _, task, _ = bind(root, Recipe, Segmentation)
    assert [term[2:] for term in task.terms] == [(CrossEntropy(class_weights=(1, 2, 3)), 0.8), (LovaszSoftmax(), 0.2)]
    assert isinstance(task.model(), nn.Module)


@pytest.mark.parametrize(
    ('losses', 'problem'),
    [
        ('[{name: mixed, losses: [dise], coefficients: [1]}]', "'dise' is not one of cross_entropy, ohem, dice, lovasz"),
        ('[{name: mixed, losses: [dice], coefficients: [1, 2]}]', 'mixed has 1 losses, but 2 coefficients'),
        ('[{name: dice, smooth: -1}]', 'smooth is -1.0; it must be at least 0'),
    ],
)
def test_wrong_options_are_reported(losses: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        bind(override(read(UNET_PET), f'loss={losses}'), Recipe, Segmentation)


def test_class_weights_of_a_wrong_length_are_refused_before_the_start() -> None:
    root = override(read(UNET_PET), 'loss=[{name: cross_entropy, class_weights: [1, 2]}]')
    _, task, _ = bind(root, Recipe, Segmentation)
    with pytest.raises(ValueError, match=r'^class_weights has 2 values, but there are 3 classes: give one per class$'):
        task.model()


def test_nan_logits_give_a_nan_loss() -> None:
    logits, labels = batch()
    logits = logits.detach().clone()
    logits[0, 0, 0, 0] = torch.nan
    for loss in (CrossEntropy(), Dice(), LovaszSoftmax(), SemanticConnectivity()):
        assert loss(logits, labels, WholeStep()).total.isnan()
    logits, labels = binary_batch()
    logits[0, 0, 5, 5] = torch.nan
    for loss in (LovaszHinge(), RegionMutualInformation()):
        assert loss(logits, labels, WholeStep()).total.isnan()
