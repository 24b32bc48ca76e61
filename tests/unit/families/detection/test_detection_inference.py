"""Detection by windows, scales and flips, with a network that finds the bright rectangles of an image exactly."""

from dataclasses import asdict
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from phalanx.families.detection.data import DATA
from phalanx.families.detection.inference import Inference
from phalanx.families.detection.loss import LOSSES
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.nms import NO_SUPPRESSION, Nms, multiclass_nms
from phalanx.families.detection.task import Detection
from phalanx.runtime import detection as runtime

MOST = 40  # boxes of an input


class Rectangles(nn.Module):
    """Network that finds each bright rectangle: its box within the input, certain by 0.9 in class 1 of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(tuple(images.shape[2:]))
        return images

    def decode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = torch.zeros(len(images), MOST, 4), torch.zeros(len(images), MOST, 2)
        for image, own, likelihood in zip(images, boxes, scores, strict=True):
            _, _, found, _ = cv2.connectedComponentsWithStats((image[0].numpy() > 0.5).view(np.uint8))
            for place, (x, y, width, height, _) in enumerate(found[1:].tolist()):
                own[place], likelihood[place, 1] = torch.tensor([x, y, x + width, y + height]), 0.9
        return boxes, scores


def scene(boxes: list[list[int]], height: int = 192, width: int = 256) -> Tensor:
    image = torch.zeros(1, 3, height, width)
    for x0, y0, x1, y1 in boxes:
        image[:, :, y0:y1, x0:x1] = 1
    return image


def find(inference: Inference, image: Tensor) -> list[list[float]]:
    ((boxes, _, classes),) = multiclass_nms(*inference(Rectangles(), image), Nms())
    assert classes.tolist() == [1] * len(classes)
    return sorted(boxes.tolist())


@pytest.mark.parametrize('place', range(0, 60, 4))
def test_an_object_anywhere_across_seams_counts_once_with_its_whole_box(place: int) -> None:
    # windows of 96 overlap by 32 pixels: objects of up to 24 are whole in one of them
    boxes = sorted(
        [[place + 40 * n, (7 * place + 50 * n) % 168, place + 40 * n + 24, (7 * place + 50 * n) % 168 + 24] for n in range(5)]
    )
    assert find(Inference(window=(96, 96), window_stride=(64, 64)), scene(boxes)) == boxes


def test_an_image_smaller_than_a_window_is_seen_whole() -> None:
    network = Rectangles()
    Inference(window=(320, 320), window_stride=(160, 160))(network, scene([]))
    assert network.seen == [(192, 256)]


def test_windows_are_seen_one_after_the_other_in_their_size() -> None:
    network = Rectangles()
    Inference(window=(96, 128), window_stride=(96, 64))(network, scene([]))
    assert network.seen == [(96, 128)] * 6


@pytest.mark.parametrize('window', [None, (96, 96)])
def test_boxes_of_scales_and_flips_come_back_to_the_image(window: tuple[int, int] | None) -> None:
    boxes = [[8, 8, 24, 24], [100, 60, 124, 80], [200, 150, 216, 166]]
    inference = Inference(window=window, window_stride=window and (48, 48), scales=(1.0, 2.0), flip_horizontal=True)
    assert_allclose(find(inference, scene(boxes)), boxes, atol=1)


@pytest.mark.parametrize(
    'options',
    [
        {'window': (64, 96), 'window_stride': (32, 48)},
        {'scales': (1.0, 0.7, 1.3)},
        {'flip_horizontal': True},
        {'window': (64, 64), 'window_stride': (32, 32), 'scales': (0.5, 1.0), 'flip_horizontal': True},
    ],
    ids=str,
)
def test_the_runtime_sees_the_windows_scales_and_flips_of_evaluation(options: dict[str, Any]) -> None:
    inference, network, image = (
        Inference(**options),
        Rectangles(),
        scene([[8, 8, 24, 24], [50, 20, 90, 51], [200, 150, 216, 166]]),
    )
    guide = {'preparation': {'multiple_of': 32}, 'reading': {'inference': asdict(inference)}}

    def run(images: np.ndarray) -> dict[str, Any]:
        boxes, scores = network.decode(network(torch.from_numpy(images)))
        return {'boxes': boxes.numpy(), 'scores': scores.numpy()}

    expected_boxes, expected_scores = inference(Rectangles(), image)
    found = runtime.Detection(guide).outputs(run, image.numpy())
    assert_allclose(found['scores'], expected_scores)
    assert_allclose(found['boxes'], expected_boxes, rtol=1e-6)
    assert len(network.seen) > 1


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'window': (96, 100), 'window_stride': (64, 64)}, 'multiples of 32'),
        ({'window': (96, 96)}, 'both window and window_stride'),
        ({'window': (96, 96), 'window_stride': (97, 64)}, 'pixels are left out'),
        ({'scales': (0.0,)}, 'above 0'),
    ],
)
def test_windows_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Inference(**options)


def task(**changes: Any) -> Detection:
    parts = {'model': partial(MODELS['ppyoloe'], size='n'), 'loss': (partial(LOSSES['task_aligned']),)}
    return Detection(Detection.Keys(**parts, data=partial(DATA['digit_scenes']), **changes))


def test_boxes_of_several_views_are_suppressed_also_for_detectors_with_queries() -> None:
    class Queries:
        takes_truths = True

    assert task().suppression(Queries()) == NO_SUPPRESSION
    assert task(inference=Inference(flip_horizontal=True)).suppression(Queries()).nms_threshold == 0.7


def test_an_exported_file_describes_its_windows_and_takes_inputs_of_any_size() -> None:
    windows = task(inference=Inference(window=(64, 64), window_stride=(32, 32)))
    export = windows.export(windows.model())
    assert (export.reading['inference']['window'], export.dynamic) == ((64, 64), {2: 32, 3: 32})
    with pytest.raises(ValueError, match='with_post_processing'):
        windows.export(windows.model(), post_processing=True)
