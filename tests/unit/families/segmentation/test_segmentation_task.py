"""The segmentation Task: from samples to losses, class maps, pictures and files."""

import json
import math
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image
from torch import Tensor, nn

from phalanx.config.bind import Part, bind
from phalanx.config.read import read
from phalanx.data.image import palette
from phalanx.data.samples import Draw
from phalanx.engine.schema import Recipe
from phalanx.families.segmentation.data import DATA
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss import LOSSES
from phalanx.families.segmentation.models import MODELS
from phalanx.families.segmentation.task import Sample, Segmentation
from phalanx.families.segmentation.transforms import TRANSFORMS
from phalanx.parallel.step import WholeStep
from phalanx.runtime.segmentation import Segmentation as Runtime
from phalanx.system.errors import RunError

RECIPES = sorted((Path(__file__).parents[4] / 'recipes' / 'segmentation').glob('*.yml'))
DIGITS = partial(DATA['digit_scenes'], train_scenes=4, eval_scenes=2, size=(48, 64))
CE = Part(LOSSES['cross_entropy']).with_name('cross_entropy')


def task(**changes: Any) -> Segmentation:
    parts = {'model': partial(MODELS['unet']), 'data': DIGITS, 'loss': (CE,)}
    return Segmentation(Segmentation.Keys(**{**parts, **changes}))


class Reds(nn.Module):
    """Network with known results: class 1 where red is above the middle, else class 0."""

    def forward(self, images: Tensor) -> list[Tensor]:
        red = images[:, :1]
        return [torch.cat([-red, red], dim=1)]


def sample(image: np.ndarray, labels: np.ndarray) -> Sample:
    return Sample(torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(labels))


def half_red(height: int, width: int) -> np.ndarray:
    image = np.zeros((height, width, 3), np.uint8)
    image[:, width // 2 :, 0] = 255
    return image


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path) -> None:
    recipe, bound, _ = bind(read(path), Recipe, Segmentation)
    assert recipe.task == 'segmentation'
    with torch.device('meta'):  # without drawing its weights
        assert isinstance(bound.model(), nn.Module)  # also: as many losses as outputs
    assert pickle.dumps(bound)  # loader workers may be started afresh


def test_training_samples_are_transformed_and_a_function_of_their_draw() -> None:
    crop = partial(TRANSFORMS['random_padding_crop'], crop_size=(40, 32))
    data = task(transforms=(crop, partial(TRANSFORMS['random_flip']))).dataset('train')
    one, again, other = (data[Draw(1, epoch, 5, 0)] for epoch in (3, 3, 4))
    assert (len(data), one.image.shape, one.labels.shape) == (4, (3, 40, 32), (40, 32))
    assert one.image.dtype == one.labels.dtype == torch.uint8
    assert torch.equal(one.image, again.image) and torch.equal(one.labels, again.labels)
    assert not torch.equal(one.image, other.image)


def test_evaluation_uses_the_untransformed_label_map() -> None:
    data = task(eval_transforms=(partial(TRANSFORMS['resize'], target_size=(16, 32)),)).dataset('eval')
    shown = data[Draw(0, 0, 0, 0)]
    assert shown.image.shape == (3, 16, 32)
    assert_array_equal(shown.labels, DIGITS().split('eval').read(Draw(0))[1])


def test_a_batch_of_images_of_different_sizes_is_refused() -> None:
    small, large = (sample(half_red(*size), np.zeros(size, np.uint8)) for size in ((4, 6), (8, 6)))
    with pytest.raises(ValueError, match=re.escape('differ in size (6 x 4, 6 x 8): end the transforms with one that fixes')):
        task().collate([small, large])


def test_label_maps_of_one_batch_may_differ_in_size() -> None:
    maps = [np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(20, dtype=np.uint8).reshape(5, 4)]
    batch = task().collate([sample(half_red(4, 6), labels) for labels in maps]).to(torch.device('cpu'))
    assert (len(batch), batch.images.shape) == (2, (2, 3, 4, 6))
    for given, found in zip(maps, batch.truths, strict=True):
        assert_array_equal(found, given)


