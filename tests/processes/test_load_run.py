"""`phalanx.load_run` for each family, and the page of its run."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from phalanx import load_run
from phalanx.cli.main import main
from phalanx.data.samples import Image, SampleError
from phalanx.runtime.results import Found, Prediction, Reading


def noise(height: int, width: int) -> Image:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_segmentation_gives_a_class_for_every_pixel(family_runs: dict[str, Path]) -> None:
    found = load_run(family_runs['segmentation'], device='cpu')(noise(64, 96))
    assert found.shape == (64, 96)
    assert found.dtype == np.uint8
    assert found.max() <= 10


def test_detection_gives_named_boxes_inside_the_image_the_most_probable_first(family_runs: dict[str, Path]) -> None:
    """Of an image whose sides are not multiples of 32, too."""
    found = load_run(family_runs['detection'], device='cpu')(noise(50, 70))
    assert 0 < len(found) <= 300
    assert all(isinstance(one, Found) and one.name == str(one.label) and 0 < one.score < 1 for one in found)
    assert all(0 <= x0 <= x1 <= 70 and 0 <= y0 <= y1 <= 50 for x0, y0, x1, y1 in (one.box for one in found))
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_recognition_returns_a_text_and_its_confidence(family_runs: dict[str, Path]) -> None:
    """Of a line that is wider than those of the training, too."""
    found = load_run(family_runs['recognition'], device='cpu')(noise(32, 200))
    assert isinstance(found, Reading)
    assert re.fullmatch('[0-9]*', found.text)
    assert 0 <= found.confidence <= 1


def test_a_table_is_given_as_tokens_with_a_box_for_each_cell(family_runs: dict[str, Path]) -> None:
    found = load_run(family_runs['table'], device='cpu')(noise(50, 70))
    assert isinstance(found, Prediction)
    assert 0 < len(found.structure) <= 41
    assert found.boxes.shape == (sum(token.startswith('<td') for token in found.structure), 4)
    assert 0 <= found.score <= 1


def test_a_path_is_as_good_as_its_image(family_runs: dict[str, Path], tmp_path: Path) -> None:
    image = noise(64, 96)
    cv2.imwrite(str(tmp_path / 'image.png'), image[:, :, ::-1])
    predict = load_run(str(family_runs['segmentation']), device='cpu')
    expected = predict(image)
    assert (predict(tmp_path / 'image.png') == expected).all()
    assert (predict(str(tmp_path / 'image.png')) == expected).all()


def test_what_is_no_image_is_refused(family_runs: dict[str, Path], tmp_path: Path) -> None:
    predict = load_run(family_runs['segmentation'], device='cpu')
    with pytest.raises(ValueError, match=r'in RGB order; got \[64, 96\] of float32'):
        predict(np.zeros((64, 96), np.float32))
    with pytest.raises(SampleError, match=r'absent\.png: cannot be read'):
        predict(tmp_path / 'absent.png')


@pytest.mark.parametrize(
    ('family', 'shown'),
    [
        ('segmentation', ('Confusion matrix, by pixels', 'class="matrix')),
        ('detection', ('Classes taken for one another, from a score', 'class="matrix', 'Precision at an IoU of 0.5')),
        ('recognition', ('Misread lines, by confidence',)),
        ('table', ('of 24 tables for training have more than max_length=40 tokens and are left out',)),
    ],
)
def test_the_page_of_each_family_shows_the_plots_of_its_metric_and_the_notes_on_its_data(
    family: str, shown: tuple[str, ...], family_runs: dict[str, Path]
) -> None:
    page = (family_runs[family] / 'report.html').read_text()
    assert [text for text in shown if text not in page] == []


def test_the_page_can_be_built_again_from_the_folder_alone(
    family_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    page = family_runs['table'] / 'report.html'
    before = page.read_bytes()
    page.unlink()
    assert main(['report', str(family_runs['table'])]) == 0
    assert capsys.readouterr().out == f'{page}\nnext: phalanx eval {family_runs["table"]} --page eval.html\n'
    assert page.read_bytes() == before


def test_a_folder_without_a_run_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['report', str(tmp_path)]) == 2
    assert 'is not a run folder' in capsys.readouterr().err


def test_results_that_cannot_be_written_are_reported_with_the_path(
    family_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2.imwrite(str(tmp_path / 'image.png'), noise(64, 96))
    (tmp_path / 'out').write_text('a file, no folder')
    words = ['predict', str(family_runs['segmentation']), str(tmp_path / 'image.png'), '--out']
    assert main([*words, str(tmp_path / 'out')]) == 2
    assert f'--out {tmp_path / "out"}: is a file; results need a folder' in capsys.readouterr().err
    assert main([*words, '/sys/results']) == 1  # takes no folders, not even from root
    assert 'prediction failed: /sys/results: ' in capsys.readouterr().err
