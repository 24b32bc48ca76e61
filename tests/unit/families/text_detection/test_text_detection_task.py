"""The Task of text detection: from samples to losses, predictions, pictures and files."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from phalanx.curation.census import take_census
from phalanx.data.samples import Draw, Image
from phalanx.engine.job import open_job
from phalanx.families.curated import Surveyed
from phalanx.families.text_detection.data import DATA
from phalanx.families.text_detection.data.source import Texts, make_texts
from phalanx.families.text_detection.loss import LOSSES
from phalanx.families.text_detection.models import MODELS
from phalanx.families.text_detection.models.maps import Maps
from phalanx.families.text_detection.survey import PageSurvey
from phalanx.families.text_detection.task import PostProcessing, Samples, TargetOptions, TextDetection
from phalanx.families.text_detection.transforms import TRANSFORMS
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.parallel.step import WholeStep
from phalanx.runtime.text_detection import TextDetection as Runtime

PAGES = partial(DATA['drawn_pages'], page_size=(64, 96), train_pages=4, eval_pages=3, lines=(1, 2), heights=(12.0, 16.0))


def task(**changes: Any) -> TextDetection:
    options: dict[str, Any] = {
        'model': partial(MODELS['db'], backbone=partial(mobilenet_v3, scale=0.35), neck_channels=16),
        'data': PAGES,
        'loss': (partial(LOSSES['db']),),
    }
    return TextDetection(TextDetection.Keys(**(options | changes)))


class Constant(nn.Module):
    """Test network that returns a given shrink map."""

    def __init__(self, shrink: Tensor) -> None:
        super().__init__()
        self.shrink = shrink

    def forward(self, images: Tensor) -> Maps:
        assert images.shape[2:] == self.shrink.shape[2:]
        return Maps(self.shrink.expand(len(images), -1, -1, -1))


def test_a_step_has_terms_and_gradients_for_every_parameter() -> None:
    made = task()
    dataset = made.dataset('train')
    batch = made.collate([dataset[Draw(index, 0, 0, 0)] for index in range(2)])
    assert batch.images.shape == (2, 3, 64, 96) and all(target.shape == (2, 64, 96) for target in batch.targets)
    model = made.model()
    terms = made.loss(made.outputs(model, batch), batch, WholeStep())
    assert terms.keys() == {'shrink', 'threshold', 'binary'}
    sum(term.mean() for term in terms.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_padding_of_a_batch_does_not_count() -> None:
    made = task()
    large, small = (
        made.dataset('train')[Draw(0, 0, 0, 0)],
        task(data=partial(PAGES, page_size=(64, 64))).dataset('train')[Draw(0, 0, 0, 0)],
    )
    batch = made.collate([large, small])
    assert batch.fitted == ((64, 96), (64, 64))
    assert (
        not batch.masks[1, :, :, 64:].any() and not batch.thresholds[1, :, :, 64:].any() and batch.targets.shrink_mask[0].any()
    )
    first, second = batch.split(2)
    assert torch.equal(second.masks, batch.masks[1:]) and first.indices == (0,)


def test_targets_of_pages_travel_as_bytes_but_for_the_threshold_map() -> None:
    """Values as they were drawn, in 7 instead of 16 bytes per pixel, image included 10."""
    dataset = task().dataset('train')
    sample = dataset[Draw(0, 0, 0, 0)]
    batch = task().collate([sample])
    assert sum(part.nbytes for part in (batch.images, batch.masks, batch.thresholds)) == 10 * 64 * 96
    for found, drawn in zip(batch.targets, sample.targets, strict=True):
        assert found.dtype == torch.float32 and torch.equal(found[0], drawn.float())


def test_a_sample_is_a_function_of_seed_epoch_and_index() -> None:
    transforms = (partial(TRANSFORMS['random_rotate']), partial(TRANSFORMS['random_crop'], crop_size=(64, 64)))
    dataset = pickle.loads(pickle.dumps(task(transforms=transforms).dataset('train')))  # noqa: S301
    once, again, other = (dataset[Draw(1, epoch, step, 5)] for epoch, step in ((2, 9), (2, 11), (3, 9)))
    assert torch.equal(once.image, again.image)
    assert all(torch.equal(*pair) for pair in zip(once.targets, again.targets, strict=True))
    assert not torch.equal(once.image, other.image)


def test_predictions_are_in_pixels_of_the_original_image() -> None:
    """An image of 50 x 100 is resized to 64 x 128 and padded to 64 x 160; coordinates on the map become those of the image."""
    made = task(eval_transforms=(partial(TRANSFORMS['limit_side'], side=64, limit='min'),))
    samples = [made.request(np.zeros((50, 100, 3), np.uint8)), made.request(np.zeros((64, 160, 3), np.uint8))]
    shrink = torch.zeros(1, 1, 64, 160)
    shrink[:, :, 20:41, 32:97] = 0.9
    first, second = made.predict(Constant(shrink), made.collate(samples))
    assert second[0].points != first[0].points
    widths = [max(x for x, _ in one[0].points) - min(x for x, _ in one[0].points) for one in (first, second)]
    assert widths[0] == pytest.approx(widths[1] * 100 / 128, abs=2)


def test_results_are_written_as_json_and_as_a_picture(tmp_path: Path) -> None:
    made = task()
    shrink = torch.zeros(1, 1, 64, 96)
    shrink[:, :, 20:41, 20:81] = 0.9
    image = np.full((64, 96, 3), 255, np.uint8)
    (found,) = made.predict(Constant(shrink), made.collate([made.request(image)]))
    listed, over = made.writers.write(found, image, tmp_path / 'page')
    (region,) = json.loads(listed.read_text())
    assert region['score'] == pytest.approx(0.9) and len(region['points']) == 4
    assert over.name == 'page_overlay.jpg' and over.stat().st_size > 0
    text, cut = made.writers.write(found, image, tmp_path / 'page', ('txt', 'crops'))
    assert text.read_text() == ','.join(f'{value:.0f}' for point in region['points'] for value in point) + '\n'
    assert cut.name == 'page_001.jpg' and cut.stat().st_size > 0
    pictures = made.picture(made.dataset('eval')[Draw(0, 0, 0, 0)], found)
    assert [caption for caption, _ in pictures] == ['truth', 'prediction']
    assert pictures[1][1].shape == (64, 96, 3)


@pytest.mark.parametrize('transforms', [(partial(TRANSFORMS['limit_side'], side=64, limit='min'),), ()])
def test_an_exported_file_gives_the_same_texts(transforms: tuple[Any, ...]) -> None:
    """The runtime, from the guide alone, prepares the same input and finds the same texts on the same map.

    Without a transform the sides of the image are no multiples of 32.
    """
    made = task(eval_transforms=transforms)
    image = np.random.default_rng(0).integers(0, 255, (50, 100, 3), dtype=np.uint8)
    model = made.model().eval()
    export = made.export(model)
    assert export.dynamic == {2: 32, 3: 32}
    guide = json.loads(json.dumps({'preparation': export.preparation, 'reading': export.reading}))
    runtime = Runtime(guide)
    prepared = torch.from_numpy(runtime.prepare(image))
    batch = made.collate([made.request(image)])
    torch.testing.assert_close(prepared, made.network_input(batch)[0])
    shrink = torch.zeros(1, 1, 64, 128)
    shrink[:, :, 20:41, 32:97] = 0.9
    (found,) = made.predict(Constant(shrink), batch)
    assert runtime.prediction({'probabilities': shrink[0, 0].numpy()}, image) == found
    with torch.no_grad():
        assert export.network(prepared[None]).shape == (1, 64, 128)
    with pytest.raises(ValueError, match='contours of text'):
        made.export(model, post_processing=True)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (lambda: PostProcessing(threshold=1.5), 'threshold must lie between 0 and 1'),
        (lambda: PostProcessing(unclip_ratio=0.0), 'unclip_ratio above 0'),
        (lambda: TargetOptions(shrink_ratio=1.0), 'shrink_ratio must be above 0 and below 1'),
        (lambda: TargetOptions(threshold_min=0.8), 'thresholds must satisfy'),
        (lambda: task(std=(0.0, 1.0, 1.0)), 'std must be above 0'),
    ],
)
def test_invalid_options_are_rejected(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options()


class OnePage:
    """Source of texts of each kind: usable, ignored, beyond the image, small, self-intersecting."""

    def __len__(self) -> int:
        return 1

    def check_files(self) -> None:
        """Nothing is missing."""

    def name(self, index: int) -> str:
        return 'the page'

    def read(self, draw: Draw) -> tuple[Image, Texts]:
        corners = ((2, 2, 30, 20), (2, 25, 30, 40), (50, 2, 90, 20), (40, 30, 60, 34))
        pairs = [(np.array([[a, b], [c, b], [c, d], [a, d]], np.float32), '') for a, b, c, d in corners]
        pairs[1] = (pairs[1][0], '###')
        pairs.append((np.array([[2, 50], [30, 62], [30, 50], [2, 62]], np.float32), ''))
        return np.zeros((64, 64, 3), np.uint8), make_texts(pairs)


def test_unusable_texts_are_counted_by_reason() -> None:
    counts = PageSurvey(OnePage(), 8).count(0)[1]
    assert counts == {
        'text': 4,
        '(ignored)': 1,
        '(extends beyond the image)': 1,
        '(smaller than 8 pixels)': 1,
        '(crosses itself)': 1,
    }
    assert PageSurvey(OnePage(), 8).picture(0).any()


def test_a_recipe_has_a_survey_of_its_pages() -> None:
    settings = [('data.train_pages=2', ''), ('data.eval_pages=1', ''), ('data.page_size=[96, 96]', '')]
    made = open_job('db_pages', settings).task
    assert isinstance(made, Surveyed)
    census = take_census(made, limit=None, workers=0, advance=lambda *_: None)
    assert (census.unit, census.problems, census.read()) == ('texts', [], 3)


def test_evaluation_keeps_texts_in_pixels_of_the_original_image() -> None:
    made = task(eval_transforms=(partial(TRANSFORMS['resize'], target_size=(128, 192)),))
    dataset: Samples = made.dataset('eval')
    sample = dataset[Draw(0, 0, 0, 0)]
    assert sample.image.shape == (3, 128, 192) and sample.size == (64, 96) and sample.targets is None
    assert sample.truth.strings == dataset.source.read(Draw(0))[1].strings


@pytest.mark.parametrize('neck', ['fpn', 'rse_fpn', 'lk_pan'])
def test_each_neck_gives_maps_of_the_size_of_the_images(neck: str) -> None:
    model = MODELS['db'](backbone=partial(mobilenet_v3, scale=0.35), neck=neck, neck_channels=16).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 64, 96)).shrink.shape == (1, 1, 64, 96)