def test_each_output_has_its_loss_times_its_coefficient() -> None:
    """Logits of zero: the cross-entropy of 11 classes is ln 11 for each of the 12 valid pixels."""

    class Zeros(nn.Module):
        def forward(self, images: Tensor) -> list[Tensor]:
            return [images.new_zeros(1, 11, 4, 4) for _ in range(3)]

    labels = np.array([[0, 3, 5, VOID]] * 4, np.uint8)
    ours = task(loss=(CE, CE, Part(LOSSES['ohem'], min_kept_per_sample=0).with_name('ohem')), loss_coefficients=(1.0, 0.4, 0.5))
    batch = ours.collate([sample(half_red(4, 4), labels)])
    terms = ours.loss(ours.outputs(Zeros(), batch), batch, WholeStep())
    assert list(terms) == ['cross_entropy', 'cross_entropy_1', 'ohem_2']
    for (total, weight, _), coefficient in zip(terms.values(), (1, 0.4, 0.5), strict=True):
        assert float(total) == pytest.approx(12 * math.log(11) * coefficient)
        assert float(weight) == pytest.approx(12, rel=1e-4)


@pytest.mark.parametrize(
    ('outputs', 'returned'),
    [
        (2 * [torch.zeros(1, 11, 4, 4)], '2 of [1, 11, 4, 4], [1, 11, 4, 4]'),  # else the second would learn nothing
        ([torch.zeros(1, 11, 2, 2)], '1 of [1, 11, 2, 2]'),
        (torch.zeros(1, 11, 4, 4), 'Tensor'),
        ({'out': torch.zeros(1, 11, 4, 4)}, 'dict'),
        (None, 'NoneType'),
    ],
)
def test_outputs_of_a_foreign_network_that_are_no_logits_for_the_losses_are_reported(outputs: Any, returned: str) -> None:
    ours = task()
    batch = ours.collate([sample(half_red(4, 4), np.zeros((4, 4), np.uint8))])
    with pytest.raises(RunError) as caught:
        ours.loss(outputs, batch, WholeStep())
    assert str(caught.value) == f'model: in training it must return a list of 1 logits [1, 11, 4, 4]; it returned {returned}'


def test_a_class_map_has_the_size_of_the_label_map() -> None:
    """The network input is 8 pixels wide, the right half red; the label maps are 24 and 8 wide."""
    ours = task()
    batch = ours.collate([sample(half_red(4, 8), np.zeros(size, np.uint8)) for size in ((12, 24), (4, 8))])
    wide, narrow = ours.results(ours.predict(Reds(), batch), batch)
    assert_array_equal(wide, np.repeat([[0, 1]], 12, 1).repeat(12, 0))
    assert_array_equal(narrow, np.repeat([[0, 1]], 4, 1).repeat(4, 0))
    assert wide.dtype == np.uint8


