"""Parts of an export without a run: sizes that vary, trials, and what a refused export says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from phalanx.cli.export import describe_free_sides
from phalanx.deploy import export
from phalanx.deploy.difference import relative_difference
from phalanx.engine.job import open_job
from phalanx.families.export import Export, GraphPart
from phalanx.system.errors import RequestError

SEGMENTATION = Export(nn.Identity(), {'scores': ''}, {}, {}, dynamic={2: 32, 3: 32})


def test_the_batch_and_the_sides_that_a_family_leaves_free_vary() -> None:
    assert export.variable_dimensions(SEGMENTATION, None) == {0: 1, 2: 32, 3: 32}
    assert export.variable_dimensions(SEGMENTATION, ['width']) == {3: 32}
    one_by_one = Export(nn.Identity(), {}, {}, {}, GraphPart(lambda model: model, {}), {2: 32, 3: 32})
    assert export.variable_dimensions(one_by_one, None) == {2: 32, 3: 32}
    with pytest.raises(RequestError, match='with this post-processing, the file takes one image at a time'):
        export.variable_dimensions(one_by_one, ['batch'])


def test_a_side_that_is_fixed_is_refused_with_those_that_may_vary() -> None:
    lines = Export(nn.Identity(), {}, {}, {}, dynamic={3: 8})
    with pytest.raises(RequestError) as caught:
        export.variable_dimensions(lines, ['height', 'width'])
    assert str(caught.value) == (
        '--dynamic height,width: all images reach this network with the same height; only batch, width may vary'
    )


@pytest.mark.parametrize(
    ('recipe', 'size', 'varying', 'fault'),
    [
        ('crnn_digits', (48, 100), {0, 3}, 'a height of 32'),
        ('crnn_digits', (32, 200), {0}, None),  # of long lines
        ('crnn_iiit5k', (32, 200), {0}, 'a width of 100'),
        ('crnn_digits', (32, 200), {0, 3}, None),
        ('ppyoloe_plus_s_bccd', (320, 256), (), 'a width of 320'),
        ('ppyoloe_plus_s_bccd', (320, 320), (), None),
        ('slanet_rendered', (96, 96), {0}, 'a height of'),
        ('det_mv3_db', (640, 640), {0}, 'a height of 736'),
        ('PP-OCRv6_small_det', (640, 640), (), None),  # enlarges the shorter side to 736: another width for each image
        ('pp_liteseg_digits', (64, 96), (), None),
    ],
)
def test_a_size_that_no_image_gets_is_refused(
    recipe: str, size: tuple[int, int], varying: set[int], fault: str | None, tmp_path: Path
) -> None:
    task = open_job(recipe, [], tmp_path).task
    exported = Export(nn.Identity(), {}, {}, {})
    if fault is None:
        export.check_requested_size(task, exported, size, varying)
    else:
        with pytest.raises(RequestError, match=f'--image_size {size[0]},{size[1]}: the recipe gives each image {fault}'):
            export.check_requested_size(task, exported, size, varying)
    windows = Export(nn.Identity(), {}, {}, {'inference': {'window': (64, 64), 'scales': (1.0,)}})
    export.check_requested_size(task, windows, size, varying)


def test_trials_have_other_sizes_that_the_network_can_take() -> None:
    """72 and 120, three and five quarters of 96, are enlarged to multiples of 32; the height is fixed."""
    trials = export.make_trials(torch.zeros(3, 3, 64, 96), {0: 1, 3: 32}, {})
    assert [tuple(trial.shape) for trial in trials] == [(3, 3, 64, 96), (1, 3, 64, 96), (1, 3, 64, 128)]


def test_a_file_for_one_image_is_tried_with_one_image_at_a_time() -> None:
    trials = export.make_trials(torch.zeros(2, 3, 64, 64), {}, {})
    assert [tuple(trial.shape) for trial in trials] == [(1, 3, 64, 64)] * 2


def test_trials_are_as_large_as_the_format_needs() -> None:
    (trial,) = export.make_trials(torch.zeros(2, 3, 8, 64), {0: 1}, {2: 16})
    assert tuple(trial.shape) == (2, 3, 16, 64)


def test_a_size_that_the_network_cannot_take_is_named() -> None:
    class OnlySquares(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.reshape(len(images), 3, 4, 4)

    with pytest.raises(RequestError, match=r'the network does not accept images of height 4 and width 6: shape'):
        export.run_network(OnlySquares(), torch.zeros(1, 3, 4, 6))


def test_samples_that_cannot_be_read_are_reported_with_the_way_without_them() -> None:
    class Task:
        bands = None

        def dataset(self, role: str) -> Any:
            raise FileNotFoundError('images/val: no such folder')

    with pytest.raises(RequestError, match=r'images/val: no such folder\n--image_size HEIGHT,WIDTH --no_check exports without'):
        export.example_images(Task(), (32, 64), check=True)  # type: ignore[arg-type]
    assert export.example_images(Task(), (32, 64), check=False).shape == (1, 3, 32, 64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ('summary', 'metric'),
    [
        (None, None),  # the run is not over
        ({'best': None, 'best_step': None}, None),  # it never evaluated
        ({'best': 0.75, 'best_step': 40}, {'name': 'mean_iou', 'value': 0.75, 'step': 40}),
    ],
)
def test_the_guide_has_the_best_metric_of_the_run(summary: Any, metric: Any, tmp_path: Path) -> None:
    if summary is not None:
        (tmp_path / 'summary.json').write_text(json.dumps(summary))
    job: Any = SimpleNamespace(folder=tmp_path, task=SimpleNamespace(main_metric='mean_iou'))
    assert export.best_metric(job) == metric


def test_a_size_that_a_file_does_not_keep_is_said() -> None:
    free, fixed = {'images': ['batch', 3, 'height', 'width'], 'maps': [1]}, {'images': ['batch', 3, 48, 64], 'maps': [1]}
    assert describe_free_sides((48, 64), free).startswith('note: height and width may vary')
    assert [describe_free_sides(None, free), describe_free_sides((48, 64), fixed)] == ['', '']


def test_an_edge_of_a_box_is_as_exact_as_the_box_is_large() -> None:
    """0.1 pixels of an edge near 0, where float16 has 0.1 for the distance that leads there."""
    box, rounded = np.array([[0.0, 3, 399, 99]], np.float32), np.array([[0.1, 3, 399, 99]], np.float32)
    assert relative_difference(rounded, box).max() == pytest.approx(0.1)
    assert relative_difference(rounded, box, by_row=True).max() == pytest.approx(0.1 / 400)
