"""Evaluation by windows, scales and flips, with networks whose answers can be worked out by hand."""

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from phalanx.engine.job import open_job
from phalanx.families.segmentation.inference import Inference
from phalanx.runtime.views import window_starts


class Network(nn.Module):
    """Network that applies a function and records the sizes (height, width) of its inputs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.seen = function, []

    def forward(self, images: Tensor) -> list[Tensor]:
        self.seen.append(tuple(images.shape[2:]))
        return [self.function(images)]


def column(images: Tensor) -> Tensor:
    """Logits [B, 2, H, W]: 0, and the column index within the input."""
    columns = torch.arange(images.shape[3], dtype=torch.float32).expand(len(images), 1, *images.shape[2:])
    return torch.cat([torch.zeros_like(columns), columns], dim=1)


@pytest.mark.parametrize(
    ('length', 'window', 'stride', 'expected'),
    [
        (10, 4, 3, [0, 3, 6]),
        (10, 4, 4, [0, 4, 6]),  # the last one is moved back
        (4, 4, 1, [0]),
        (3, 4, 2, [0]),  # smaller than a window
        (5, 4, 4, [0, 1]),
    ],
)
def test_windows_cover_a_side_and_end_with_it(length: int, window: int, stride: int, expected: list[int]) -> None:
    assert window_starts(length, window, stride) == expected


def test_overlapping_windows_are_averaged() -> None:
    """Windows begin at columns 0 and 2 and give 0 1 2 3 each; two of the six columns are in both."""
    scores = Inference(window=(2, 4), window_stride=(2, 2))(Network(column), torch.zeros(3, 3, 2, 6))
    assert scores.shape == (3, 2, 2, 6)
    assert scores[2, 1].tolist() == [[0, 1, (2 + 0) / 2, (3 + 1) / 2, 2, 3]] * 2


@pytest.mark.parametrize(('window', 'stride'), [((4, 4), (4, 4)), ((3, 5), (3, 2)), ((20, 20), (1, 1)), ((7, 1), (2, 1))])
def test_windows_change_nothing_for_a_pointwise_network(window: tuple[int, int], stride: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network, images = Network(nn.Conv2d(3, 4, 1)), torch.randn(3, 3, 7, 11)
    assert_close(
        Inference(window=window, window_stride=stride)(network, images), Inference()(network, images), rtol=0, atol=1e-6
    )
    assert set(network.seen[:-1]) == {(min(7, window[0]), min(11, window[1]))}


@pytest.mark.parametrize(('horizontal', 'vertical'), list(product([False, True], repeat=2)))
def test_flips_change_nothing_for_a_pointwise_network(horizontal: bool, vertical: bool) -> None:
    torch.manual_seed(0)
    network, images = Network(nn.Conv2d(3, 4, 1)), torch.randn(2, 3, 5, 6)
    scores = Inference(flip_horizontal=horizontal, flip_vertical=vertical)(network, images)
    assert len(network.seen) == (1 + horizontal) * (1 + vertical)
    assert_close(scores, network.function(images))


def test_a_flipped_view_is_flipped_back_before_averaging() -> None:
    """Column x gets x² in the image and (3 - x)² in its mirror image."""
    squared = Network(lambda images: column(images) ** 2)
    scores = Inference(flip_horizontal=True)(squared, torch.zeros(1, 3, 1, 4))
    assert scores[0, 1, 0].tolist() == [(0 + 9) / 2, (1 + 4) / 2, (4 + 1) / 2, (9 + 0) / 2]


def test_the_logits_of_all_scales_are_averaged_at_the_size_of_the_image() -> None:
    """Class 1 gets the width of the input as its logit: 2, 4 and 8. The mean of probabilities would differ."""

    def width(images: Tensor) -> Tensor:
        return torch.full_like(images[:, :2], images.shape[3]) * torch.tensor([0.0, 1.0]).view(2, 1, 1)

    network = Network(width)
    scores = Inference(scales=(0.5, 1.0, 2.0))(network, torch.zeros(2, 3, 5, 4))
    assert network.seen == [(3, 2), (5, 4), (10, 8)]  # 2.5 is rounded up
    assert scores.shape == (2, 2, 5, 4)
    assert_close(scores[:, 1], torch.full((2, 5, 4), (2 + 4 + 8) / 3))
    assert_close(scores[:, 0], torch.zeros(2, 5, 4))


def test_windows_slide_over_every_scale() -> None:
    network = Network(column)
    Inference(window=(4, 4), window_stride=(4, 4), scales=(1.0, 2.0), flip_horizontal=True)(network, torch.zeros(1, 3, 4, 4))
    assert network.seen == [(4, 4)] * (2 * 1 + 2 * 4)


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (partial(Inference, scales=()), 'scales must be one or more numbers above 0, got []'),
        (partial(Inference, scales=(1.0, 0.0)), 'scales must be one or more numbers above 0, got [1.0, 0.0]'),
        (
            partial(Inference, window=(4, 4), window_stride=(4, 5)),
            'at most window, or pixels are left out; got [4, 5] for [4, 4]',
        ),
        (partial(Inference, window=(4, 4), window_stride=(0, 4)), 'window_stride must be at least 1'),
        (partial(Inference, window=(4, 4)), 'windows need both window and window_stride'),
    ],
)
def test_invalid_options_are_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_a_recipe_sets_windows_scales_and_flips() -> None:
    said = 'inference={window: [32, 64], window_stride: [32, 48], flip_horizontal: true}'
    assert open_job('pp_liteseg_digits', [(said, 'here')]).task.inference == Inference(  # type: ignore[attr-defined]
        window=(32, 64), window_stride=(32, 48), flip_horizontal=True
    )
    assert open_job('pp_liteseg_digits').task.inference == Inference()  # type: ignore[attr-defined]