def test_a_bare_image_is_prepared_as_in_evaluation() -> None:
    ours = task(eval_transforms=(partial(TRANSFORMS['rescale'], factor=0.5),))
    batch = ours.collate([ours.request(half_red(8, 16))])
    assert batch.images.shape == (1, 3, 4, 8)
    (class_map,) = ours.results(ours.predict(Reds(), batch), batch)
    assert_array_equal(class_map, half_red(8, 16)[..., 0] // 255)
    assert set(batch.pixels.tolist()) == {VOID}


def test_padding_in_evaluation_is_the_exact_mean_and_not_a_byte() -> None:
    """127.5 / 255 is 0.5, the mean of the normalisation: 0 after it, as in PaddleSeg; the runtime does the same."""
    seen: list[Tensor] = []

    class Looks(Reds):
        def forward(self, images: Tensor) -> list[Tensor]:
            seen.append(images)
            return super().forward(images)

    ours = task(eval_transforms=(partial(TRANSFORMS['padding'], target_size=(8, 16)),))
    ours.predict(Looks(), ours.collate([ours.request(half_red(4, 10))]))
    ((image,),) = seen
    assert image[:, 4:].abs().max() == 0 == image[:, :, 10:].abs().max()
    assert set(image[0, :4, :10].unique().tolist()) == {-1.0, 1.0}
    guide = {
        'transforms': [{'name': 'Padding', 'target_size': (8, 16)}],
        'channels': 'RGB',
        'mean': [0.5] * 3,
        'std': [0.5] * 3,
    }
    assert_array_equal(Runtime({'preparation': guide, 'reading': {}}).prepare(half_red(4, 10)), image)


def test_padding_is_cropped_before_logits_are_resized() -> None:
    """The network input is 16 x 8, with the image in the left 12 x 4; the right half of that is red."""
    ours = task(
        eval_transforms=(partial(TRANSFORMS['rescale'], factor=0.5), partial(TRANSFORMS['padding'], target_size=(8, 16)))
    )
    image, labels = half_red(8, 24), np.zeros((8, 24), np.uint8)
    request = ours.request(image)
    batch = ours.collate([request])
    assert batch.images.shape == (1, 3, 8, 16)
    (class_map,) = ours.results(ours.predict(Reds(), batch), batch)
    assert_array_equal(class_map, image[..., 0] // 255)
    shown = dict(ours.picture(request, labels))['image']
    assert shown.shape == (8, 24, 3) and (shown[:, :10] < 64).all() and (shown[:, 14:, 0] > 192).all()


def test_the_metric_evaluates_predictions_against_original_labels() -> None:
    """24 of 32 pixels are correct, counted by hand: the left quarter of the truth is class 1, the prediction there 0."""
    labels = half_red(4, 8)[..., 0] // 255
    labels[:, :2] = 1
    ours = task(data=lambda: DATA['file_list'](root=Path(), classes=('a', 'b')))
    batch, metric = ours.collate([sample(half_red(4, 8), labels)]), ours.metric()
    metric.update(ours.predict(Reds(), batch), batch)
    assert metric.compute()['accuracy'] == 24 / 32


def test_a_comparison_shows_image_truth_and_prediction_at_the_original_size() -> None:
    ours = task()
    labels = np.full((12, 24), VOID, np.uint8)
    rows = ours.picture(sample(half_red(4, 8), labels), np.ones((12, 24), np.uint8))
    assert [caption for caption, _ in rows] == ['image', 'truth', 'prediction']
    assert {picture.shape for _, picture in rows} == {(12, 24, 3)}
    assert_array_equal(rows[0][1], rows[1][1])  # all void: the image shows through


def test_a_result_is_saved_as_indices_and_as_an_overlay(tmp_path: Path) -> None:
    class_map = half_red(4, 8)[..., 0] // 255
    files = task().writers.write(class_map, half_red(4, 8), tmp_path / 'frame.0001')
    assert [file.name for file in files] == ['frame.0001.png', 'frame.0001_overlay.jpg']
    with Image.open(files[0]) as saved:
        assert saved.mode == 'P'
        assert_array_equal(np.array(saved), class_map)
        assert_array_equal(np.array(saved.convert('RGB'))[0, 7], palette(2)[1])
    with Image.open(files[1]) as saved:
        assert saved.size == (8, 4)
    (listed,) = task().writers.write(class_map, half_red(4, 8), tmp_path / 'frame', ('json',))
    shares = [(row['label'], row['pixels'], row['share']) for row in json.loads(listed.read_text())]
    assert shares == [(0, 16, 0.5), (1, 16, 0.5)]


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'loss_coefficients': (1.0, 0.4)}, 'loss has 1 entries, but loss_coefficients has 2'),
        (
            {'loss': (Part(LOSSES['semantic_connectivity']).with_name('semantic_connectivity'),)},
            'loss[0]: semantic_connectivity has no gradient',
        ),
        ({'std': (0.5, 0.0, 0.5)}, 'std must be above 0, got 0.5, 0.0, 0.5'),
        ({'transforms': (partial(TRANSFORMS['resize'], target_size=(0, 1)),)}, 'target_size is (height, width)'),
        ({'loss': (Part(LOSSES['ohem'], min_kept_per_sample=-1).with_name('ohem'),)}, 'min_kept_per_sample is -1'),
    ],
)
def test_invalid_options_are_refused_before_anything_is_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        task(**changes)


def test_a_network_with_more_outputs_than_losses_is_refused() -> None:
    with pytest.raises(ValueError, match='the network has 3 outputs in training, but there are 1 losses'):
        task(model=partial(MODELS['pp_liteseg'])).model()
