"""Pages of PDF files as pictures, by PDFium where the package pypdfium2 is installed."""

from importlib.util import find_spec

import numpy as np

from phalanx.data.samples import Image, SampleError
from phalanx.runtime.prepare import MOST_PIXELS

BEGINNING = b'%PDF-'
CURE = 'PDF files are read with pypdfium2: pip install "phalanx-vision[pdf]"'
DOTS_PER_INCH = 200
POINTS_PER_INCH = 72  # in which PDF files give sizes


def is_installed() -> bool:
    return find_spec('pypdfium2') is not None


class Document:
    """Pages of a PDF file, rendered at DOTS_PER_INCH, or fewer where a page would have more than MOST_PIXELS.

    Raises SampleError.
    """

    def __init__(self, data: bytes, name: str) -> None:
        if not is_installed():
            raise SampleError(f'{name}: {CURE}')
        import pypdfium2

        self._name, self._error = name, pypdfium2.PdfiumError
        try:
            self._document = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            if 'password' in str(error).lower():
                raise SampleError(f'{name}: needs a password; remove it first: `qpdf --decrypt --password=...`') from None
            raise SampleError(f'{name}: PDFium cannot read it: {error}') from None
        if not len(self):
            raise SampleError(f'{name}: has no page')

    def __len__(self) -> int:
        return len(self._document)

    def page(self, number: int) -> Image:
        """Page `number`, from 0, [H, W, 3] RGB. Raises SampleError."""
        name = f'{self._name}, page {number + 1}'
        try:
            page = self._document[number]
            width, height = page.get_size()
            if not width * height > 0:
                raise SampleError(f'{name}: has no area')
            # Some plans are square metres large: fewer dots per inch for those.
            scale = min(DOTS_PER_INCH / POINTS_PER_INCH, (MOST_PIXELS / (width * height)) ** 0.5)
            pixels = page.render(scale=scale, rev_byteorder=True, force_bitmap_format=2).to_numpy()
        except self._error as error:
            raise SampleError(f'{name}: PDFium cannot draw it: {error}') from None
        return np.array(pixels[..., :3], np.uint8)
