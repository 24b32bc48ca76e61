"""Reading of pages with a text detector and a recogniser."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import cv2

from phalanx import runtime
from phalanx.data.image import AnImage, Pages, load_pixels
from phalanx.data.samples import Image, SampleError
from phalanx.deploy.exported import open_exported
from phalanx.deploy.pages import draw_page
from phalanx.runtime import Line
from phalanx.runtime.prepare import MAX_SIDE, STEP
from phalanx.runtime.results import Reading
from phalanx.system.disk import hash_file
from phalanx.system.errors import RequestError
from phalanx.weights.finding import find
from phalanx.weights.published import PUBLISHED
from phalanx.weights.readers import choose_classifier, choose_reader

FILES = ('.onnx', '.xml')
FAMILIES = {  # by option
    'det': 'text_detection',
    'rec': 'recognition',
    'cls': 'orientation',
    'layout': 'detection',
    'table': 'table',
}


class Trained(Protocol):
    """Trained model, `phalanx.Trained`, which is imported for run folders only: torch takes 0.4 GB and seconds."""

    task: str
    weights: str
    class_names: tuple[str, ...]

    def __call__(self, images: Any) -> Any: ...


Model = Trained | runtime.Model


class Reader:
    """Reader of pages: `reader(page)` is the list of `Line` of a page, in reading order.

    `det` detects texts, `rec` recognises lines: models from `phalanx.load_run` or `phalanx.runtime.load`, or values of `--det`
    and `--rec` of `phalanx read`; by default PP-OCR of an installed package for the `language` (`choose_reader`). Lines with a
    confidence below `threshold` are left out; `upside_down` also reads lines turned by 180 degrees, and
    `use_textline_orientation` those that the classifier `cls` (default: `choose_classifier`) gives. Pages with a longer side
    above `max_side` pixels are reduced for detection. `threads` of exported files, and of OpenCV: 0 for one per core.
    """

    def __init__(
        self,
        det: Model | str | Path | None = None,
        rec: Model | str | Path | None = None,
        *,
        language: str | None = None,
        threshold: float = 0.5,
        upside_down: bool = False,
        use_textline_orientation: bool = False,
        cls: Model | str | Path | None = None,
        max_side: int = MAX_SIDE,
        device: str = 'auto',
        threads: int = 0,
    ) -> None:
        """Load the models. Raises RequestError for a wrong file or family, ConfigError or CheckpointError."""
        if not 0 <= threshold <= 1:
            raise RequestError(f'threshold: a confidence is between 0 and 1, got {threshold:g}')
        if max_side < STEP:
            raise RequestError(f'max_side: a page has {STEP} pixels at least on its longer side, got {max_side}')
        if cls is not None and not use_textline_orientation:
            raise RequestError('--cls: names the model of --use_textline_orientation; add it')
        if det is None or rec is None:
            default_det, default_rec = choose_reader(language)
            det, rec = det or default_det, rec or default_rec
        elif language is not None:
            raise RequestError(f'--lang {language}: chooses the models that --det and --rec name already; leave it out')
        self.det, self.rec = open_model('det', det, device, threads), open_model('rec', rec, device, threads)
        self.names = [name_model(det, self.det), name_model(rec, self.rec)]
        self.cls: Model | None = None
        if use_textline_orientation:
            cls = cls or choose_classifier()
            self.cls = open_model('cls', cls, device, threads)
            self.names.append(name_model(cls, self.cls))
        self.threshold, self.upside_down, self.max_side = threshold, upside_down, max_side
        if threads:
            cv2.setNumThreads(threads)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Models and options on which the lines of a page depend; the hash of a file stands for its content."""
        return *identify(self.names), self.threshold, self.upside_down, self.max_side

    def __call__(self, page: AnImage) -> list[Line]:
        """Read a page, [H, W, 3] uint8 RGB or a path. Raises ValueError, and SampleError for a bad file."""
        return runtime.lines_of(
            load_page(page),
            self.det,
            self.recognise,
            threshold=self.threshold,
            upside_down=self.upside_down,
            classify=partial(apply, self.cls) if self.cls else None,
            max_side=self.max_side,
        )

    def recognise(self, cuts: Sequence[Image]) -> list[Reading]:
        return recognise(self.rec, cuts)

    def draw(self, page: AnImage, lines: Sequence[Line]) -> Image:
        """Draw the page with outlined lines, and their texts beside it: [H, 2 W, 3] uint8 RGB."""
        return draw_page(load_page(page), lines)


def load_page(page: AnImage) -> Image:
    """Load a page as `phalanx read` does: transparent pixels are white. Raises SampleError for a file of several pages."""
    if not isinstance(page, str | Path):
        return load_pixels(page)
    pages = Pages(Path(page), on_white=True)
    if len(pages) > 1:
        raise SampleError(f'{page}: has {len(pages)} pages; `phalanx read` reads them all, and this takes one as an array')
    return pages.read(0)


def read(
    page: AnImage,
    *,
    det: Model | str | Path | None = None,
    rec: Model | str | Path | None = None,
    language: str | None = None,
    threshold: float = 0.5,
    upside_down: bool = False,
    max_side: int = MAX_SIDE,
) -> list[Line]:
    """Read one page; `Reader` reads many without loading the models each time."""
    return Reader(det, rec, language=language, threshold=threshold, upside_down=upside_down, max_side=max_side)(page)


def recognise(model: Model, cuts: Sequence[Image]) -> list[Reading]:
    """Read images of single lines with a recogniser."""
    return apply(model, cuts)


def apply(model: Model, images: Sequence[Image]) -> list[Any]:
    results: list[Any] = model.batch(images) if isinstance(model, runtime.Model) else model(list(images))
    return results


def name_model(source: Model | str | Path, model: Model) -> str:
    """Name of a model for people: the file, or the weights of a run."""
    if not isinstance(model, runtime.Model):
        return model.weights
    return str(source) if isinstance(source, str | Path) else str(model.guide['model'])


def identify(names: Sequence[str]) -> list[str]:
    """Return the names of models, with the hash of a file in place of its name."""
    return [hash_file(Path(name)) if Path(name).is_file() else name for name in names]


def open_model(role: str, source: Model | str | Path, device: str, threads: int = 0) -> Model:
    """Open a model of a reader, of one of FAMILIES: a model, an exported file, a name of published weights, or a run folder.

    Raises RequestError for a wrong file or a model of another family, ConfigError or CheckpointError.
    """
    model: Model
    if not isinstance(source, str | Path):
        model = source
    elif Path(source).suffix in FILES:
        model = open_exported(Path(source), threads)
    elif (published := PUBLISHED.get(str(source))) is not None and published.address.endswith('.onnx'):
        model = open_exported(find(str(source)).path, threads)
    else:
        from phalanx.engine.job import open_job
        from phalanx.engine.trained import Trained as Run

        model = Run(open_job(published.network if published else str(source)), str(source) if published else None, device)
    task = model.guide['task'] if isinstance(model, runtime.Model) else model.task
    if task != FAMILIES[role]:
        raise RequestError(f'--{role} {source}: is a model for {task}, and {FAMILIES[role]} is needed')
    return model
