"""The page of `phalanx serve` draws the result of a dropped image, in every family and at every width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from browser.conftest import WIDTHS, Open
from browser.networks import export
from phalanx.runtime import load
from serving import served

SIZE = 160, 120  # width and height of the image
BACKGROUND, BRIGHT = (40, 60, 80), (230, 200, 180)

pytestmark = pytest.mark.long


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Dark on the left, bright on the right."""
    pixels = np.full((SIZE[1], SIZE[0], 3), BRIGHT, np.uint8)
    pixels[20:60, 20:80] = BACKGROUND
    cv2.imwrite(str(tmp_path / 'street scene.png'), pixels[..., ::-1])
    return tmp_path / 'street scene.png'


def drop(page: Any, *files: Path) -> None:
    """Give files to the page, and wait for their results."""
    before = page.locator('.result').count()
    page.set_input_files('#files', [str(file) for file in files])
    page.wait_for_function(
        'count => document.querySelectorAll(".result[data-state]").length >= count', arg=before + len(files), timeout=60_000
    )


def colour_at(page: Any, x: float, y: float) -> list[int]:
    """Colour on the canvas of the latest result, at a place in pixels of the image."""
    found: list[int] = page.evaluate(
        """([x, y]) => {
            const {canvas, picture} = results[0], scale = canvas.width / picture.width
            return [...canvas.getContext('2d').getImageData(x * scale, y * scale, 1, 1).data].slice(0, 3)
        }""",
        [x, y],
    )
    return found


@pytest.mark.parametrize('width', WIDTHS)
@pytest.mark.parametrize('task', ['segmentation', 'detection', 'text_detection', 'recognition', 'table'])
def test_the_page_shows_the_result_of_the_exported_file(
    tmp_path: Path, visit: Open, image: Path, task: str, width: int
) -> None:
    file = export(tmp_path / 'run', task)
    result: Any = load(file)(cv2.imread(str(image))[..., ::-1].copy())
    with served(file) as server, visit(f'http://127.0.0.1:{server.port}', width) as page:
        assert page.locator('h1').inner_text() == 'first try'
        assert 'quality 0.8750 at step 1,200' in page.locator('header').inner_text()
        drop(page, image)
        text = page.locator('.result').inner_text()
        assert 'street scene.png' in text and '160 × 120 pixels' in text
        match task:
            case 'segmentation':
                leaf = round(100 * float((result == 1).mean()), 1)
                assert f'leaf {leaf} %' in text and f'background {100 - leaf:.1f} %' in text
                assert colour_at(page, 40, 40) == list(BACKGROUND)  # the background has no tint
                own = [int(page.evaluate('page.colours[1]')[at : at + 2], 16) for at in (1, 3, 5)]
                assert colour_at(page, 140, 100) == pytest.approx((np.array(own) + BRIGHT) / 2, abs=2)
            case 'detection':
                assert '2 of 3 objects shown' in text and '2 raccoon' in text
                places = page.evaluate('seen(results[0].answer).map(one => [one.points[0], one.points[2]].flat())')
                assert places == pytest.approx(np.array([one.box for one in result if one.score >= 0.3]), abs=1e-4)
                page.locator('#slider').fill('0.1')
                assert '3 of 3 objects shown' in page.locator('.result').inner_text()
                page.locator('#slider').fill('0.3')
            case 'text_detection':
                assert '1 of 1 texts shown' in text
                places = page.evaluate('seen(results[0].answer).map(one => one.points)')
                assert places == pytest.approx(np.array([one.points for one in result]), abs=1e-3)
            case 'recognition':
                assert page.locator('.result .read').inner_text() == result.text == 'abba'
                assert f'confidence {result.confidence:.2f}' in text
            case 'table':
                assert '3 cells, probability of a token 0.90' in text
                assert page.locator('table.cells td').evaluate_all('cells => cells.map(cell => cell.colSpan)') == [2, 1, 1]
                assert page.locator('table.cells canvas').count() == 3
        page.locator('.result summary').click()  # JSON is folded until then


def test_several_images_have_a_card_each_the_latest_first(tmp_path: Path, visit: Open, image: Path) -> None:
    other = image.with_name('other.png')
    other.write_bytes(image.read_bytes())
    with served(export(tmp_path / 'run', 'detection')) as server, visit(f'http://127.0.0.1:{server.port}', 420) as page:
        drop(page, image, other)
        assert page.locator('.result h3').all_inner_texts() == ['other.png', 'street scene.png']


def test_a_file_that_is_no_image_has_its_error_on_the_page(tmp_path: Path, visit: Open) -> None:
    """The browser itself reports the status of the answer on its console."""
    (tmp_path / 'text.png').write_text('no image')
    file = export(tmp_path / 'run', 'segmentation')
    with served(file) as server, visit(f'http://127.0.0.1:{server.port}', 420, allowed='422') as page:
        drop(page, tmp_path / 'text.png')
        assert page.locator('.result .error').inner_text().startswith('the image: is not an image that can be decoded')
