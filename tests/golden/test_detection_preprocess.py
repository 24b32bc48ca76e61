"""The way of an image into PP-YOLOE against PaddleDetection: resized, normalised, channels first, boxes with it.

The image was resized to 64 x 64 by cubic interpolation, with one box (4, 3, 30, 25) on it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.data.batch import normalise_images
from phalanx.families.detection.data import Objects
from phalanx.families.detection.transforms import Resize, TransformContext

GOLDEN = np.load(Path(__file__).parent / 'data/preprocess_det.npz')
BOX = np.array([[4, 3, 30, 25]], np.float32)
NO_RANDOMNESS = TransformContext(
    np.random.default_rng(0), lambda: np.random.default_rng(0), lambda: pytest.fail('draws another sample')
)


@pytest.fixture
def resized() -> tuple[np.ndarray, Objects]:
    resize = Resize(target_size=(64, 64), interpolation='cubic')
    return resize(GOLDEN['image'], Objects.plain(BOX, np.array([0])), NO_RANDOMNESS)


@pytest.mark.parametrize(
    ('name', 'mean', 'std'),
    [('out_ppyoloe_crn', (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ('out_ppyoloe_plus', (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))],
)
def test_the_network_sees_the_image_that_the_original_sees(
    resized: tuple[np.ndarray, Objects], name: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """To float32 rounding; a level of 255 would be 0.004 at least."""
    image = torch.from_numpy(resized[0].transpose(2, 0, 1)[None].copy())
    np.testing.assert_allclose(normalise_images(image, mean, std)[0].numpy(), GOLDEN[name], atol=2e-6)


def test_boxes_are_resized_with_the_image(resized: tuple[np.ndarray, Objects]) -> None:
    np.testing.assert_allclose(resized[1].boxes, GOLDEN['gt_bbox'], rtol=1e-6)
    np.testing.assert_allclose(GOLDEN['scale_factor'], (64 / 40, 64 / 56), rtol=1e-6)  # height, width
