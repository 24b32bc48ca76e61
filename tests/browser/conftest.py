"""Pages in a real browser: Chromium of the system, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (1400, 420)
Open = Callable[[str, int], Any]  # address, width -> context of Playwright's Page

# Text that is cut off or sticks out of its box; elements that scroll by themselves, and hidden ones, apart.
OVERFLOWING = """() => {
  // The strips of a chart show their values under the pointer only.
  const scrolls = element => element && (
    /(auto|scroll)/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement))
  return [...document.querySelectorAll('body *')].filter(element => {
    const style = getComputedStyle(element), box = element.getBoundingClientRect()
    if (!box.width || style.display === 'inline' || scrolls(element) || element.closest('svg, select, .plot')) return false
    return element.scrollWidth > element.clientWidth + 1 || box.right > innerWidth + 1 || box.left < -1
  }).map(element => `${element.tagName} ${element.className}: ${element.textContent.slice(0, 60)}`)
}"""


@pytest.fixture(scope='module')
def browser() -> Iterator[Any]:
    """Chromium for the tests of a module: a whole session would share its process, and its event loop, with tests that kill."""
    playwright = pytest.importorskip('playwright.sync_api', reason='pip install playwright')
    chromium = shutil.which('chromium') or shutil.which('google-chrome')
    if chromium is None:
        pytest.skip('no Chromium here: apt-get install chromium')
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=['--no-sandbox', '--disable-gpu'])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Open:
    """Open an address at a width; at the end the page must have no errors, no sideways scrolling and no cut text.

    Screenshots are kept in the folder SCREENSHOTS, if that variable is set.
    """

    @contextmanager
    def opened(address: str, width: int, *, allowed: str = '\0') -> Iterator[Any]:
        page, errors = browser.new_page(viewport={'width': width, 'height': 900}), list[str]()
        page.on('console', lambda message: errors.append(message.text) if message.type == 'error' else None)
        page.on('pageerror', lambda error: errors.append(str(error)))
        page.goto(address)
        yield page
        if folder := os.environ.get('SCREENSHOTS'):
            name = request.node.name.replace('/', '_').replace('[', '_').rstrip(']')
            page.screenshot(path=Path(folder) / f'{name}_{width}.png', full_page=True)
        assert [error for error in errors if allowed not in error] == []
        assert page.evaluate('document.documentElement.scrollWidth') <= width
        assert page.evaluate(OVERFLOWING) == []
        page.close()

    return opened
