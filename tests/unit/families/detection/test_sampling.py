"""Sampling of unbalanced detection data: how often images occur, and in which order."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from phalanx.data.listed import Packed
from phalanx.data.mixing import Shares
from phalanx.data.samples import Draw, ResampledSource
from phalanx.engine.loader import Stream
from phalanx.families.detection.data.annotated import AnnotatedImages
from phalanx.families.detection.data.digit_scenes import DigitScenes
from phalanx.families.detection.data.sampling import ClassBalanced, Presence, RepeatFactor, resample
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.loss import LOSSES
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.task import Detection, Samples

NAMES = ('cat', 'dog')


def annotated(*images: list[int]) -> AnnotatedImages:
    """One image per list of classes; class -1 is an ignored cat."""
    labels = np.array([label for image in images for label in image], np.int64)
    boxes = np.tile(np.array([[0, 0, 9, 9]], np.float32), (len(labels), 1))
    objects = Objects(boxes, np.abs(labels) * (labels > 0), labels < 0, boxes[:, 2])
    starts = np.cumsum([0, *map(len, images)])
    paths = Packed.of(f'{number}.png' for number in range(len(images)))
    return AnnotatedImages(Path('/data'), paths, np.zeros((len(images), 2), np.int64), starts, objects, False, {'odd': 2}, {})


UNBALANCED = annotated([0], [0, 0], [0, 1], [0], [], [0], [0, -1], [0])  # dogs in one of eight images, cats in seven


class Numbers:
    """Source whose samples are the draws it gets."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def name(self, index: int) -> str:
        return f'number {index}'

    def read(self, draw: Draw) -> Draw:
        return draw


def test_repeat_factor_repeats_images_by_their_rarest_class() -> None:
    # dogs: f = 1/8, sqrt(0.5 / 0.125) = 2; cats: f = 7/8, not repeated
    assert_allclose(RepeatFactor(threshold=0.5)(Presence.of(UNBALANCED, 2)), [1, 1, 2, 1, 1, 1, 1, 1])


def test_class_balanced_gives_every_class_the_same_share() -> None:
    # half of the seven samples of images with objects for dogs, all of one image; the other half for cats, of seven images
    repeats = ClassBalanced()(Presence.of(UNBALANCED, 2))
    assert_allclose(repeats, [0.5, 0.5, 0.5 + 3.5, 0.5, 1, 0.5, 0.5, 0.5])


@pytest.mark.parametrize('epoch', range(5))
def test_an_epoch_takes_each_sample_as_often_as_its_repeats_say_rounded_up_or_down(epoch: int) -> None:
    repeats = np.array([0.25, 3.5, 1, 0, 2.25])
    source = ResampledSource(Numbers(5), repeats.cumsum())
    assert len(source) == 7
    counts = Counter(source.read(Draw(index, epoch, 0, 3)).index for index in range(7))
    assert all(np.floor(mean) <= counts[number] <= np.ceil(mean) for number, mean in enumerate(repeats))


def test_epochs_take_different_samples_with_the_right_means() -> None:
    repeats = np.array([0.25, 0.75, 0.5, 0.5])
    source = ResampledSource(Numbers(4), repeats.cumsum())
    seen = Counter(source.read(Draw(index, epoch, 0, 0)).index for epoch in range(2000) for index in range(2))
    assert_allclose([seen[number] / 2000 for number in range(4)], repeats, atol=0.05)  # 4 standard deviations and more


@pytest.mark.parametrize('ranks', [2, 3])
def test_the_order_of_samples_is_the_same_on_any_number_of_ranks_and_from_any_step(ranks: int) -> None:
    source = resample(UNBALANCED, RepeatFactor(threshold=1), NAMES)

    def files(rank: int, world_size: int, step: int) -> list[str]:
        return [source.files(draw)[0] for draw in Stream(len(source), 6, 1, 0, rank, world_size).share(step)]

    # later steps first, as after a resume
    assert all(
        [name for rank in range(ranks) for name in files(rank, ranks, step)] == files(0, 1, step) for step in reversed(range(9))
    )


def test_the_start_states_the_length_of_an_epoch_and_the_rarest_class() -> None:
    notes = resample(UNBALANCED, RepeatFactor(threshold=0.5), NAMES).notes
    assert notes == {
        'odd': 2,
        'samples per epoch from 8 images by sampling: images with dog, the rarest class: 1, samples with it: 2': 9,
    }


def test_classes_that_are_unknown_before_reading_are_refused_with_the_way_out() -> None:
    generated = DigitScenes(train_scenes=2).split('train')
    for source in (generated, Shares([UNBALANCED, UNBALANCED], [1, 2])):
        with pytest.raises(ValueError, match=r'only coco, objects365, yolo and pascal_voc.*train_shares'):
            resample(source, ClassBalanced(), NAMES)


def test_only_training_samples_are_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Data:
        class_names = NAMES

        def split(self, split: str) -> Any:
            return UNBALANCED

    monkeypatch.setattr(AnnotatedImages, 'check_files', lambda self: None)  # there are no files
    parts = {'model': partial(MODELS['ppyoloe']), 'loss': (partial(LOSSES['task_aligned']),), 'data': partial(Data)}
    task = Detection(Detection.Keys(**parts, sampling=partial(RepeatFactor, threshold=0.5)))
    assert [len(task.dataset(split)) for split in ('train', 'eval')] == [9, 8]
    assert len(task.for_validation_loss(task.dataset('eval')).dataset('train')) == 8


def test_epochs_of_a_mixture_take_different_samples_of_a_fractional_share() -> None:
    class Pictures(Numbers):
        def read(self, draw: Draw) -> Any:  # type: ignore[override]
            return np.full((4, 4, 3), draw.index, np.uint8), Objects.none()

    samples = Samples(Shares([Pictures(100)], [0.1]), (), 'train')
    epochs = [{int(samples[Draw(index, epoch)].image[0, 0, 0]) for index in range(10)} for epoch in range(3)]
    assert len(set.union(*epochs)) > 10
